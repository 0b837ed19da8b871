"""Following a link that changes: the way of each request beside the best one in hindsight, and how often it changes.

Traces are in mahimahi's format. The ones made here wander as cellular links do; `UPWELL_TRACES` names a folder of
recorded ones (*.up).
"""

from __future__ import annotations

import itertools
import math
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples import grid
from tests.unit.routing.asking import MODEL, router
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudSent,
    Decision,
    EdgeRan,
    LinkProbed,
    Outcome,
    RouterState,
    Signals,
    SplitRoute,
)
from upwell.shared.routing.policy.request_facts import RequestFacts
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.simulation.link_capacity import Capacity, parse_trace

FOLDER = os.environ.get("UPWELL_TRACES", "")
RTT_S = 0.05
PERIOD_S = 0.25
PROBE_S = 1.0
WHOLE = "whole"

SPLIT = "defaults: {deadline: 60s}\nrules: [{name: s, match: {}, route: split}]"
LATENCY = "defaults: {deadline: 1s, objective: latency, hard: off}"


@dataclass(frozen=True)
class Network:
    """What each way takes: seconds of head and tail, bytes; `raw` is the whole in the cloud, `edge_s` the device's."""

    split_routes: tuple[SplitRoute, ...]
    edge_s: float = 0.4
    raw_bytes: int = 150_528
    raw_s: float = 0.012


CUTS = Network(
    (
        SplitRoute("m/c12", 50_000, 0.03, 0.008),
        SplitRoute("m/c30", 12_000, 0.08, 0.004),
        SplitRoute("m/c40", 3_000, 0.16, 0.002),
    )
)


class Follower:
    """One request after the other over a link, decided by the router, which learns from each."""

    def __init__(self, link: Capacity, network: Network, text: str) -> None:
        self.link, self.network, self.router = link, network, router(text)
        self.state = RouterState()
        self.has_cloud = "latency" in text
        self.took_s: list[float] = []
        self.best_s: list[float] = []
        self.keys: list[str] = []

    def run(self, length_s: float) -> None:
        at_s = probed_s = 0.0
        while at_s < length_s:
            if at_s >= probed_s:
                self.state = self.router.observe(self.state, LinkProbed(RTT_S), at_s)
                probed_s = at_s + PROBE_S
            decision = self._decided(at_s)
            took_s = self._answer(decision, at_s)
            self.took_s.append(took_s)
            self.best_s.append(min(self._total_s(split_route, at_s) for split_route in self._all()))
            at_s += max(PERIOD_S, took_s)

    @property
    def ratio(self) -> float:
        """Mean latency over that of the best way of each request."""
        return sum(self.took_s) / sum(self.best_s)

    def switches_in_5_s(self, length_s: float) -> float:
        """How often the way changed."""
        return sum(a != b for a, b in itertools.pairwise(self.keys)) * 5.0 / length_s

    def _all(self) -> list[SplitRoute | str]:
        return [*self.network.split_routes, *(["edge", WHOLE] if self.has_cloud else [])]

    def _decided(self, at_s: float) -> Decision:
        signals = Signals(
            RequestFacts(MODEL, {}, self.network.raw_bytes, 0.0), (self.network.raw_bytes,), at_s,
            has_cloud=self.has_cloud, split_routes=self.network.split_routes)  # fmt: skip
        decision = self.router.decide(self.state, signals, at_s)
        if decision.needs_acquire:
            self.state, granted = self.router.acquire(self.state, decision, at_s)
            assert granted
        return decision

    def _answer(self, decision: Decision, at_s: float) -> float:
        net, split_route = self.network, decision.split_route
        if not decision.up_rows:
            self.keys.append("edge")
            self._observe(EdgeRan(MODEL, 1, net.edge_s), at_s + net.edge_s)
            return net.edge_s
        key = WHOLE if split_route is None else split_route.key
        head_s, size, tail_s = (0.0, net.raw_bytes, net.raw_s) if split_route is None else (
            split_route.head_s, split_route.row_bytes, split_route.tail_s)  # fmt: skip
        self.keys.append(key)
        if split_route is not None:
            self._observe(EdgeRan(split_route.key, 1, head_s), at_s + head_s)
        model = MODEL if split_route is None else split_route.key
        self._observe(CloudSent(model, "1", 1, size, "" if split_route is None else MODEL), at_s + head_s)
        total_s = self._link_s(at_s + head_s, size) + tail_s
        if at_s + head_s + total_s > decision.give_up_s:
            return self._fall_back(decision, model, at_s, head_s)
        self._observe(CloudAnswered(model, 1, size, total_s, tail_s, call="1"), at_s + head_s + total_s)
        return head_s + total_s

    def _fall_back(self, decision: Decision, model: str, at_s: float, head_s: float) -> float:
        """The device answers in time, beside the call that comes to nothing."""
        waited_s = decision.give_up_s - at_s - head_s
        failure = CloudCallFailed(model, Reason.CLOUD_DEADLINE, decision.probes, waited_s, "1")
        self._observe(failure, decision.give_up_s)
        return min(decision.give_up_s, decision.fallback_start_s + self.network.edge_s) - at_s

    def _observe(self, outcome: Outcome, at_s: float) -> None:
        self.state = self.router.observe(self.state, outcome, at_s)

    def _total_s(self, split_route: SplitRoute | str, at_s: float) -> float:
        if isinstance(split_route, SplitRoute):
            return (
                split_route.head_s + self._link_s(at_s + split_route.head_s, split_route.row_bytes) + split_route.tail_s
            )
        if split_route == "edge":
            return self.network.edge_s
        return self._link_s(at_s, self.network.raw_bytes) + self.network.raw_s

    def _link_s(self, start_s: float, size: int) -> float:
        reached_s = self.link.reached_s(self.link.offered_bytes(start_s) + size)
        return RTT_S + max(0.0, reached_s - start_s)


def wandering(seed: int, median_bps: float, length_s: float) -> Capacity:
    """A trace whose rate wanders around a median: ln of it is pulled back within 10 s and moves by 0.35 each second."""
    rng, level, now_ms = random.Random(seed), 0.0, 0.0
    packets: list[int] = []
    while now_ms < length_s * 1e3:
        gap_ms = 12e6 / (median_bps * math.exp(level))
        now_ms += gap_ms
        packets.append(int(now_ms))
        step_s = gap_ms / 1e3
        level += -level * step_s / 10 + 0.35 * math.sqrt(step_s) * rng.gauss(0, 1)
    return parse_trace("\n".join(map(str, packets)))


@pytest.mark.parametrize(
    ("mbps", "text", "seed"), grid([1.0, 3.0, 6.0, 20.0], {"split": SPLIT, "latency": LATENCY}, [0, 1])
)
def test_the_router_stays_close_to_the_best_way(mbps: float, text: str, seed: int) -> None:
    follower = Follower(wandering(seed, mbps * 1e6, 60.0), CUTS, text)
    follower.run(60.0)
    said = f"ratio {follower.ratio:.3f}, {follower.switches_in_5_s(60.0):.2f} switches in 5 s, {set(follower.keys)}"
    print(said)
    assert follower.ratio <= 1.1, said
    assert follower.switches_in_5_s(60.0) < 1, said


@pytest.mark.skipif(not FOLDER, reason="UPWELL_TRACES names no folder of recorded links")
@pytest.mark.parametrize(("text", "most"), [(SPLIT, 1.1), (LATENCY, 1.2)], ids=["split", "latency"])
@pytest.mark.parametrize("path", sorted(Path(FOLDER).glob("*.up")) if FOLDER else [], ids=lambda path: path.stem)
def test_the_router_stays_close_on_recorded_links(path: Path, text: str, most: float) -> None:
    """Among the cuts; where the device alone and the whole in the cloud count too, outages of seconds cost more."""
    follower = Follower(parse_trace(path.read_text()), CUTS, text)
    follower.run(300.0)
    said = f"ratio {follower.ratio:.3f}, {follower.switches_in_5_s(300.0):.2f} switches in 5 s, {set(follower.keys)}"
    print(said)
    assert follower.ratio <= most, said
    assert follower.switches_in_5_s(300.0) < 1, said
