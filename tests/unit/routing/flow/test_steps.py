"""What the flow of a request asks for, step by step, and what it tells the router: with decisions that are given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, signals
from upwell.shared.errors import (
    CloudFailed,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    NoAllowedRoute,
    Refused,
    Unavailable,
    UpwellError,
)
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudHeld,
    CloudSent,
    Decision,
    Outcome,
    RouterState,
    Scored,
    Signals,
    SplitRoute,
)
from upwell.shared.routing.decide.send_turn import Turn
from upwell.shared.routing.flow.flow_actions import (
    Action,
    Admit,
    CallEnded,
    CloudFailure,
    Encode,
    GiveUp,
    JoinQueue,
    MessageSent,
    Release,
    Reserve,
    RunEdge,
    RunHead,
    Score,
    Send,
    Wait,
)
from upwell.shared.routing.flow.request_flow import RequestFlow, failure, refusal
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.settings import HardSettings, Settings
from upwell.shared.routing.reasons import CLOUD_FAILURES, Plan, Reason, Route
from upwell.shared.routing.scheduling.send_queue import QueuedMessage
from upwell.shared.routing.simulation.simulated_device import SimulatedReply

CUT = SplitRoute(f"{MODEL}#cut", 100)
REPLY = SimulatedReply(300, 100, 0.02, 0.01)
RETRY = Settings(on_cloud_failure=dict.fromkeys(CLOUD_FAILURES, "retry"))


class GivenRouter:
    """Decides as it was told to, one after the other, allows everything, and notes what it is told."""

    state = RouterState()
    turns = Turn(-math.inf)

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)
        self.asked: list[Signals] = []
        self.told: list[Outcome] = []
        self.runs: list[tuple[str, int, float]] = []
        self.settled: list[int | None] = []
        self.given_back: list[Decision] = []

    def decide(self, signals: Signals) -> Decision:
        self.asked.append(signals)
        return self.decisions.pop(0)

    def turn(self, _message: QueuedMessage) -> Turn:
        return self.turns

    def observe(self, outcome: Outcome) -> None:
        self.told.append(outcome)

    def ran(self, model: str, rows: int, duration_s: float) -> None:
        self.runs.append((model, rows, duration_s))

    def settle(self, _decision: Decision, sent_bytes: int | None, settled_bytes: int | None = None) -> None:
        self.settled.append(sent_bytes if settled_bytes is None else -settled_bytes)

    def give_back(self, decision: Decision) -> None:
        self.given_back.append(decision)

    def acquire_hedge(self, _decision: Decision) -> bool:
        return True

    def acquire_retry(self, _decision: Decision) -> bool:
        return True


def decided(*up_rows: int, settings: Settings | None = None, **others: Any) -> Decision:
    """A decision to send these rows, with the device as a fallback from 150 ms on; 200 ms are allowed."""
    times = {"deadline_s": NOW_S + 0.2, "give_up_s": NOW_S + 0.19, "fallback_start_s": NOW_S + 0.15, **others}
    return Decision(
        Plan.CLOUD,
        Reason.LARGE,
        Verdict(settings or Settings(), "cloud", "up", ""),
        up_rows=up_rows,
        model=MODEL,
        **times,
    )


class Over(Exception):
    """The test is over."""


class Driven:
    """A flow and its actions; `to` answers the current one and expects the next one of a kind."""

    begun: ClassVar[list[Driven]] = []

    def __init__(self, *decisions: Decision, rows: int = 1, **others: Any) -> None:
        self.begun.append(self)
        self.router = GivenRouter(*decisions)
        self.flow = RequestFlow(self.router, signals([1000] * rows, **others))
        self.action: Action | None = self.flow.begin(NOW_S)
        assert isinstance(self.action, Admit)

    def to(self, kind: type[Any], result: Any = 0, *, at_s: float = 0.0) -> Any:
        self.action = self.flow.resume(result, NOW_S + at_s)
        assert isinstance(self.action, kind), self.action
        return self.action

    def fails(self, error: BaseException) -> Action | None:
        self.action = self.flow.fail(error, NOW_S)
        return self.action

    def sent(self) -> str:
        """From `Admit` to the first message: its call."""
        self.to(Encode)
        return str(self.to(Send, 300).call)

    def end(self) -> None:
        """Let it cancel and release what it holds."""
        with suppress(Over):
            action = self.flow.fail(Over(), NOW_S + 1.0)
            while action is not None:
                action = self.flow.resume(None, NOW_S + 1.0)

    def ended(self, call: str, outcome: Any, *, after_s: float = 0.02, **others: Any) -> list[CallEnded]:
        return [CallEnded(call, outcome, NOW_S + after_s, after_s, **others)]

    def told(self, *kinds: type[Any]) -> list[Any]:
        return [one for one in self.router.told if isinstance(one, kinds)]


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    while Driven.begun:
        Driven.begun.pop().end()


@pytest.mark.parametrize(("edge_s", "rows"), [(0.1, (1,)), (0.16, (0, 1))])
def test_one_run_takes_all_rows_where_a_second_one_would_be_too_late(edge_s: float, rows: tuple[int, ...]) -> None:
    driven = Driven(decided(0, predicted_edge_s=edge_s), rows=2)
    driven.sent()
    run = driven.to(RunEdge, MessageSent(300))
    assert (run.rows, run.is_owed) == (rows, False)
    driven.to(Reserve if rows == (1,) else Wait, 0.03)
    assert driven.router.runs == [(MODEL, len(rows), 0.03)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused(""), Reason.EDGE_BUSY),
        (DeadlineExceeded(""), Reason.EDGE_BUSY),
        (ModelFailed(""), Reason.EDGE_FAILED),
    ],
)
def test_a_device_that_has_no_time_or_fails_leaves_its_rows_to_the_cloud_alone(
    error: UpwellError, reason: Reason
) -> None:
    driven = Driven(decided(), decided(0))
    driven.to(RunEdge)
    assert isinstance(driven.fails(error), Encode)
    assert driven.flow.reason is reason
    assert not driven.router.asked[-1].has_edge
    driven.to(Send, 300)
    assert driven.to(Wait, MessageSent(300)).until_s == NOW_S + 0.19  # no run can stand in


def test_a_row_that_the_cloud_answers_in_the_end_is_kept_by_no_obstacle() -> None:
    driven = Driven(decided(kept_rows=(0,), obstacle=Reason.BREAKER_OPEN), decided(0))
    driven.to(RunEdge)
    assert isinstance(driven.fails(DeadlineExceeded("")), Encode)
    call = driven.to(Send, 300).call
    driven.to(Wait, MessageSent(300))
    assert driven.flow.resume(driven.ended(call, REPLY), NOW_S + 0.02) is None
    flow = driven.flow
    assert (flow.routes, flow.answer_reason, flow.is_degraded) == ((Route.CLOUD,), Reason.EDGE_BUSY, False)


def test_any_other_error_of_the_device_is_the_requests_own() -> None:
    driven = Driven(decided())
    driven.to(RunEdge)
    with pytest.raises(InvalidRequest):
        driven.fails(InvalidRequest("other inputs"))


@pytest.mark.parametrize("error", [ModelFailed(""), Refused(""), KeyboardInterrupt()])
def test_what_was_taken_for_a_split_is_given_back_where_its_head_fails(error: BaseException) -> None:
    first = decided(0, split_route=CUT)
    driven = Driven(first, decided(), split_routes=(CUT,))
    driven.to(RunHead)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            driven.fails(error)
    else:
        assert isinstance(driven.fails(error), RunEdge)
        assert driven.router.asked[-1].split_routes == ()
    assert driven.router.given_back == [first]


def test_the_time_of_a_head_is_that_of_its_cut() -> None:
    driven = Driven(decided(0, split_route=CUT), split_routes=(CUT,))
    driven.to(RunHead)
    driven.to(Encode, 0.01)
    assert driven.router.runs == [(CUT.key, 1, 0.01)]
    driven.to(Send, 300)
    (sent,) = driven.told(CloudSent)
    assert (sent.model, sent.whole) == (CUT.key, MODEL)
    driven.to(Reserve, MessageSent(300))
    driven.to(Wait, NOW_S + 0.15)
    driven.to(RunEdge, driven.ended(sent.call, CloudFailure(Reason.CLOUD_EXHAUSTED, "", 0.5)), at_s=0.02)
    assert driven.told(CloudHeld) == [CloudHeld(CUT.key, 0.5)]


def test_a_run_that_stands_in_is_owed_from_its_reservation_to_the_deadline() -> None:
    driven = Driven(decided(0))
    driven.sent()
    reserved = driven.to(Reserve, MessageSent(300))
    assert (reserved.start_s, reserved.end_s) == (NOW_S + 0.15, NOW_S + 0.19)
    assert driven.to(Wait, NOW_S + 0.12).until_s == NOW_S + 0.12
    run = driven.to(RunEdge, [], at_s=0.12)
    assert (run.rows, run.deadline_s, run.is_owed) == ((0,), NOW_S + 0.2, True)
    driven.to(Release, 0.02, at_s=0.14)


def test_where_the_stand_in_fails_the_cloud_is_still_waited_for() -> None:
    driven = Driven(decided(0))
    driven.sent()
    driven.to(Reserve, MessageSent(300))
    driven.to(Wait, NOW_S + 0.15)
    driven.to(RunEdge, [], at_s=0.15)
    assert isinstance(driven.fails(ModelFailed("")), Release)
    assert driven.to(Wait, None).until_s == NOW_S + 0.19


def waits_for_the_device(**decision: Any) -> tuple[Driven, str]:
    """A row was sent, and the run that would stand in for its answer waits for its turn; its call."""
    driven = Driven(decided(0, **decision))
    call = driven.sent()
    driven.to(Reserve, MessageSent(300))
    driven.to(Wait, NOW_S + 0.15)
    driven.to(RunEdge, [], at_s=0.15)
    return driven, call


def test_a_stand_in_that_waits_for_the_device_is_withdrawn_once_the_cloud_has_answered() -> None:
    driven, call = waits_for_the_device()
    driven.to(Release, driven.ended(call, REPLY, after_s=0.16), at_s=0.16)
    driven.action = driven.flow.resume(None, NOW_S + 0.16)
    assert driven.action is None
    assert (driven.flow.routes, driven.router.runs) == ((Route.CLOUD,), [])


def test_a_stand_in_that_waits_for_the_device_waits_on_where_calls_fail() -> None:
    driven, call = waits_for_the_device(settings=RETRY)
    failed = CloudFailure(Reason.CLOUD_UNAVAILABLE, "")
    again = driven.to(Send, driven.ended(call, failed, after_s=0.16), at_s=0.16)
    driven.to(RunEdge, MessageSent(300), at_s=0.16)
    assert driven.to(RunEdge, driven.ended(again.call, failed, after_s=0.17), at_s=0.17).rows == (0,)
    driven.to(Release, 0.02, at_s=0.19)
    assert driven.router.runs == [(MODEL, 1, 0.02)]


def two_attempts(**hard: Any) -> tuple[Driven, str]:
    """A large row was sent at once, and a hard one, which the device has answered, after it; the call of that one."""
    driven = Driven(decided(0, escalate=True), decided(1, **hard), rows=2)
    driven.sent()
    driven.to(RunEdge, MessageSent(300))
    driven.to(Score, 0.01)
    driven.to(Encode, (0.1,))
    call = str(driven.to(Send, 300).call)
    driven.to(Reserve, MessageSent(300))
    driven.to(Wait, NOW_S + 0.15)
    return driven, call


def test_where_the_stand_in_fails_after_another_call_the_cloud_is_still_waited_for() -> None:
    driven, call = two_attempts()
    driven.to(Wait, driven.ended(call, CloudFailure(Reason.CLOUD_UNAVAILABLE, "")), at_s=0.02)
    assert driven.to(RunEdge, [], at_s=0.15).rows == (0,)
    assert isinstance(driven.fails(ModelFailed("")), Release)
    driven.to(Wait, None)


def test_what_waits_for_the_link_goes_before_the_device_runs_for_other_rows() -> None:
    """While the thread runs the device, it would hold up those behind it in the queue."""
    driven = Driven(decided(0, escalate=True), decided(1), rows=2)
    call = driven.sent()
    driven.to(RunEdge, MessageSent(300))
    driven.to(Score, 0.01)
    driven.to(Encode, (0.1,))
    driven.router.turns = Turn(math.inf)
    waits = driven.to(JoinQueue, 300).message.call
    driven.to(Reserve)
    driven.to(Wait, NOW_S + 0.15)
    assert driven.to(Send, [], at_s=0.15).call == waits
    assert driven.to(RunEdge, MessageSent(300), at_s=0.15).rows == (0,)
    driven.to(Release, driven.ended(call, REPLY, after_s=0.16), at_s=0.16)


def test_a_call_that_fails_when_its_hedge_is_due_is_not_hedged() -> None:
    driven, call = two_attempts(hedge_after_s=0.05)
    driven.to(Wait, driven.ended(call, CloudFailure(Reason.CLOUD_UNAVAILABLE, "")), at_s=0.06)


def test_what_cannot_be_encoded_gives_back_what_was_taken() -> None:
    first = decided(0)
    driven = Driven(first)
    driven.to(Encode)
    with pytest.raises(InvalidRequest):
        driven.fails(InvalidRequest("no such picture"))
    assert driven.router.given_back == [first]


@pytest.mark.parametrize("result", [CloudFailure(Reason.EGRESS_DENIED, ""), ConnectionError()])
def test_a_message_that_was_not_sent_costs_nothing_and_ends(result: CloudFailure | ConnectionError) -> None:
    driven = Driven(decided(0))
    call = driven.sent()
    if isinstance(result, CloudFailure):
        driven.to(Reserve, result)
    else:
        with pytest.raises(ConnectionError):
            driven.fails(result)
    assert driven.router.settled == [None]
    assert [one.call for one in driven.told(CloudDropped)] == [call]


@pytest.mark.parametrize(("sent_bytes", "settled"), [(250, 250), (0, None)])
def test_a_message_costs_its_true_size_and_nothing_if_its_call_could_not_begin(
    sent_bytes: int, settled: int | None
) -> None:
    driven = Driven(decided(0))
    driven.sent()
    driven.to(Reserve, MessageSent(sent_bytes))
    assert driven.router.settled == [settled]


@pytest.mark.parametrize(
    ("miss", "settled"),
    [
        (CloudFailure(Reason.CLOUD_UNAVAILABLE, "", is_unsent=True), [250, -250]),
        (CloudFailure(Reason.CLOUD_UNAVAILABLE, ""), [250]),
        (CloudFailure(Reason.CLOUD_DEADLINE, ""), [250]),
    ],
)
def test_a_message_of_which_nothing_left_is_given_back_as_it_was_settled(
    miss: CloudFailure, settled: list[int]
) -> None:
    driven = Driven(decided(0), has_edge=False)
    call = driven.sent()
    driven.to(Wait, MessageSent(250))
    with pytest.raises(UpwellError):
        driven.flow.resume(driven.ended(call, miss), NOW_S + 0.02)
    assert driven.router.settled == settled


@pytest.mark.parametrize("frees_link", [False, True])
@pytest.mark.parametrize("reason", [Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_DEADLINE])
def test_a_failure_is_told_with_its_wait_if_it_was_one_and_whether_the_link_is_free(
    reason: Reason, frees_link: bool
) -> None:
    driven = Driven(decided(0, chance=0.25), has_edge=False)
    call = driven.sent()
    driven.to(Wait, MessageSent(300, frees_link))
    with pytest.raises(UpwellError):
        driven.flow.resume(driven.ended(call, CloudFailure(reason, "", 0.5)), NOW_S + 0.02)
    (failed,) = driven.told(CloudCallFailed)
    assert failed.waited_s == (0.02 if reason is Reason.CLOUD_DEADLINE else math.inf)
    assert (failed.chance, failed.frees_link) == (0.25, frees_link)
    assert driven.told(CloudHeld) == [CloudHeld(MODEL, 0.5)]


def test_an_unknown_chance_counts_in_full_and_a_blameless_failure_against_no_one() -> None:
    for is_blameless in (False, True):
        driven = Driven(decided(0), has_edge=False)
        call = driven.sent()
        driven.to(Wait, MessageSent(300))
        ended = driven.ended(call, CloudFailure(Reason.CLOUD_UNAVAILABLE, ""), is_blameless=is_blameless)
        with pytest.raises(Unavailable):
            driven.flow.resume(ended, NOW_S + 0.02)
        (one,) = driven.told(CloudCallFailed, CloudDropped)
        assert isinstance(one, CloudDropped) is is_blameless
        assert isinstance(one, CloudDropped) or one.chance == 1.0


@pytest.mark.parametrize(
    ("failed", "predicted_s", "at_s", "is_sent_again"),
    [
        (CloudFailure(Reason.CLOUD_UNAVAILABLE, ""), 0.1, 0.08, True),
        (CloudFailure(Reason.CLOUD_UNAVAILABLE, ""), 0.1, 0.1, False),  # 90 ms are left until it is given up
        (CloudFailure(Reason.CLOUD_UNAVAILABLE, "", 0.5), 0.1, 0.08, False),
        (CloudFailure(Reason.CLOUD_INVALID_ARGUMENT, ""), 0.1, 0.08, False),
    ],
)
def test_a_retry_needs_time_for_an_answer(
    failed: CloudFailure, predicted_s: float, at_s: float, is_sent_again: bool
) -> None:
    driven = Driven(decided(0, settings=RETRY, predicted_cloud_s=predicted_s), has_edge=False)
    call = driven.sent()
    driven.to(Wait, MessageSent(300))
    ended = driven.ended(call, failed, after_s=at_s)
    if is_sent_again:
        again = driven.to(Send, ended, at_s=at_s)
        assert again.apart_from == call
        driven.to(Wait, MessageSent(300), at_s=at_s)
        with pytest.raises(Unavailable):  # once more is once
            driven.flow.resume(driven.ended(again.call, failed, after_s=at_s), NOW_S + at_s)
    else:
        with pytest.raises(UpwellError):
            driven.flow.resume(ended, NOW_S + at_s)


def test_a_cloud_that_says_when_to_come_back_has_another_endpoint() -> None:
    driven = Driven(decided(0, settings=RETRY), has_edge=False)
    call = driven.sent()
    driven.to(Wait, MessageSent(300))
    driven.to(Send, driven.ended(call, CloudFailure(Reason.CLOUD_EXHAUSTED, "", 0.5), has_others=True), at_s=0.02)


@pytest.mark.parametrize("is_denied", [False, True])
def test_an_answer_is_of_one_of_two_only_where_the_hedge_was_sent(is_denied: bool) -> None:
    driven = Driven(decided(0, hedge_after_s=0.05), has_edge=False)
    call = driven.sent()
    assert driven.to(Wait, MessageSent(300)).until_s == NOW_S + 0.05
    hedge = driven.to(Send, [], at_s=0.05)
    assert hedge.apart_from == call
    denied = CloudFailure(Reason.EGRESS_DENIED, "")
    assert driven.to(Wait, denied if is_denied else MessageSent(300), at_s=0.05).until_s == NOW_S + 0.19
    driven.action = driven.flow.resume(driven.ended(call, REPLY), NOW_S + 0.06)
    assert [one.hedged for one in driven.told(CloudAnswered)] == [not is_denied]


def test_two_that_are_late_end_as_one_failure_and_one_drop() -> None:
    driven = Driven(decided(0, hedge_after_s=0.05), has_edge=False)
    call = driven.sent()
    driven.to(Wait, MessageSent(300))
    hedge = driven.to(Send, [], at_s=0.05).call
    driven.to(Wait, MessageSent(300), at_s=0.05)
    assert driven.to(GiveUp, [], at_s=0.19).call == hedge
    late = CloudFailure(Reason.CLOUD_DEADLINE, "")
    assert driven.to(GiveUp, driven.ended(hedge, late)[0], at_s=0.19).call == call
    with pytest.raises(DeadlineExceeded):
        driven.flow.resume(driven.ended(call, late)[0], NOW_S + 0.19)
    assert [one.call for one in driven.told(CloudDropped)] == [hedge]
    assert [one.call for one in driven.told(CloudCallFailed)] == [call]


def test_rows_that_an_obstacle_keeps_count_as_candidates() -> None:
    share = Settings(hard=HardSettings(cloud_share=0.2))
    kept = decided(kept_rows=(0,), obstacle=Reason.CLOUD_TOO_SLOW, settings=share)
    driven = Driven(kept, rows=3)
    driven.to(RunEdge)
    assert [(one.rows, one.large, one.hardness) for one in driven.told(Scored)] == [(3, 1, ())]


def test_the_reason_of_rows_that_went_up_at_once_is_that_of_the_answer() -> None:
    driven = Driven(decided(0, escalate=True), replace(decided(1), reason=Reason.HARD), rows=2)
    driven.sent()
    assert driven.to(RunEdge, MessageSent(300)).rows == (1,)
    driven.to(Score, 0.01)
    driven.to(Encode, (0.1,))
    assert driven.router.asked[-1].scored_rows == (1,)
    assert driven.flow.reason is Reason.LARGE


def test_where_the_head_of_hard_rows_fails_they_are_decided_on_as_hard_rows_again() -> None:
    driven = Driven(decided(escalate=True), decided(0, split_route=CUT), decided(), split_routes=(CUT,))
    driven.to(RunEdge)
    driven.to(Score, 0.01)
    driven.to(RunHead, (0.1,))
    assert driven.fails(ModelFailed("")) is None
    assert (driven.router.asked[-1].hardness, driven.router.asked[-1].split_routes) == ((0.1,), ())


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.CLOUD_DEADLINE, DeadlineExceeded),
        (Reason.CLOUD_UNAVAILABLE, Unavailable),
        (Reason.CLOUD_INVALID_ARGUMENT, InvalidRequest),
        (Reason.CLOUD_MODEL_MISSING, ModelNotFound),
        (Reason.CLOUD_EXHAUSTED, Refused),
        (Reason.CLOUD_GARBAGE, CloudFailed),
        (Reason.EGRESS_DENIED, NoAllowedRoute),
    ],
)
def test_each_failure_of_the_cloud_has_its_error(reason: Reason, error: type[UpwellError]) -> None:
    assert type(failure(CloudFailure(reason, ""))) is error


@pytest.mark.parametrize(
    ("obstacle", "error"),
    [
        (Reason.NO_CLOUD, NoAllowedRoute),
        (Reason.BREAKER_OPEN, Unavailable),
        (Reason.CLOUD_EXHAUSTED, Refused),
        (Reason.CLOUD_TOO_SLOW, Refused),
    ],
)
def test_each_refusal_has_its_error_with_the_pause_that_the_cloud_asked_for(
    obstacle: Reason, error: type[UpwellError]
) -> None:
    found = refusal(replace(decided(), obstacle=obstacle, refusal="no", retry_after_s=0.5))
    assert type(found) is error
    assert not isinstance(found, Refused) or found.retry_after_s == 0.5
