"""The predicted time of a message against its parts, and what of them an outcome corrects."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, failing, learnt, router, signals
from upwell.shared.routing.decide.offload import chance_of, predict
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudHeld,
    CloudSent,
    LinkProbed,
    Outcome,
    RouterState,
    SplitRoute,
)
from upwell.shared.routing.estimators.link_estimate import fade
from upwell.shared.routing.estimators.uplink_backlog import Backlog, InFlight
from upwell.shared.routing.reasons import Reason

RTT_S, BYTES_PER_S, SERVER_S = 0.05, 100_000.0, 0.02
BY = router()


def known(spread: float = 1.0) -> RouterState:
    """A link and a cloud of known speed; the last answers took `spread` times as long as the others."""
    past: list[Outcome] = []
    for index in range(12):
        size_bytes = 1000 if index % 2 else 20_000
        took_s = (RTT_S + size_bytes / BYTES_PER_S) * (spread if index > 9 else 1.0) + SERVER_S
        past.append(CloudAnswered(MODEL, 1, size_bytes, took_s, SERVER_S))
    return learnt(BY, past)


def test_behind_an_overdue_message_the_message_itself_is_slower_too() -> None:
    state = replace(known(), backlog=Backlog().sent(InFlight("before", 10_000, NOW_S), 1 / BYTES_PER_S))
    at_s = NOW_S + 0.2 + RTT_S  # twice as long as expected, so half the rate
    wait_s, s_per_byte = state.backlog.wait_s(at_s, state.link.inverse_bandwidth_s_per_byte, state.link.rtt_s)
    assert s_per_byte == pytest.approx(2 / BYTES_PER_S, rel=1e-3)
    found = predict(state, MODEL, 1, 20_000, 0.5, at_s).usual_s
    assert found == pytest.approx(wait_s + RTT_S + 20_000 * s_per_byte + SERVER_S, rel=1e-3)


@pytest.mark.parametrize("silence_s", [0.0, 2.5, 4.0])
def test_after_a_silence_the_times_of_link_and_cloud_and_their_doubt_fade(silence_s: float) -> None:
    state, share = known(spread=2.0), fade(silence_s)
    now_s = state.link.last_at_s + silence_s
    found = predict(state, MODEL, 1, 20_000, 0.9, now_s)
    assert state.link.error(0.9) > 1.2
    assert found.server_s == pytest.approx(SERVER_S * share)
    assert found.usual_s == pytest.approx((state.link.expect_s(20_000) + SERVER_S) * share)
    assert found.sure_s == pytest.approx(found.usual_s * state.link.error(0.9) ** share)


def test_after_a_silence_the_round_trip_leaves_more_of_the_time_to_the_message() -> None:
    """Else a link whose round trip once filled the whole time would never be tried again."""
    state = known()
    state = replace(state, link=replace(state.link, rtt_s=0.3))
    fresh, later = (chance_of(state, 2000, 0.25, state.link.last_at_s + silence_s).in_time for silence_s in (0.0, 8.0))
    assert fresh < 0.3
    assert later > 0.5


def test_a_message_sent_on_a_faded_prediction_is_judged_by_the_whole_one() -> None:
    state = known()
    at_s = state.link.last_at_s + 3.0
    (sent,) = BY.observe(state, CloudSent(MODEL, "call", 1, 20_000), at_s).backlog.in_flight
    assert sent.hoped_s == pytest.approx(sent.expected_s * state.link.fading(at_s))
    assert sent.hoped_s < 0.6 * sent.expected_s
    came = BY.observe(state, CloudSent(MODEL, "call", 1, 20_000), at_s)
    answer = CloudAnswered(MODEL, 1, 20_000, sent.expected_s, SERVER_S, call="call")
    assert BY.observe(came, answer, at_s + sent.expected_s).link.errors[-1] == pytest.approx(1.0)


def late(state: RouterState, sent_s: float, waited_s: float) -> RouterState:
    """After a message of 20 kB that was given up."""
    state = BY.observe(state, CloudSent(MODEL, "call", 1, 20_000), sent_s)
    return BY.observe(state, CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, (), waited_s, "call"), sent_s + waited_s)


def test_a_late_message_that_was_sent_on_a_faded_prediction_ends_the_fading() -> None:
    state = known()
    sent_s = state.link.last_at_s + 4.0
    refuted = late(state, sent_s, 0.15)  # longer than hoped for, no longer than the whole prediction
    assert refuted.link.fading(sent_s + 0.15) == 1.0
    assert late(state, sent_s, 0.01).link.last_at_s == state.link.last_at_s


def test_the_clouds_own_time_is_no_bound_on_the_link() -> None:
    quick = known()
    slow = learnt(BY, [CloudAnswered(MODEL, 1, 1000, RTT_S + 0.01 + 0.3, 0.3) for _ in range(8)], state=quick)
    assert late(quick, NOW_S, 0.5).link.samples[-1].is_bound
    assert late(slow, NOW_S, 0.5).link.samples == slow.link.samples


def test_an_answer_that_two_requests_may_have_brought_is_no_sample() -> None:
    state = BY.observe(known(), CloudSent(MODEL, "call", 1, 20_000), NOW_S)
    answer = CloudAnswered(MODEL, 1, 20_000, 0.9, 0.0, call="call")
    assert BY.observe(state, answer, NOW_S + 0.9).link != state.link
    assert BY.observe(state, replace(answer, hedged=True), NOW_S + 0.9).link == state.link


def test_an_empty_call_behind_a_message_is_no_sample_of_the_round_trip() -> None:
    state, probe = known(), LinkProbed(0.9)
    behind = BY.observe(state, CloudSent(MODEL, "call", 1, 20_000), NOW_S)
    assert BY.observe(state, probe, NOW_S + 0.9).link != state.link
    assert BY.observe(behind, probe, NOW_S + 0.9).link == state.link


@pytest.mark.parametrize(("waited_s", "failures"), [(0.3, 0.5), (math.inf, 1.0)])
def test_a_late_message_that_was_not_likely_in_time_is_half_a_failure(waited_s: float, failures: float) -> None:
    late_one = CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, (), waited_s, chance=0.5)
    assert BY.observe(known(), late_one, NOW_S).breakers[MODEL].failures == failures


@pytest.mark.parametrize(("size_bytes", "is_bound"), [(60_000, True), (500, False)])
def test_beside_an_open_breaker_only_large_messages_that_are_late_say_that_the_link_is_slower(
    size_bytes: int, is_bound: bool
) -> None:
    state = known()
    for index in range(4):
        before, call = state, str(index)
        state = BY.observe(state, CloudSent(MODEL, call, 1, size_bytes), NOW_S + index)
        late_one = CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, (), 0.9, call, frees_link=True)
        state = BY.observe(state, late_one, NOW_S + index + 0.9)
    assert before.breakers[MODEL].is_open
    assert (state.link != before.link) is is_bound


def test_a_probe_that_the_cloud_has_no_room_for_counts_although_it_asked_for_a_pause() -> None:
    state = learnt(BY, [CloudHeld(MODEL, 5.0)], state=failing(BY, reason=Reason.CLOUD_EXHAUSTED))
    wait_s = state.breakers[MODEL].wait_s
    known_one, probe = (CloudCallFailed(MODEL, Reason.CLOUD_EXHAUSTED, probes) for probes in ((), (MODEL,)))
    assert BY.observe(state, known_one, NOW_S).breakers[MODEL].wait_s == wait_s
    assert BY.observe(state, probe, NOW_S).breakers[MODEL].wait_s == 2 * wait_s


def test_a_tail_that_never_ran_takes_what_its_plan_says_for_each_row() -> None:
    by = router("rules: [{name: cut, match: {}, route: split}]")
    cut = SplitRoute("cut", 1000, head_s=0.01, tail_s=0.1)
    one, two = (
        by.decide(known(), signals(sizes, split_routes=(cut,), caller_deadline_s=NOW_S + 9.0), NOW_S).predicted_cloud_s
        for sizes in ((1000,), (1000, 1000))
    )
    assert two - one == pytest.approx(0.01 + 0.1 + 1000 / BYTES_PER_S)


def test_nothing_known_of_the_link_is_no_prediction() -> None:
    assert math.isnan(predict(RouterState(), MODEL, 1, 20_000, 0.9, NOW_S).usual_s)
