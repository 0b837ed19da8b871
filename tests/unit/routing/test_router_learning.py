"""What the router makes of outcomes: samples, breakers, probes, and how soon it is itself again after trouble."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, failing, known, learnt, router, signals
from upwell.shared.routing.decide.edge_time import LONG_SILENCE_S
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    LINK,
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    Decision,
    EdgeRan,
    RouterState,
    Signals,
)
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.estimators.run_and_answer_times import FRESH_S
from upwell.shared.routing.reasons import CALLERS_FAULTS, CLOUD_FAILURES, DEGRADED, LINK_FAILURES, Plan, Reason

UP = "defaults: {deadline: 1s}\nrules: [{name: up, match: {}, route: cloud}]"
RECOVERY_S = 5.0
"""After this long the router must have noticed that a side is well again."""


def answered(total_s: float = 0.1, server_s: float | None = 0.04, is_first: bool = False) -> CloudAnswered:
    return CloudAnswered(MODEL, 1, 1000, total_s, server_s, is_first)


def test_an_edge_run_is_a_sample_of_its_model_and_nothing_else() -> None:
    state = learnt(router(), [EdgeRan(MODEL, 3, 0.2)])
    assert list(state.edge) == [MODEL]
    assert state.edge[MODEL].windows[4].p50_s == 0.2
    assert (state.cloud, state.breakers, state.link.samples) == ({}, {}, ())


def test_an_answer_is_split_into_the_servers_time_and_the_links() -> None:
    state = learnt(router(), [answered()])
    assert state.cloud[MODEL].windows[1].p50_s == 0.04
    assert (state.link.samples[0].sent_bytes, state.link.samples[0].network_s) == pytest.approx((1000, 0.06))


def test_an_answer_without_server_times_is_all_link() -> None:
    state = learnt(router(), [answered(server_s=None)])
    assert state.cloud[MODEL].windows[1].p50_s == 0.0
    assert [(sample.sent_bytes, sample.network_s) for sample in state.link.samples] == [(1000, 0.1)]


@pytest.mark.parametrize("server_s", [0.2, 1e9, 1e300])
def test_a_server_that_claims_more_time_than_passed_is_believed_no_more_than_that(server_s: float) -> None:
    by = router(UP)
    state = learnt(by, [answered(0.1, server_s)] * 5)
    assert by.decide(state, signals(), NOW_S).predicted_cloud_s == pytest.approx(0.1)


def test_the_first_answer_on_a_connection_is_no_sample_but_closes_the_breaker() -> None:
    by = router()
    state = by.observe(failing(by), answered(is_first=True), NOW_S + 1)
    assert (state.link.samples, state.cloud) == ((), {})
    assert not any(breaker.is_open for breaker in state.breakers.values())


@pytest.mark.parametrize("reason", sorted(CLOUD_FAILURES))
def test_a_failure_is_never_a_sample(reason: Reason) -> None:
    by = router()
    before = known(by, edge_s=0.01, cloud_s=0.1)
    after = learnt(by, [CloudCallFailed(MODEL, reason), CloudDropped(MODEL)], state=before)
    assert (after.link, after.cloud, after.edge) == (before.link, before.cloud, before.edge)


@pytest.mark.parametrize("reason", sorted(CLOUD_FAILURES - CALLERS_FAULTS))
def test_a_failure_counts_for_the_link_or_for_the_model(reason: Reason) -> None:
    state = failing(router(), 3, reason)
    key, other = (LINK, MODEL) if reason in LINK_FAILURES else (MODEL, LINK)
    assert state.breakers[key].is_open
    assert not state.breakers.get(other, Breaker()).is_open


def test_the_failures_of_the_link_are_those_that_say_nothing_of_a_model() -> None:
    of_the_link = {Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_UNAUTHENTICATED, Reason.CLOUD_CERTIFICATE}
    assert of_the_link == LINK_FAILURES < CLOUD_FAILURES < DEGRADED
    before_asking = DEGRADED - CLOUD_FAILURES
    assert before_asking == {Reason.BREAKER_OPEN, Reason.CLOUD_TOO_SLOW}


def test_an_answer_between_failures_starts_their_count_anew() -> None:
    by = router()
    failure = CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE)
    garbage = CloudCallFailed(MODEL, Reason.CLOUD_GARBAGE)
    state = learnt(by, [failure, failure, garbage, garbage, answered(), failure, failure, garbage, garbage])
    assert not any(breaker.is_open for breaker in state.breakers.values())
    assert learnt(by, [failure], state=state).breakers[LINK].is_open
    assert learnt(by, [garbage], state=state).breakers[MODEL].is_open


def test_an_answer_with_nothing_to_close_leaves_the_breakers_alone() -> None:
    by = router()
    state = learnt(by, [CloudCallFailed("another", Reason.CLOUD_GARBAGE)])
    assert by.observe(state, answered(), NOW_S).breakers is state.breakers


def test_a_call_that_was_dropped_is_neither_failure_nor_success() -> None:
    by = router()
    assert learnt(by, [CloudDropped(MODEL)] * 10) == RouterState()
    two = failing(by, 2)
    assert learnt(by, [CloudDropped(MODEL)], state=two).breakers == two.breakers


def probing(by: Router, state: RouterState, at_s: float, **about: Any) -> tuple[RouterState, Decision]:
    """The state and the decision of a request that goes up as a probe."""
    decision = by.decide(state, signals(at_s=at_s, **about), at_s)
    assert decision.probes
    state, granted = by.acquire(state, decision, at_s)
    assert granted
    return state, decision


def test_a_probe_is_granted_once() -> None:
    by = router(UP)
    state = failing(by)
    first, second = (by.decide(state, signals(at_s=NOW_S + 0.6), NOW_S + 0.6) for _ in range(2))
    assert first.probes == second.probes == (LINK,)
    state, granted = by.acquire(state, first, NOW_S + 0.6)
    assert granted
    state, granted = by.acquire(state, second, NOW_S + 0.6)
    assert not granted
    assert by.decide(state, signals(at_s=NOW_S + 0.6), NOW_S + 0.6).reason is Reason.BREAKER_OPEN


def test_a_decision_that_probes_two_breakers_gets_both_or_neither() -> None:
    by = router(UP)
    state = learnt(by, [CloudCallFailed(MODEL, Reason.CLOUD_ERROR)] * 3, state=failing(by))
    at_s = NOW_S + 0.6
    decision = by.decide(state, signals(at_s=at_s), at_s)
    assert decision.probes == (LINK, MODEL)
    taken, _ = probing(by, state, at_s, model="another")
    refused, granted = by.acquire(taken, decision, at_s)
    assert (refused, granted) == (taken, False)
    both, granted = by.acquire(state, decision, at_s)
    assert granted
    assert all(both.breakers[key].probe_since_s == at_s for key in (LINK, MODEL))


def test_a_probe_taken_where_the_breaker_closed_meanwhile_is_an_ordinary_call() -> None:
    by = router(UP)
    state = failing(by)
    decision = by.decide(state, signals(at_s=NOW_S + 0.6), NOW_S + 0.6)
    closed = by.observe(state, answered(), NOW_S + 0.6)
    assert by.acquire(closed, decision, NOW_S + 0.6) == (closed, True)


def test_a_decision_without_probes_takes_nothing() -> None:
    by = router(UP)
    decision = by.decide(RouterState(), signals(), NOW_S)
    assert by.acquire(RouterState(), decision, NOW_S) == (RouterState(), True)


def test_an_answer_to_the_probe_closes_both_breakers() -> None:
    by = router(UP)
    state, _ = probing(by, failing(by), NOW_S + 0.6)
    state = by.observe(state, answered(), NOW_S + 0.7)
    assert by.decide(state, signals(at_s=NOW_S + 0.7), NOW_S + 0.7).probes == ()


def test_a_failed_probe_waits_twice_as_long() -> None:
    by = router(UP)
    state, _ = probing(by, failing(by), NOW_S + 0.6)
    state = by.observe(state, CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE, (LINK,)), NOW_S + 0.6)
    for at_s, reason in ((NOW_S + 1.59, Reason.BREAKER_OPEN), (NOW_S + 1.61, Reason.RULE)):
        assert by.decide(state, signals(at_s=at_s), at_s).reason is reason


def test_a_probe_that_finds_one_model_broken_frees_the_link_for_the_others() -> None:
    by = router(UP)
    state, _ = probing(by, failing(by), NOW_S + 0.6)
    state = by.observe(state, CloudCallFailed(MODEL, Reason.CLOUD_MODEL_MISSING, (LINK,)), NOW_S + 0.6)
    assert by.decide(state, signals(at_s=NOW_S + 0.6, model="another"), NOW_S + 0.6).up_rows == (0,)


def test_a_probe_whose_caller_left_frees_its_slot() -> None:
    by = router(UP)
    state, _ = probing(by, failing(by), NOW_S + 0.6)
    state = by.observe(state, CloudDropped(MODEL, (LINK,)), NOW_S + 0.61)
    assert by.decide(state, signals(at_s=NOW_S + 0.62), NOW_S + 0.62).up_rows == (0,)


STRAGGLERS = [
    CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE),
    CloudCallFailed("another", Reason.CLOUD_GARBAGE),
    CloudDropped(MODEL),
]


@pytest.mark.parametrize("straggler", STRAGGLERS, ids=lambda outcome: type(outcome).__name__)
def test_the_end_of_a_call_that_was_no_probe_lets_no_second_probe_up(straggler: CloudCallFailed | CloudDropped) -> None:
    by = router(UP)
    state, _ = probing(by, failing(by), NOW_S + 0.6)
    state = by.observe(state, straggler, NOW_S + 0.7)
    for after_s in (0.71, 1.8, 3.0):
        decision = by.decide(state, signals(at_s=NOW_S + after_s), NOW_S + after_s)
        assert decision.up_rows == (), f"a second probe after {after_s} s, the first is still under way"


@dataclass
class World:
    """A device and a cloud of known speed, asked steadily; counts what became of the requests."""

    by: Router
    state: RouterState
    at_s: float = NOW_S
    every_s: float = 0.05

    def ask(self, request: Callable[[float], Signals], edge_s: float, cloud: CloudAnswered) -> Decision:
        """One request, its decision, and the outcomes that follow from it, learnt at once."""
        decision = self.by.decide(self.state, request(self.at_s), self.at_s)
        if decision.up_rows:
            self.state, _ = self.by.acquire(self.state, decision, self.at_s)
            self.state = self.by.observe(self.state, cloud, self.at_s)
        elif not decision.refusal:
            self.state = self.by.observe(self.state, EdgeRan(MODEL, 1, edge_s), self.at_s)
        self.at_s += self.every_s
        return decision

    def run(
        self, seconds: float, request: Callable[[float], Signals], edge_s: float, cloud: CloudAnswered
    ) -> list[Decision]:
        """That for some seconds."""
        return [self.ask(request, edge_s, cloud) for _ in range(round(seconds / self.every_s))]


def requests(**about: Any) -> Callable[[float], Signals]:
    return lambda at_s: signals(at_s=at_s, **about)


def test_a_device_that_was_slow_for_a_moment_is_used_again_soon() -> None:
    by = router("defaults: {deadline: 100ms}")
    world = World(by, learnt(by, [EdgeRan(MODEL, 1, 0.005)] * 64))
    world.state = learnt(by, [EdgeRan(MODEL, 1, 0.15)] * 32, state=world.state)
    world.run(RECOVERY_S, requests(has_cloud=False), 0.005, answered())
    later = world.run(10.0, requests(has_cloud=False), 0.005, answered())
    refused = sum(bool(decision.refusal) for decision in later)
    assert refused == 0, f"{refused} of {len(later)} requests that the device could have answered in 5 ms"


def test_a_cloud_that_was_slow_for_a_moment_is_used_again_soon() -> None:
    by = router(UP)
    patient = learnt(by, [EdgeRan(MODEL, 1, 0.005), *[answered(0.6, 0.58)] * 64])

    def hasty(at_s: float) -> Signals:
        return signals(at_s=at_s, caller_deadline_s=at_s + 0.3)

    world = World(by, patient)
    assert world.ask(hasty, 0.005, answered()).reason is Reason.CLOUD_TOO_SLOW
    world.run(RECOVERY_S, hasty, 0.005, answered(0.02, 0.01))
    later = world.run(10.0, hasty, 0.005, answered(0.02, 0.01))
    kept = sum(not decision.up_rows for decision in later)
    assert kept == 0, f"{kept} of {len(later)} requests that the cloud would have answered in 20 ms"


@pytest.mark.parametrize("slow_share", [0.03, 0.05, 0.1])
def test_a_device_with_a_few_slow_runs_refuses_no_more_than_a_few_requests(slow_share: float) -> None:
    by = router("defaults: {deadline: 100ms}")
    world, chance = World(by, learnt(by, [EdgeRan(MODEL, 1, 0.005)] * 64)), random.Random(0)
    refused, asked = 0, 2000
    for _ in range(asked):
        edge_s = 0.15 if chance.random() < slow_share else 0.005
        refused += bool(world.ask(requests(has_cloud=False), edge_s, answered()).refusal)
    assert refused / asked <= slow_share


STALLED_S = 2.488


def stalled(by: Router, state: RouterState, from_s: float) -> RouterState:
    return learnt(by, [EdgeRan(MODEL, 1, STALLED_S)], from_s + STALLED_S, state)


@pytest.mark.parametrize("idle_s", [0.01, 30.0])
def test_after_one_stalled_run_a_fast_device_refuses_nobody(idle_s: float) -> None:
    by = router("defaults: {deadline: 1s}")
    state = stalled(by, learnt(by, [EdgeRan(MODEL, 1, 0.005)] * 64), NOW_S + idle_s)
    world = World(by, state, NOW_S + idle_s + STALLED_S)
    assert not any(decision.refusal for decision in world.run(5.0, requests(has_cloud=False), 0.005, answered()))


def test_an_only_run_that_stalled_is_believed_no_longer_than_while_it_is_fresh() -> None:
    by = router("defaults: {deadline: 1s}")
    once = stalled(by, RouterState(), NOW_S)
    for waited_s, is_refused in ((FRESH_S - 0.01, True), (FRESH_S + 0.01, False)):
        at_s = NOW_S + STALLED_S + waited_s
        assert bool(by.decide(once, signals(at_s=at_s, has_cloud=False), at_s).refusal) is is_refused


def test_a_device_that_is_slow_after_a_pause_refuses_after_its_second_run() -> None:
    by = router("defaults: {deadline: 1s}")
    once = stalled(by, learnt(by, [EdgeRan(MODEL, 1, 0.005)] * 64), NOW_S + 30.0)
    at_s = NOW_S + 30.0 + STALLED_S
    assert not by.decide(once, signals(at_s=at_s, has_cloud=False), at_s).refusal
    twice = stalled(by, once, at_s)
    assert by.decide(twice, signals(at_s=at_s + STALLED_S, has_cloud=False), at_s + STALLED_S).refusal


def test_a_device_that_was_slow_at_the_start_is_not_refused_for_ever() -> None:
    by = router("defaults: {deadline: 100ms}")
    world = World(by, learnt(by, [EdgeRan(MODEL, 1, 0.15)] * 5))  # the warm-up, on a machine that was still booting
    world.run(LONG_SILENCE_S + 0.1, requests(has_cloud=False), 0.005, answered())
    later = world.run(5.0, requests(has_cloud=False), 0.005, answered())
    assert not any(decision.refusal for decision in later)


def test_a_device_that_is_always_too_slow_finds_out_that_the_cloud_is_not() -> None:
    by = router("defaults: {deadline: 100ms}")
    world = World(by, learnt(by, [EdgeRan(MODEL, 1, 0.5)] * 5))
    world.run(RECOVERY_S, requests(), 0.5, answered(0.02, 0.01))
    later = world.run(10.0, requests(), 0.5, answered(0.02, 0.01))
    lifted = sum(bool(decision.up_rows) for decision in later)
    assert lifted > 0.9 * len(later)


def timeouts(by: Router, state: RouterState, waited_s: float, count: int = 3) -> RouterState:
    """After that many calls that nobody could wait longer for."""
    failure = CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, waited_s=waited_s)
    return learnt(by, [failure] * count, state=state)


def test_callers_in_a_hurry_do_not_cut_off_those_who_can_wait() -> None:
    by = router(UP)
    state = timeouts(by, RouterState(), 0.004)
    hasty, patient = (signals(caller_deadline_s=NOW_S + left_s) for left_s in (0.008, 0.3))
    assert by.decide(state, hasty, NOW_S).reason is Reason.BREAKER_OPEN
    decision = by.decide(state, patient, NOW_S)
    assert (decision.up_rows, decision.probes) == ((0,), ())
    waited_in_vain = timeouts(by, state, 0.27, count=1)
    assert by.decide(waited_in_vain, patient, NOW_S).reason is Reason.BREAKER_OPEN


def test_a_model_whose_cloud_is_slow_leaves_the_others_their_cloud() -> None:
    by = router(UP)
    state = timeouts(by, RouterState(), 0.09)
    assert by.decide(state, signals(model="another", caller_deadline_s=NOW_S + 0.1), NOW_S).up_rows == (0,)


def test_what_one_caller_did_wrong_is_nobody_elses_trouble() -> None:
    by = router(UP)
    state = learnt(by, [CloudCallFailed(MODEL, Reason.CLOUD_INVALID_ARGUMENT)] * 10)
    assert by.decide(state, signals(), NOW_S).up_rows == (0,)


def test_a_slow_sample_long_ago_is_tried_again() -> None:
    by = router("defaults: {deadline: 100ms}")
    state = learnt(by, [EdgeRan(MODEL, 1, 0.5)])
    assert by.decide(state, signals(has_cloud=False), NOW_S).refusal
    assert by.decide(state, signals(has_cloud=False, at_s=NOW_S + 11), NOW_S + 11).refusal == ""


def test_callers_with_no_time_do_not_cut_the_others_off() -> None:
    by = router(UP)
    state = RouterState()
    for index in range(10):
        at_s = NOW_S + index * 0.05
        hasty = by.decide(state, signals(at_s=at_s, caller_deadline_s=at_s + 0.001), at_s)
        if hasty.up_rows:
            state = by.observe(state, CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE), at_s)
    assert by.decide(state, signals(at_s=NOW_S + 0.5), NOW_S + 0.5).plan is Plan.CLOUD


def test_learning_a_thousand_models_changes_no_other() -> None:
    by = router(UP)
    state = learnt(by, [EdgeRan(f"m{index}", 1, 0.1) for index in range(1000)])
    assert math.isnan(by.decide(state, signals(), NOW_S).predicted_edge_s)
