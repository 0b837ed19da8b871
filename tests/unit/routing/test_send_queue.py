"""The queue before the link: who goes first, when, and who leaves it."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, failing, learnt, router, signals
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudDropped,
    CloudHeld,
    CloudSent,
    LinkState,
    Outcome,
    RouterState,
)
from upwell.shared.routing.decide.send_turn import turn
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.scheduling.send_queue import QueuedMessage, SendQueue

RTT_S, BYTES_PER_S = 0.05, 100_000.0
BY = router()


def message(
    call: str = "new", size_bytes: int = 1000, gain: float = 0.5, needed: float = 0.05, within_s: float = 1.0
) -> QueuedMessage:
    return QueuedMessage(call, MODEL, 1, size_bytes, gain, needed, NOW_S + within_s)


def queue(*messages: QueuedMessage) -> SendQueue:
    found = SendQueue()
    for one in messages:
        found = found.joined(one)
    return found


def busy(sent_bytes: int = 0, *waiting: QueuedMessage) -> RouterState:
    """A link of known speed on which so much has just been sent, and what waits for it."""
    sizes = [1000, 20_000] * 4
    past: list[Outcome] = [CloudAnswered(MODEL, 1, size, RTT_S + size / BYTES_PER_S, 0.0) for size in sizes]
    state = learnt(BY, past)
    if sent_bytes:
        state = learnt(BY, [CloudSent(MODEL, "before", 1, sent_bytes)], state=state)
    return replace(state, queue=queue(*waiting))


def test_the_most_gain_per_byte_goes_first_and_what_only_the_cloud_can_answer_before_all() -> None:
    small, dear, owed = message("small", 1000, 0.5), message("dear", 1000, 0.9), message("owed", 90_000, math.inf)
    large = message("large", 50_000, 1.0)
    sooner = message("sooner", 1000, 0.5, within_s=0.5)
    assert [one.call for one in queue(large, small, sooner, owed, dear).waiting] == [
        "owed", "dear", "sooner", "small", "large",
    ]  # fmt: skip
    assert queue(large, owed).owed_bytes == 90_000
    assert queue(small, dear).without("dear") == queue(small)


def test_what_is_worth_as_much_goes_in_the_order_of_coming() -> None:
    assert [one.call for one in queue(message("a"), message("b"), message("c")).waiting] == ["a", "b", "c"]


def test_an_idle_or_unknown_link_makes_nobody_wait() -> None:
    for state in (RouterState(), busy(), replace(RouterState(), queue=queue(message("other")))):
        assert turn(state, message(), NOW_S).at_s == -math.inf


def test_a_message_waits_until_what_was_sent_leaves_within_a_round_trip() -> None:
    state = busy(50_000)
    waits_until_s = turn(state, message(), NOW_S).at_s
    assert waits_until_s == pytest.approx(NOW_S + 0.5 - RTT_S, abs=1e-6)
    for at_s in (waits_until_s + 1e-6, waits_until_s - 5e-5):  # or it would be asked again at once, for ever
        assert turn(state, message(), at_s).at_s == -math.inf
    assert turn(busy(4000), message(), NOW_S).at_s == -math.inf  # within the headroom


def test_an_answer_or_a_cancelled_call_frees_the_link_at_once() -> None:
    answered = learnt(BY, [CloudAnswered(MODEL, 1, 50_000, 0.1, 0.0, call="before")], NOW_S + 0.1, busy(50_000))
    assert turn(answered, message(), NOW_S + 0.1).at_s == -math.inf
    state = learnt(BY, [CloudSent(MODEL, "next", 1, 30_000)], state=busy(50_000))
    assert turn(state, message(), NOW_S).at_s == pytest.approx(NOW_S + 0.8 - RTT_S, abs=1e-6)
    state = learnt(BY, [CloudDropped(MODEL, call="next")], state=state)  # nothing of it had left
    assert turn(state, message(), NOW_S).at_s == pytest.approx(NOW_S + 0.5 - RTT_S, abs=1e-6)


def test_who_is_not_first_waits_for_those_who_are_until_it_would_be_late() -> None:
    first, last = message("first", 1000, 0.9), message("last", 20_000, 0.9)
    state = busy(50_000, first, last)
    assert turn(state, first, NOW_S).at_s == pytest.approx(NOW_S + 0.45, abs=1e-6)
    late_s = turn(state, last, NOW_S).at_s
    assert late_s == pytest.approx(NOW_S + 1.0 - RTT_S - 0.2, abs=1e-6)
    for at_s in (late_s, late_s + 1e-6):  # at the time that it was given, or it would be asked again at once for ever
        assert turn(state, last, at_s) == (-math.inf, Reason.CLOUD_TOO_SLOW)
    freed = learnt(BY, [CloudSent(MODEL, "first", 1, 1000)], state=state)
    assert freed.queue == queue(last)
    assert learnt(BY, [CloudDropped(MODEL, call="first")], state=state).queue == queue(last)


def test_what_is_late_already_holds_nobody_up() -> None:
    gone = message("gone", 1, 1.0, within_s=-0.1)
    assert turn(busy(0, gone), message(), NOW_S).at_s == -math.inf


def test_who_has_waited_stays_if_something_is_in_the_way_by_now() -> None:
    waits = message("waits", 1000, needed=0.5)
    free = replace(busy(), queue=queue(waits))
    assert turn(free, waits, NOW_S) == (-math.inf, None)
    assert turn(free, waits, NOW_S + 0.95).obstacle is Reason.CLOUD_TOO_SLOW  # by the chance that is left
    assert turn(learnt(BY, [CloudHeld(MODEL, 5.0)], state=free), waits, NOW_S).obstacle is Reason.CLOUD_EXHAUSTED
    cut = replace(free, breakers=failing(BY).breakers)
    assert turn(cut, waits, NOW_S).obstacle is Reason.BREAKER_OPEN
    plain = message("plain", 1000, needed=math.nan)
    free = replace(free, queue=queue(plain))
    assert turn(free, plain, NOW_S).obstacle is None
    assert turn(free, plain, NOW_S + 0.95).obstacle is Reason.CLOUD_TOO_SLOW  # by the most likely time


def test_a_request_that_only_the_cloud_can_answer_is_refused_at_once_where_its_like_wait_too_long() -> None:
    asked = signals([10_000], has_edge=False, caller_deadline_s=NOW_S + 0.5)
    by = router("defaults: {deadline: 10s}")
    assert not by.decide(busy(), asked, NOW_S).refusal
    assert by.decide(busy(0, message("owed", 50_000, math.inf)), asked, NOW_S).refusal
    assert not by.decide(busy(0, message("other", 50_000, 1.0)), asked, NOW_S).refusal  # it goes before this one
    assert by.decide(busy(), asked, NOW_S).gain == math.inf


def test_of_the_time_that_is_left_when_its_turn_comes_the_cloud_takes_its_part() -> None:
    slow = learnt(BY, [CloudAnswered(MODEL, 1, 1000, RTT_S + 0.01 + 0.5, 0.5) for _ in range(8)], state=busy())
    waits = message("waits", 20_000, needed=0.5, within_s=0.6)
    for state, obstacle in ((busy(), None), (slow, Reason.CLOUD_TOO_SLOW)):
        assert turn(replace(state, queue=queue(waits)), waits, NOW_S).obstacle is obstacle


def test_a_message_that_waited_is_no_probe_even_where_the_breaker_would_take_one() -> None:
    waits = message("waits", 1000, needed=math.nan, within_s=10.0)
    cut = replace(busy(), queue=queue(waits), breakers=failing(BY).breakers)
    due_s = NOW_S + 5.0
    assert BY.decide(cut, signals([1000], at_s=due_s, has_edge=False), due_s).probes
    assert turn(cut, waits, due_s).obstacle is Reason.BREAKER_OPEN


def test_a_message_waits_for_the_link_that_it_goes_by() -> None:
    other = LinkState(**{one.name: getattr(busy(50_000), one.name) for one in fields(LinkState)})
    state = replace(busy(), interface="wlan", others={"wwan": other})
    assert turn(state, message(), NOW_S).at_s == -math.inf
    assert turn(state, replace(message(), interface="wwan"), NOW_S).at_s > NOW_S
