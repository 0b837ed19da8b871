"""The flow of one request, from signals to answer: which side is asked, waited for and used instead of the other.

The algorithm stands here once, without clock, thread, socket or tensor: a driver performs its actions and reports the
results. The agent drives it with real ones, the simulator and tests in virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

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
from upwell.shared.routing.decide.router_state import Decision, GaveUp, Scored, Signals
from upwell.shared.routing.flow.cloud_attempt import Clock, CloudAttempt
from upwell.shared.routing.flow.flow_actions import (
    Action,
    Admit,
    CallEnded,
    CloudFailure,
    CloudReplyFacts,
    Release,
    Reserve,
    RouterPort,
    Rows,
    RunEdge,
    RunHead,
    Score,
    Step,
    Wait,
)
from upwell.shared.routing.policy.settings import HardSettings, Objective
from upwell.shared.routing.reasons import DEGRADED, Plan, Reason, Route

# The plan's names for a head with an early answer, which always runs.
_EXIT_PLANS = {Plan.EDGE: Plan.EDGE, Plan.CASCADE: Plan.EXIT, Plan.CLOUD: Plan.SPLIT}
_ONE: Rows = (0,)
_NOT_SCORED: Mapping[int, float] = MappingProxyType({})
# The members of an enum are looked up in their class each time.
_EDGE, _EASY = Plan.EDGE, Reason.EASY
_ONE_EDGE, _ONE_EXIT = (Route.EDGE,), (Route.EXIT,)
_POLICYS_OWN = frozenset({Reason.EGRESS_DENIED, Reason.RULE, Reason.RULE_ERROR, Reason.NO_CLOUD})
_ERRORS: Mapping[Reason, type[UpwellError]] = MappingProxyType(
    {
        Reason.CLOUD_DEADLINE: DeadlineExceeded,
        Reason.CLOUD_UNAVAILABLE: Unavailable,
        Reason.CLOUD_INVALID_ARGUMENT: InvalidRequest,
        Reason.CLOUD_MODEL_MISSING: ModelNotFound,
    }
)


def without(rows: Rows, taken: Rows) -> Rows:
    """`rows` without those in `taken`, in order."""
    if not taken:
        return rows
    left_out = frozenset(taken)
    return tuple(row for row in rows if row not in left_out)


class RequestFlow:
    """One request: `begin` returns the first action, `resume` and `fail` the next one; None ends it.

    The edge answer is at hand, or its run begins, early enough that the answer leaves by the deadline whatever the
    cloud does; the loser is cancelled. If there is no answer, `begin`, `resume` or `fail` raises an `UpwellError`;
    `turned_away` then says that the request was refused before any work.

    Results: `plan`, `reason` and `obstacle` (what kept candidates on the device), the decisions `first` and `second`
    (None if none was made after the edge run), `hardness` by row of those scored on the device, `attempts`, and
    `edge_rows`, the rows that the device has answered, in the order of its runs.
    """

    def __init__(self, router: RouterPort, signals: Signals) -> None:
        self.signals = signals
        self.plan, self.reason = _EDGE, _EASY
        self.first: Decision | None = None
        self.second: Decision | None = None
        self.obstacle: Reason | None = None
        self.hardness: Mapping[int, float] = _NOT_SCORED
        self.turned_away = False
        self.attempts: list[CloudAttempt] = []
        self.edge_rows: list[Rows] = []
        count = len(signals.row_sizes_bytes)
        self.rows = _ONE if count == 1 else tuple(range(count))
        self._router, self._asked = router, signals
        self._has_edge = signals.has_edge
        self._clock = Clock()
        self._steps = self._run()

    def begin(self, now_s: float) -> Action | None:
        """The first action. All times are of one clock, that of the signals."""
        self._clock.now_s = now_s
        return next(self._steps, None)

    def resume(self, result: Any, now_s: float) -> Action | None:
        """The next action, after the result of the previous one."""
        self._clock.now_s = now_s
        try:
            return self._steps.send(result)
        except StopIteration:
            return None

    def fail(self, error: BaseException, now_s: float) -> Action | None:
        """The next action, after the previous one has failed."""
        self._clock.now_s = now_s
        try:
            return self._steps.throw(error)
        except StopIteration:
            return None

    @property
    def routes(self) -> tuple[Route, ...]:
        """The route of each row."""
        if not self.attempts:
            return (_ONE_EXIT if self.signals.exits else _ONE_EDGE) * len(self.rows)
        here, up = (Route.EXIT, Route.SPLIT) if self.signals.exits else (Route.EDGE, Route.CLOUD)
        lifted = {row: Route.SPLIT if one.decision.split_route else up for one in self.answered for row in one.rows}
        return tuple(lifted.get(row, here) for row in self.rows)

    @property
    def answered(self) -> Sequence[CloudAttempt]:
        """The attempts with an answer."""
        return [one for one in self.attempts if not isinstance(one.outcome, CloudFailure | None)]

    @property
    def is_degraded(self) -> bool:
        """Whether the policy wanted the cloud, and the device or a gateway answered."""
        if not self.attempts:
            return self.obstacle is not None
        return self.obstacle is not None or self._failure is not None or self._gateway is not None

    @property
    def answer_reason(self) -> Reason:
        """The reason code of the answer."""
        if not self.attempts:
            return self.reason if self.obstacle is None else self.obstacle
        if self._failure is not None:
            return self._failure
        if self._gateway is not None and self._gateway.reason is not None:
            return self._gateway.reason
        if self.obstacle is not None:
            return self.obstacle
        kept = next((one.outcome for one in self.attempts if isinstance(one.outcome, CloudFailure)), None)
        if kept is not None:
            return kept.reason
        return Reason.EDGE_FASTER if any(one.outcome is None for one in self.attempts) else self.reason

    @property
    def _failure(self) -> Reason | None:
        """The first failure of the cloud; a row kept by the policy is not a failure."""
        outcomes = (one.outcome for one in self.attempts)
        return next((o.reason for o in outcomes if isinstance(o, CloudFailure) and o.reason in DEGRADED), None)

    @property
    def _gateway(self) -> CloudReplyFacts | None:
        outcomes = (one.outcome for one in self.answered)
        return next((o for o in outcomes if not isinstance(o, CloudFailure | None) and o.is_degraded), None)

    def gave_up(self, now_s: float) -> GaveUp | None:
        """The overrun of an answer that is complete now; None unless it waited for the cloud until the end."""
        second = self.second
        if second is None or not second.up_rows or not self._has_edge or now_s < second.give_up_s:
            return None
        return GaveUp(now_s - second.give_up_s)

    def edge_covers(self, rows: Rows) -> bool:
        """Whether the device has answered all of these rows."""
        return {row for part in self.edge_rows for row in part}.issuperset(rows)

    def _run(self) -> Step[None]:
        decision = self.first = self._router.decide(self.signals)
        ahead: int = yield Admit(decision)
        if ahead != self.signals.edge_ahead:  # not all waiting runs go before this request
            self._router.give_back(decision)
            self.signals = self._asked = replace(self.signals, edge_ahead=ahead)
            decision = self.first = self._router.decide(self.signals)
        self.plan, self.reason = decision.plan, decision.reason
        if decision.refusal:
            raise self._away(refusal(decision))
        try:
            yield from self._ask(decision)
            if self.attempts:
                assert self.first is not None  # noqa: S101  decided above
                yield from self._settle(self.first)
        finally:
            for attempt in self.attempts:
                yield from attempt.drop()

    def _away(self, error: UpwellError) -> UpwellError:
        self.turned_away = True
        return error

    def _ask(self, decision: Decision) -> Step[None]:
        """Send the rows that go at once and run the rest on the device, then send those that are hard."""
        exits = self.signals.exits
        if decision.up_rows and not exits:
            # A message that waits for the link must be checked at its turn, which is impossible while the device runs.
            has_rest = len(decision.up_rows) < len(self.rows)
            decision = self.first = yield from self._send(decision, may_wait=not has_rest)
            self.plan, self.reason = decision.plan, decision.reason
        if decision.kept_rows:
            self._note_obstacle(decision)
        hard = decision.verdict.settings.hard
        if hard is not None and hard.has_target and not decision.escalate:
            wanted = len(decision.up_rows) + len(decision.kept_rows)
            self._learn_scores(hard, len(self.rows) - wanted, ())
        rest = without(self.rows, decision.up_rows) if decision.up_rows and not exits else self.rows
        if not rest or not self._has_edge:
            return
        # If a second run, for rows that the cloud fails to answer, would be too late, one run takes them all.
        is_last_run = self._clock.now_s + decision.predicted_edge_s > decision.fallback_start_s
        rows = self.rows if is_last_run else rest
        try:
            yield from self._run_edge(rows, decision.deadline_s)
        except BaseException as error:
            if exits:  # the tail needs the head's output
                self._router.give_back(decision)
            if not isinstance(error, ModelFailed | Refused | DeadlineExceeded):
                raise
            yield from self._lift_instead(error, rest)
            return
        if decision.up_rows and exits:
            yield from self._send(decision)
        if decision.escalate and hard is not None:
            yield from self._escalate(decision, rows, hard)
        if exits:
            self.plan = _EXIT_PLANS[decision.plan]

    def _escalate(self, first: Decision, rest: Rows, hard: HardSettings) -> Step[None]:
        """Decide on the rows that the device has run, and send the hard ones."""
        measured: tuple[float, ...] | None = yield Score(rest, hard)
        if measured is None:
            self.reason = Reason.NO_SCORES
            return
        self.hardness = dict(zip(rest, measured, strict=True))
        rows = without(without(rest, first.kept_rows), first.up_rows)
        hardness = tuple(self.hardness[row] for row in rows)
        self._asked = replace(self.signals, scored_rows=rows, hardness=hardness)
        second = self.second = self._router.decide(self._asked)
        if hard.has_target:
            self._learn_scores(hard, len(rows), hardness)
        if second.up_rows:
            second = self.second = yield from self._send(second)
        self._note_obstacle(second)
        if second.reason is not Reason.EASY and not (first.kept_rows or first.up_rows):
            self.reason = second.reason

    def _learn_scores(self, hard: HardSettings, scored: int, values: tuple[float, ...]) -> None:
        """Report how many rows were hard: shares and risks count every request."""
        rows = len(self.rows)
        self._router.observe(Scored(self.signals.request_facts.model, hard.scope, rows, rows - scored, values))

    def _lift_instead(self, error: ModelFailed | Refused | DeadlineExceeded, rows: Rows) -> Step[None]:
        """The device failed, or has no time: offload all its rows, if allowed."""
        self.reason = reason = Reason.EDGE_FAILED if isinstance(error, ModelFailed) else Reason.EDGE_BUSY
        if self.signals.exits:  # the tail accepts only the head's output
            raise self._away(error)
        decision = self._router.decide(replace(self.signals, has_edge=False, split_routes=()))
        if decision.refusal:
            raise self._away(error)
        self.second = decision = replace(decision, up_rows=rows, reason=reason)
        self.obstacle = None  # what it kept goes up now
        yield from self._send(decision)
        self._has_edge = False
        self.plan = Plan.CLOUD

    def _send(self, decision: Decision, *, may_wait: bool = True) -> Step[Decision]:
        """Send the offloaded rows; returns the decision carried out, a new one if the required head failed."""
        model, split_route = self.signals.request_facts.model, decision.split_route
        target = (model, "")
        if split_route is not None:
            try:
                duration_s: float = yield RunHead(split_route, decision)
            except (ModelFailed, Refused, DeadlineExceeded, InvalidRequest) as error:
                self._router.give_back(decision)
                return (yield from self._send_otherwise(error, may_wait=may_wait))
            except BaseException:
                self._router.give_back(decision)
                raise
            self._router.ran(split_route.key, len(decision.up_rows), duration_s)
            target = (split_route.key, model)
        attempt = CloudAttempt(self._clock, self._router, len(self.attempts), decision, target)
        self.attempts.append(attempt)
        yield from attempt.begin(may_wait=may_wait)
        return decision

    def _send_otherwise(self, error: UpwellError, *, may_wait: bool) -> Step[Decision]:
        """Decide without a head, as if the model were not split."""
        whole = self._router.decide(replace(self._asked, split_routes=()))
        if whole.refusal or (not self._has_edge and not whole.up_rows):
            raise self._away(error)
        return (yield from self._send(whole, may_wait=may_wait)) if whole.up_rows else whole

    def _run_edge(self, rows: Rows, deadline_s: float, *, is_owed: bool = False) -> Step[bool]:
        """Run the device. Returns False if calls ended before that, which are then handled: the run may be no longer
        needed."""
        result: float | list[CallEnded] = yield RunEdge(rows, deadline_s, is_owed)
        if isinstance(result, list):
            yield from self._take(result)
            return False
        self._router.ran(self.signals.request_facts.model, len(rows), result)
        self.edge_rows.append(rows)
        for attempt in self.attempts:
            if attempt.decision.verdict.settings.objective != "accuracy" and self.edge_covers(attempt.rows):
                attempt.send_no_more()
        return True

    def _settle(self, decision: Decision) -> Step[None]:
        """Wait for the cloud, with a timely edge run beside it, until every row has an answer or none can come."""
        settings = decision.verdict.settings
        if any(action != "error" for action in settings.on_cloud_failure.values()):
            yield from self._cover(decision)
        yield from self._wait_for_all(settings.objective)
        self._check_stand_ins()

    def _wait_for_all(self, objective: Objective) -> Step[None]:
        """Wait for each attempt until its answer has come or is no longer needed."""
        for attempt in self.attempts:
            if objective != "accuracy" and self.edge_covers(attempt.rows):
                yield from self._wait(attempt, -math.inf)  # the first good answer wins, and the edge answer is there
                yield from attempt.overtaken()
                continue
            yield from self._wait(attempt, attempt.decision.give_up_s)
            yield from attempt.give_up()

    def _wait(self, attempt: CloudAttempt, until_s: float) -> Step[None]:
        """Wait until the attempt has an outcome, or until `until_s`; handles calls that end, hedges, and queued
        messages meanwhile."""
        while attempt.outcome is None:
            wake_s = until_s
            for one in self.attempts:
                if one.is_queued:
                    turn_s = yield from one.look()
                    wake_s = min(wake_s, turn_s)
            waiting = [one for one in self.attempts if one.is_open]
            ended = yield Wait(min(wake_s, *(one.hedge_at_s for one in waiting)) if waiting else wake_s)
            yield from self._take(ended)
            if attempt.outcome is not None or self._clock.now_s >= until_s:
                return
            for one in waiting:
                if one.is_open and self._clock.now_s >= one.hedge_at_s:
                    yield from one.hedge()

    def _take(self, ended: Sequence[CallEnded]) -> Step[None]:
        for one in ended:
            for attempt in self.attempts:
                yield from attempt.take(one)

    def _cover(self, decision: Decision) -> Step[None]:
        """Wait for rows that only the cloud has, and run the device for the missing ones when it must start."""
        uncovered = [attempt for attempt in self.attempts if not self.edge_covers(attempt.rows)]
        if not uncovered or not self._has_edge:
            return
        start_s: float = yield Reserve(decision.fallback_start_s, decision.give_up_s)
        try:
            for attempt in uncovered:
                yield from self._wait(attempt, start_s)
            if any(self._may_stand_in(one) for one in uncovered):
                for attempt in self.attempts:  # the queue cannot be checked while the device runs
                    yield from attempt.look(is_last=True)
            while True:
                missing = tuple(row for one in uncovered if self._may_stand_in(one) for row in one.rows)
                if not missing or (yield from self._stand_in(missing, decision)):
                    break
        finally:
            yield Release()

    def _stand_in(self, rows: Rows, decision: Decision) -> Step[bool]:
        """Run the device for these rows. Returns False if calls ended first, so that the run may be needed no more."""
        try:
            return (yield from self._run_edge(rows, decision.deadline_s, is_owed=True))
        except (ModelFailed, DeadlineExceeded):
            if all(attempt.outcome is not None for attempt in self.attempts):
                raise  # otherwise the cloud may still answer
            return True

    def _may_stand_in(self, attempt: CloudAttempt) -> bool:
        """Whether the edge answer may replace these rows' cloud answer; while the cloud is waited for it may."""
        outcome = attempt.outcome
        if not isinstance(outcome, CloudFailure):
            return outcome is None
        if outcome.reason in DEGRADED:  # a row kept by the policy is not a failure
            return attempt.decision.verdict.settings.on_failure(outcome.reason) != "error"
        return True

    def _note_obstacle(self, decision: Decision) -> None:
        if not decision.degraded:
            return
        self.obstacle = decision.obstacle
        if decision.verdict.settings.on_failure(decision.obstacle or decision.reason) == "error":
            self.reason = decision.reason
            raise CloudFailed(f"the policy requires the cloud, which was not asked: {decision.obstacle}")

    def _check_stand_ins(self) -> None:
        """Raise unless edge answers exist and are allowed for all rows that the cloud failed to answer."""
        missed = [(one, one.outcome) for one in self.attempts if isinstance(one.outcome, CloudFailure)]
        for attempt, miss in missed:
            if self.signals.has_edge and not self._may_stand_in(attempt):
                raise CloudFailed(f"{miss.reason}: {miss.detail}")
        replies = (one.rows for one in self.attempts if not isinstance(one.outcome, CloudFailure | None))
        if missed and not {row for rows in (*replies, *self.edge_rows) for row in rows}.issuperset(self.rows):
            raise failure(next(miss for attempt, miss in missed if not self.edge_covers(attempt.rows)))


def refusal(decision: Decision) -> UpwellError:
    """The error for a decision without a route; passes on when the cloud may be asked again."""
    if decision.obstacle in _POLICYS_OWN:
        return NoAllowedRoute(decision.refusal)
    if decision.obstacle is Reason.BREAKER_OPEN:
        return Unavailable(decision.refusal)
    return Refused(decision.refusal, retry_after_s=decision.retry_after_s)


def failure(miss: CloudFailure) -> UpwellError:
    """The error for a failed cloud without an edge answer; passes on when the cloud may be asked again."""
    text = f"{miss.reason}: {miss.detail}"
    if miss.reason in _POLICYS_OWN:
        return NoAllowedRoute(f"{miss.detail} and the model has no edge side")
    if miss.reason is Reason.CLOUD_EXHAUSTED:
        return Refused(text, retry_after_s=miss.retry_after_s)
    return _ERRORS.get(miss.reason, CloudFailed)(text)
