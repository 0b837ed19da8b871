"""A link that dies for a while: how soon it is left alone, what that costs, and how soon it is used again."""

from __future__ import annotations

import random

import pytest

from tests.unit.routing.asking import MODEL, router, signals
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudMoved,
    CloudSent,
    LinkProbed,
    RouterState,
)
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.reasons import Reason

BYTES_PER_S = 250_000.0
RTT_S, SERVER_S = 0.06, 0.01
OUTAGE = (20.0, 40.0)
UP = "defaults: {deadline: 300ms}\nrules: [{name: up, match: {}, route: cloud}]"


class Cellular:
    """One request each `every_s` over a link without jitter that carries nothing during the outage."""

    def __init__(self, every_s: float, sizes: tuple[int, int]) -> None:
        self.every_s, self.sizes = every_s, sizes
        self.router, self.state, self.rng = router(UP), RouterState(), random.Random(1)
        self.sent: list[tuple[float, bool, bool]] = []  # at, whether the breaker was open, whether it was answered

    def run(self, until_s: float) -> None:
        now_s = 0.0
        while now_s < until_s:
            self.ask(now_s)
            now_s += self.every_s

    def ask(self, now_s: float) -> None:
        size_bytes = self.rng.randint(*self.sizes)
        decision = self.router.decide(self.state, signals((size_bytes,), at_s=now_s), now_s)
        self.state, granted = self.router.acquire(self.state, decision, now_s)
        assert granted
        if not decision.up_rows:
            return
        is_open = any(breaker.is_open for breaker in self.state.breakers.values())
        self.learn(CloudSent(MODEL, "call", 1, size_bytes), now_s)
        total_s = size_bytes / BYTES_PER_S + RTT_S + SERVER_S
        is_up = not OUTAGE[0] - total_s < now_s < OUTAGE[1]
        in_time = is_up and now_s + total_s <= decision.give_up_s
        self.sent.append((now_s, is_open, in_time))
        if in_time:
            self.learn(CloudAnswered(MODEL, 1, size_bytes, total_s, SERVER_S, call="call"), now_s + total_s)
        else:
            waited_s = decision.give_up_s - now_s
            late = CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, decision.probes, waited_s, "call")
            self.learn(late, decision.give_up_s)

    def learn(self, outcome: CloudSent | CloudAnswered | CloudCallFailed, at_s: float) -> None:
        self.state = self.router.observe(self.state, outcome, at_s)


SIZES = [(1_000, 1_000), (20_000, 40_000), (5_000, 50_000)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("every_s", [0.3, 0.5, 1.0, 2.0])
def test_an_outage_costs_little_and_is_over_soon(every_s: float, sizes: tuple[int, int]) -> None:
    world = Cellular(every_s, sizes)
    world.run(70.0)
    before = [answered for at_s, _, answered in world.sent if at_s < OUTAGE[0] - 1]
    assert sum(before) > 0
    in_vain = [(at_s, is_open) for at_s, is_open, _ in world.sent if OUTAGE[0] <= at_s < OUTAGE[1] - 0.3]
    probes = [at_s for at_s, is_open in in_vain if is_open]
    assert len(in_vain) - len(probes) <= 10
    assert len(probes) <= 2 + (OUTAGE[1] - OUTAGE[0]) / Breaker.LONGEST_WAIT_S
    back_s = next(at_s for at_s, _, answered in world.sent if answered and at_s >= OUTAGE[1])
    assert back_s - OUTAGE[1] <= 5.0 + every_s


def test_a_probe_that_comes_back_lets_the_next_request_find_out() -> None:
    by, state = router(UP), RouterState()
    for at_s in (0.0, 0.0, 0.0):
        state = by.observe(state, CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE), at_s)
    assert by.decide(state, signals(at_s=0.1), 0.1).reason is Reason.BREAKER_OPEN
    state = by.observe(state, LinkProbed(0.05), 0.1)
    decision = by.decide(state, signals(at_s=0.1), 0.1)
    assert (decision.up_rows, len(decision.probes)) == ((0,), 1)
    assert state.link.rtt_s == 0.05


def test_another_way_to_the_cloud_is_unknown_and_what_is_under_way_on_the_old_one_says_nothing_of_it() -> None:
    by = router(UP)
    state = by.observe(RouterState(), CloudSent(MODEL, "old", 1, 50_000), 0.0)
    state = by.observe(state, CloudMoved(), 0.1)
    assert not state.link.is_known
    assert state.backlog.in_flight == ()
    state = by.observe(state, CloudAnswered(MODEL, 1, 50_000, 5.0, 0.01, call="old"), 5.0)
    assert not state.link.is_known


def test_messages_under_way_make_the_next_one_too_late() -> None:
    by, state = router(UP), RouterState()
    for index in range(12):
        size_bytes, at_s = 10_000 + index * 3_000, index * 0.3
        state = by.observe(state, CloudSent(MODEL, "call", 1, size_bytes), at_s)
        total_s = size_bytes / BYTES_PER_S + RTT_S
        state = by.observe(state, CloudAnswered(MODEL, 1, size_bytes, total_s, 0.0, call="call"), at_s + total_s)
    now_s = 4.0
    assert by.decide(state, signals((30_000,), at_s=now_s), now_s).up_rows == (0,)
    busy = by.observe(state, CloudSent(MODEL, "before", 1, 200_000), now_s)
    decision = by.decide(busy, signals((30_000,), at_s=now_s), now_s)
    assert decision.reason is Reason.CLOUD_TOO_SLOW
    assert decision.predicted_cloud_s == pytest.approx(230_000 / BYTES_PER_S + RTT_S, rel=0.05)
    assert by.decide(busy, signals((30_000,), at_s=now_s + 0.9), now_s + 0.9).up_rows == (0,)
