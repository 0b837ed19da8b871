"""Following a link that changes: the cut of each request beside the best one in hindsight, and how often it changes.

Traces are in mahimahi's format. The ones made here wander as cellular links do; `UPWELL_TRACES` names a folder of
recorded ones (*.up).
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from upwell.shared.partition.choice import MARGIN, ReadyCut, choose
from upwell.shared.routing.link import LinkEstimate, LinkSample
from upwell.shared.routing.simulation.capacity import Capacity, constant, parse_trace

FOLDER = os.environ.get("UPWELL_TRACES", "")
RTT_S = 0.05
PERIOD_S = 0.25
PING_S = 1.0
SENDING = {
    "three": (
        ReadyCut("c30", 0.08, 0.004, 12_000, 0),
        ReadyCut("c12", 0.03, 0.008, 50_000, 0),
        ReadyCut("cloud", 0.0, 0.012, 150_528, 0),
    ),
    "four": (
        ReadyCut("c40", 0.16, 0.004, 6_000, 0),
        ReadyCut("c30", 0.12, 0.008, 25_000, 0),
        ReadyCut("c12", 0.04, 0.02, 75_000, 0),
        ReadyCut("cloud", 0.0, 0.03, 150_528, 0),
    ),
}
WITH_EDGE = (
    ReadyCut("edge", 0.4, 0.0, 0, 0),
    ReadyCut("c30", 0.25, 0.01, 30_000, 0),
    ReadyCut("c12", 0.1, 0.03, 100_000, 0),
    ReadyCut("cloud", 0.0, 0.05, 150_528, 0),
)

Seen = Callable[[float], tuple[float, float]]
"""Seconds per byte and the round trip, as known at an instant."""


@dataclass(frozen=True)
class Followed:
    """Mean latency over that of the best cut of each request, and changes of the cut in 5 s."""

    ratio: float
    switches: float
    names: frozenset[str]


def follow(link: Capacity, cuts: Sequence[ReadyCut], length_s: float, seen: Seen | None, margin: float) -> Followed:
    """One request after the other; `seen` None: the agent's own estimator, fed by what the requests took."""
    estimate, pinged_s, at_s, current = LinkEstimate(), 0.0, 0.0, None
    took: list[float] = []
    best: list[float] = []
    names: list[str] = []
    while at_s < length_s:
        if at_s >= pinged_s:  # the agent's empty calls
            estimate, pinged_s = estimate.add(LinkSample(at_s, 0, 0, RTT_S)), at_s + PING_S
        known = (estimate.inverse_bandwidth_s_per_byte, estimate.rtt_s) if seen is None else seen(at_s)
        cut = choose(cuts, known[0], 0.0, known[1], current, margin=margin).cut
        current = cut.name
        names.append(current)
        network_s = on_link_s(link, cut, at_s)
        took.append(cut.edge_s + network_s + cut.cloud_s)
        best.append(min(one.edge_s + on_link_s(link, one, at_s) + one.cloud_s for one in cuts))
        if not cut.is_local:
            estimate = estimate.add(LinkSample(at_s + took[-1], int(cut.bytes_up), 0, network_s))
        at_s += max(PERIOD_S, took[-1])
    changes = sum(before != after for before, after in itertools.pairwise(names))
    return Followed(sum(took) / sum(best), changes * 5 / length_s, frozenset(names))


def on_link_s(link: Capacity, cut: ReadyCut, at_s: float) -> float:
    """Round trip and the time to send, from when the head is done; nothing else is on the link."""
    if cut.is_local:
        return 0.0
    start_s = at_s + cut.edge_s
    return RTT_S + max(0.0, link.reached_s(link.offered_bytes(start_s) + cut.bytes_up) - start_s)


def passive(link: Capacity) -> Seen:
    """What the link offered in the last second or the last three, whichever was less: a device with other traffic on
    the link knows that without sending anything."""

    def seen(at_s: float) -> tuple[float, float]:
        inverses = [0.0]
        for window_s in (1.0, 3.0):
            since_s = max(0.0, at_s - window_s)
            offered = link.offered_bytes(at_s) - link.offered_bytes(since_s)
            inverses.append((at_s - since_s) / offered if offered > 0 else math.inf)
        return max(inverses), RTT_S

    return seen


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


@pytest.mark.parametrize("cuts", SENDING.values(), ids=SENDING)
@pytest.mark.parametrize("seed", range(2))
def test_with_the_agents_estimator_it_stays_close_to_the_best(seed: int, cuts: Sequence[ReadyCut]) -> None:
    followed = follow(wandering(seed, 6e6, 60), cuts, 60, None, MARGIN)
    assert followed.ratio <= 1.1, followed
    assert followed.switches < 1, followed


@pytest.mark.parametrize("seed", range(3))
def test_where_the_link_is_known_it_goes_to_the_device_and_back(seed: int) -> None:
    link = wandering(seed, 3e6, 60)
    followed = follow(link, WITH_EDGE, 60, passive(link), MARGIN)
    assert followed.ratio <= 1.1, followed
    assert followed.switches < 1, followed
    assert {"edge", "cloud"} & followed.names
    assert len(followed.names) > 1


def test_without_a_margin_it_would_go_to_and_fro() -> None:
    link = wandering(1, 6e6, 60)
    held = follow(link, SENDING["four"], 60, passive(link), MARGIN)
    trembling = follow(link, SENDING["four"], 60, passive(link), 0.0)
    assert trembling.switches > 2 * held.switches


def test_on_a_steady_link_nothing_changes() -> None:
    followed = follow(constant(8e6), SENDING["four"], 30, None, MARGIN)
    assert followed.switches <= 5 / 30
    assert followed.ratio <= 1.01


@pytest.mark.skipif(not FOLDER, reason="UPWELL_TRACES names no folder of recorded links")
@pytest.mark.parametrize("cuts", SENDING.values(), ids=SENDING)
def test_recorded_links_are_followed(cuts: Sequence[ReadyCut]) -> None:
    paths = sorted(Path(FOLDER).glob("*.up"))
    assert paths
    found = {path.name: follow(parse_trace(path.read_text()), cuts, 280, None, MARGIN) for path in paths}
    print(found)
    assert {name: one for name, one in found.items() if one.ratio > 1.1 or one.switches >= 1} == {}


@pytest.mark.skipif(not FOLDER, reason="UPWELL_TRACES names no folder of recorded links")
def test_recorded_links_that_are_known_are_followed() -> None:
    links = {path.name: parse_trace(path.read_text()) for path in sorted(Path(FOLDER).glob("*.up"))}
    found = {name: follow(link, WITH_EDGE, 280, passive(link), MARGIN) for name, link in links.items()}
    print(found)
    assert {name: one for name, one in found.items() if one.ratio > 1.1 or one.switches >= 1} == {}
