"""Rows on their way up: what the router is told of each message, one more try after a failure, and hedges."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.faults.scene import until
from tests.faults.stalling import INPUTS, SentAttempt, StallingCloud, UplinkSender, decision, sender, serving
from tests.unit.edge.request_traces import record, signals
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.shared.errors import InvalidRequest, Refused, Unavailable
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.http.server.server import start_http_server
from upwell.shared.routing.decide.router_state import CloudAnswered, CloudCallFailed, CloudDropped, CloudHeld, CloudSent
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.policy.settings import Settings
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason
from upwell.shared.telemetry.tracing import Trace

LIMIT_S = 10.0
RETRY = Settings(on_cloud_failure=dict.fromkeys(CLOUD_FAILURES, "retry"))


@contextmanager
def clouds(*served: FakeDataplane, hedges: int = 0) -> Iterator[UplinkSender]:
    with serving(*served) as addresses, sender(addresses, hedges=hedges) as made:
        yield made


def reason(attempt: SentAttempt) -> Reason | None:
    return attempt.outcome.reason if isinstance(attempt.outcome, CloudFailure) else None


# --- What is told


def test_an_answer_is_told_with_what_it_cost_both_ways() -> None:
    with clouds(FakeDataplane()) as it:
        attempt = it.ask(decision())
        assert isinstance(attempt.outcome, CloudReply)
        sent, answered = it.cell.outcomes
        assert isinstance(sent, CloudSent)
        assert isinstance(answered, CloudAnswered)
        assert sent.call == answered.call
        assert sent.sent_bytes == answered.sent_bytes == it.sent_bytes > INPUTS["fp32"].nbytes
        assert answered.received_bytes > INPUTS["fp32"].nbytes
        assert (sent.rows, answered.is_first, answered.hedged) == (1, True, False)
        assert 0 < answered.total_s <= attempt.elapsed_s


def test_a_row_that_was_kept_and_answered_in_the_end_has_not_missed_the_cloud() -> None:
    """Else it would be spooled, and answered twice."""
    kept = replace(decision(), up_rows=(), kept_rows=(0,), obstacle=Reason.BREAKER_OPEN)
    with clouds(FakeDataplane()) as it:
        answered = it.ask(decision()).attempt
    assert record("one", signals(), first=kept).missed == {0: Reason.BREAKER_OPEN}
    assert record("one", signals(), first=kept, attempts=[answered]).missed == {}


def test_calls_have_names_of_their_own_though_requests_share_an_id() -> None:
    with clouds(FakeDataplane()) as it:
        for _ in range(3):
            it.ask(decision())
        assert it.cell.story() == [(kind, n) for n in range(3) for kind in ("CloudSent", "CloudAnswered")]
        assert len({one.call for one in it.cell.outcomes if isinstance(one, CloudSent)}) == 3


def test_a_failure_a_drop_and_a_late_call_each_end_what_was_sent() -> None:
    cloud = FakeDataplane(failure=Refused("full"))
    with clouds(cloud) as it:
        assert reason(it.ask(decision())) is Reason.CLOUD_EXHAUSTED
        cloud.hold()
        it.send(decision()).drop()
        late = it.ask(decision(within_s=0.1))
        assert reason(late) is Reason.CLOUD_DEADLINE
        kinds = ["CloudCallFailed", "CloudDropped", "CloudCallFailed"]
        assert it.cell.story() == [one for n, kind in enumerate(kinds) for one in (("CloudSent", n), (kind, n))]
        last = it.cell.outcomes[-1]
        assert isinstance(last, CloudCallFailed)
        assert 0.05 < last.waited_s <= late.elapsed_s


@pytest.mark.parametrize(("scheme", "frees"), [("", False), ("http://", True)])
def test_what_is_given_up_frees_the_link_over_http_alone(scheme: str, frees: bool) -> None:
    cloud = FakeDataplane()
    cloud.hold()
    server = start_http_server(cloud, ["127.0.0.1:0"], max_workers=4) if scheme else None
    try:
        with serving(cloud) as addresses, sender([scheme + server.addresses[0]] if server else addresses) as it:
            it.send(decision()).drop()
            assert reason(it.ask(decision(within_s=0.1))) is Reason.CLOUD_DEADLINE
            ends = [one for one in it.cell.outcomes if isinstance(one, CloudDropped | CloudCallFailed)]
            assert [one.frees_link for one in ends] == [frees] * 2
    finally:
        cloud.release()
        if server is not None:
            server.stop(0.0)


def test_why_nothing_could_be_sent_is_told_and_the_words_of_the_cloud_are_not() -> None:
    def detail(it: UplinkSender) -> str:
        it.ask(decision())
        failed = it.cell.outcomes[-1]
        assert isinstance(failed, CloudCallFailed)
        return failed.detail

    with clouds(FakeDataplane(failure=Unavailable("the request says 42"))) as it:
        assert detail(it) == ""
    with sender(["127.0.0.1:1"]) as it:
        assert "failed to connect" in detail(it)


def test_what_cannot_be_sent_frees_its_probe_and_nothing_is_said_to_be_sent() -> None:
    with clouds(FakeDataplane()) as it:
        with pytest.raises(InvalidRequest):
            it.send(decision(probes=("",)), {"fp32": np.ones(2, np.complex64)})
        assert it.cell.outcomes == [CloudDropped("model", ("",))]


def test_the_ban_on_leaving_is_enforced_where_bytes_leave() -> None:
    cloud = FakeDataplane()
    with clouds(cloud, hedges=1) as it:
        attempt = it.send(decision(hedge_after_s=0.0))
        it.cell.deny()
        attempt.hedge()
        attempt.drop()
        assert it.cell.story() == [("CloudSent", 0), ("CloudSent", 1), ("CloudDropped", 1), ("CloudDropped", 0)]
        assert reason(it.ask(decision(probes=("",)))) is Reason.EGRESS_DENIED
        sent, dropped = it.cell.outcomes[-2:]
        assert isinstance(sent, CloudSent)
        assert dropped == CloudDropped("model", ("",), sent.call)
    assert len(cloud.requests) <= 1


# --- One more try


def test_a_failed_call_is_asked_once_more_and_each_attempt_is_told() -> None:
    bad, good = FakeDataplane(failure=Unavailable("draining")), FakeDataplane()
    with clouds(bad, good) as it:
        assert isinstance(it.ask(decision(RETRY)).outcome, CloudReply)
        assert it.cell.story() == [("CloudSent", 0), ("CloudCallFailed", 0), ("CloudSent", 1), ("CloudAnswered", 1)]
        assert (len(bad.requests), len(good.requests)) == (1, 1)
        assert it.sent_bytes == 2 * next(one for one in it.cell.outcomes if isinstance(one, CloudSent)).sent_bytes


def test_a_failure_that_does_not_speak_of_the_endpoint_is_tried_at_the_other_too() -> None:
    full, good = FakeDataplane(failure=Refused("full")), FakeDataplane()
    with clouds(full, good) as it:
        assert isinstance(it.ask(decision(RETRY)).outcome, CloudReply)
        assert (len(full.requests), len(good.requests)) == (1, 1)


def held(it: UplinkSender) -> list[float]:
    return [one.retry_after_s for one in it.cell.outcomes if isinstance(one, CloudHeld)]


def test_a_cloud_that_says_when_to_come_back_is_not_asked_again_before() -> None:
    cloud = FakeDataplane(failure=Refused("full", retry_after_s=0.25))
    with clouds(cloud) as it:
        assert reason(it.ask(decision(RETRY))) is Reason.CLOUD_EXHAUSTED
        assert len(cloud.requests) == 1
        assert held(it) == [0.25]


def test_what_one_endpoint_says_keeps_nobody_from_another() -> None:
    full, good = FakeDataplane(failure=Refused("full", retry_after_s=0.25)), FakeDataplane()
    with clouds(full, good) as it:
        assert isinstance(it.ask(decision(RETRY)).outcome, CloudReply)
        assert held(it) == [0.25]
    with clouds(good, full) as it:
        good.failure = Unavailable("draining")
        assert reason(it.ask(decision(RETRY))) is Reason.CLOUD_EXHAUSTED
        assert held(it) == [0.25]  # requests go there now
        good.failure = full.failure
        it.ask(decision())
        good.failure, full.failure = None, Refused("full")
        assert reason(it.ask(decision())) is Reason.CLOUD_EXHAUSTED
        assert held(it) == [0.25, 0.25]


def test_only_a_refusal_for_lack_of_room_says_when_to_come_back() -> None:
    with clouds(FakeDataplane(failure=Refused("full"))) as it:
        it.ask(decision())
        assert held(it) == []


def test_once_more_is_once() -> None:
    cloud = FakeDataplane(failure=Unavailable("draining"))
    with clouds(cloud) as it:
        assert reason(it.ask(decision(RETRY))) is Reason.CLOUD_UNAVAILABLE
        assert len(cloud.requests) == 2


@pytest.mark.parametrize(
    ("settings", "failure", "how"),
    [
        (Settings(), Unavailable("draining"), {}),
        (RETRY, InvalidRequest("wrong shape"), {}),
        (RETRY, Unavailable("draining"), {"predicted_s": 60.0}),
        (RETRY, Unavailable("draining"), {"probes": ("",)}),
    ],
    ids=["not written", "the request is wrong", "no time is left", "a probe"],
)
def test_nothing_is_asked_again_where_it_may_not_or_cannot_help(
    settings: Settings, failure: Exception, how: dict[str, Any]
) -> None:
    cloud = FakeDataplane(failure=failure)
    with clouds(cloud) as it:
        assert isinstance(it.ask(decision(settings, **how)).outcome, CloudFailure)
        assert len(cloud.requests) == 1


def test_a_late_call_is_not_asked_again() -> None:
    cloud = FakeDataplane()
    cloud.hold()
    with clouds(cloud) as it:
        assert reason(it.ask(decision(RETRY, within_s=0.1))) is Reason.CLOUD_DEADLINE
        assert it.cell.story() == [("CloudSent", 0), ("CloudCallFailed", 0)]


# --- Hedges


@pytest.mark.parametrize("endpoints", [1, 2])
def test_a_stalled_call_is_hedged_and_the_loser_is_cancelled(endpoints: int) -> None:
    first = StallingCloud(lambda number: number == 0)
    other = FakeDataplane()
    with clouds(*[first, other][:endpoints], hedges=5) as it:
        attempt = it.ask(decision(hedge_after_s=0.05))
        assert isinstance(attempt.outcome, CloudReply)
        assert attempt.elapsed_s >= 0.05
        story = [("CloudSent", 0), ("CloudSent", 1), ("CloudAnswered", 1), ("CloudDropped", 0)]
        assert it.cell.story() == story
        answered = it.cell.outcomes[2]
        assert isinstance(answered, CloudAnswered)
        assert answered.hedged
        assert answered.total_s < attempt.elapsed_s
        assert it.sent_bytes == 2 * answered.sent_bytes
        assert first.saw_leave(0)
        assert len(first.requests) + len(other.requests) == 2
        assert it.cell.hedges == 4


def test_where_the_first_call_wins_after_all_the_hedge_is_dropped() -> None:
    hedged = threading.Event()

    def stalls(number: int) -> bool:
        """The first is answered as soon as the other has come."""
        if number == 1:
            hedged.set()
        return number == 1 or not hedged.wait(LIMIT_S)

    cloud = StallingCloud(stalls)
    with clouds(cloud, hedges=1) as it:
        assert isinstance(it.ask(decision(within_s=LIMIT_S, hedge_after_s=0.1)).outcome, CloudReply)
        assert it.cell.story()[2:] == [("CloudAnswered", 0), ("CloudDropped", 1)]
        assert cloud.saw_leave(1)


def test_no_hedge_where_the_answer_is_sooner_or_none_is_granted_or_wanted() -> None:
    cloud = StallingCloud(lambda number: number > 0, stall_s=0.2)
    with clouds(cloud, hedges=1) as it:
        it.ask(decision(hedge_after_s=2.0))
        it.ask(decision())
        it.ask(decision(hedge_after_s=0.05, probes=("",)))
        it.cell.hedges = 0
        it.ask(decision(hedge_after_s=0.05))
        assert len(cloud.requests) == 4
        assert it.cell.story() == [(kind, n) for n in range(4) for kind in ("CloudSent", "CloudAnswered")]


def test_a_look_without_waiting_sends_no_hedge() -> None:
    cloud = StallingCloud(lambda _: True)
    with clouds(cloud, hedges=1) as it:
        attempt = it.send(decision(hedge_after_s=0.0))
        attempt.wait(-math.inf)
        attempt.drop()
        assert it.cell.story() == [("CloudSent", 0), ("CloudDropped", 0)]


def test_two_that_are_late_count_as_one_failure() -> None:
    cloud = StallingCloud(lambda _: True)
    with clouds(cloud, hedges=1) as it:
        attempt = it.ask(decision(within_s=1.0, hedge_after_s=0.05))
        assert reason(attempt) is Reason.CLOUD_DEADLINE
        assert it.cell.story() == [("CloudSent", 0), ("CloudSent", 1), ("CloudDropped", 1), ("CloudCallFailed", 0)]
        assert cloud.saw_leave(0)
        assert cloud.saw_leave(1)


def test_two_whose_own_time_is_up_before_anybody_looks_count_as_one_failure() -> None:
    with clouds(StallingCloud(lambda _: True), hedges=1) as it:
        attempt = it.send(decision(within_s=0.3, hedge_after_s=0.0))
        attempt.wait(time.monotonic() + 0.02)  # and so the second is sent
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        for call in attempt.calls:
            call.on_end(lambda: ended.put(None))
        for _ in range(2):
            ended.get(timeout=LIMIT_S)
        attempt.wait(attempt.attempt.decision.give_up_s)
        attempt.give_up()
        assert reason(attempt) is Reason.CLOUD_DEADLINE
        assert it.cell.story() == [("CloudSent", 0), ("CloudSent", 1), ("CloudDropped", 1), ("CloudCallFailed", 0)]


def test_one_that_is_told_as_late_and_then_given_up_is_traced_once() -> None:
    with clouds(StallingCloud(lambda _: True), hedges=1) as it:
        trace = Trace.begin(None, time.monotonic())
        it.context = replace(it.context, trace=trace)
        attempt = it.send(decision(within_s=0.3, hedge_after_s=0.0))
        attempt.hedge()
        until(lambda: all(call.wait(-math.inf) is not None for call in attempt.calls))
        attempt.wait(attempt.attempt.decision.give_up_s)
        assert len(attempt.calls) == len(trace.spans) == 2, "both were told"
        attempt.give_up()
        assert it.cell.story()[2:] == [("CloudDropped", 1), ("CloudCallFailed", 0)]
        assert [one.error for one in trace.spans] == [Reason.CLOUD_DEADLINE] * 2
        assert len({one.span_id for one in trace.spans}) == 2


def test_a_hedge_that_fails_leaves_the_first_call_its_chance() -> None:
    def stalls(_: int) -> bool:
        """It is answered as soon as the other has failed."""
        until(lambda: ("CloudCallFailed", 1) in it.cell.story())
        return False

    broken = FakeDataplane(failure=Unavailable("draining"))
    with clouds(StallingCloud(stalls), broken, hedges=1) as it:
        assert isinstance(it.ask(decision(within_s=LIMIT_S, hedge_after_s=0.05)).outcome, CloudReply)
        assert it.cell.story()[2:] == [("CloudCallFailed", 1), ("CloudAnswered", 0)]


def test_waiting_ends_when_it_should_with_and_without_a_hedge_to_come() -> None:
    cloud = StallingCloud(lambda _: True)
    with clouds(cloud) as it:
        for after_s in (math.inf, 60.0):
            attempt = it.send(decision(hedge_after_s=after_s))
            started_s = time.monotonic()
            attempt.wait(started_s + 0.1)
            assert 0.1 <= time.monotonic() - started_s < 1.0
            assert attempt.outcome is None
            attempt.drop()
