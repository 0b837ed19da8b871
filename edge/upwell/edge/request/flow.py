"""One request, from signals to answer: who is asked, who is waited for, and what stands in for whom.

The caller's own thread does it all: while a call to the cloud is under way it waits, or runs the edge model beside it.
The edge answer is in hand, or its run begins, early enough that the answer leaves by the deadline whatever the cloud
does; the loser is cancelled.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from upwell.edge.admission.rate_limits import RUN_REQUESTS, timed
from upwell.edge.models.served import ServedModel
from upwell.edge.request.answer import Answer
from upwell.edge.request.build_answer import build_answer, failure, refusal
from upwell.edge.request.cloud_attempt import CloudAttempt, Joined, split_head
from upwell.edge.request.context import RequestContext
from upwell.edge.request.record import RequestRecord
from upwell.edge.request.request import RowParts, signals_of, without
from upwell.edge.request.spans import EDGE, add_decision, add_run
from upwell.edge.uplink.uplink import CloudFailure, CloudReply
from upwell.shared.errors import CloudFailed, DeadlineExceeded, InvalidRequest, ModelFailed, Refused, UpwellError
from upwell.shared.routing.decide.state import Decision, Scored
from upwell.shared.routing.policy.settings import HardSettings, Objective
from upwell.shared.routing.reasons import DEGRADED, Plan, Reason
from upwell.shared.tensors import Array

# What the plans are called for a head that answers early, which always runs.
_EXIT_PLANS = {Plan.EDGE: Plan.EDGE, Plan.CASCADE: Plan.EXIT, Plan.CLOUD: Plan.SPLIT}
_log = logging.getLogger(__name__)


class RequestFlow:
    """One request. Made and run once, in one thread."""

    # What most requests leave as it is.
    _edge_s: float | None = None
    _edge_digest = ""
    _obstacle: Reason | None = None
    _run_request = RUN_REQUESTS["normal"]
    _hardness: Mapping[int, float] = MappingProxyType({})
    _first: Decision | None = None
    _second: Decision | None = None

    def __init__(
        self,
        context: RequestContext,
        model: ServedModel,
        inputs: Mapping[str, Array],
        deadline_s: float,
        tags: Mapping[str, str],
        request_id: str,
        arrived_s: float,
    ) -> None:
        self._context = context
        self.model = model.name
        self._model = model
        self._edge, self._inputs = model.edge, inputs
        self._id, self._arrived_s = request_id, arrived_s
        self._signals, self._sent_inputs = signals_of(context, model, inputs, deadline_s, tags, arrived_s)
        self._asked = self._signals
        self._parts = RowParts(len(self._signals.row_sizes_bytes))
        self._attempts: list[CloudAttempt] = []

    def run(self) -> tuple[Answer, RequestRecord]:
        """The answer, and all that is known of the request. Raises `UpwellError` where there is none to give."""
        trace = self._context.trace
        began_s = time.monotonic() if trace is not None else 0.0
        decision = self._decided()
        if trace is not None:
            add_decision(trace, decision, began_s)
        _log.debug("id=%s decision: %s", self._id, decision)
        uplink = self._context.uplink
        if uplink is not None and self._signals.may_ascend and not decision.verdict.egress_rule:
            uplink.note_candidate(partial(self._context.router.judge, self._signals))
        if decision.refusal:
            raise self._turned_away(refusal(decision))
        try:
            plan, reason = self._ask(decision)
            decision = self._first or decision
            if self._attempts:
                self._settle(decision)
            done = self._record(decision)
            return build_answer(done, plan, reason, self._obstacle, self._context.agent), done
        finally:
            for attempt in self._attempts:
                attempt.drop()

    def done(self) -> RequestRecord | None:
        """All that is known of a request that failed; None where that was before anything was decided."""
        return None if self._first is None else self._record(self._first)

    def _record(self, first: Decision) -> RequestRecord:
        return RequestRecord(
            self._model, self._id, self._signals, self._sent_inputs, first, self._second, self._hardness,
            self._parts, self._attempts, self._edge_s, self._edge_digest,
        )  # fmt: skip

    def _decided(self) -> Decision:
        """The first decision; made again where not all that waits for the device goes before this request."""
        decision = self._first = self._context.router.decide(self._signals)
        settings = decision.verdict.settings
        if settings.source is None:
            self._run_request = RUN_REQUESTS[settings.priority]
        else:
            self._run_request = self._context.admitted(self._signals, decision, self._arrived_s)
        if self._edge is None or not self._signals.edge_ahead:
            return decision
        ahead = self._edge.scheduler.ahead_of(decision.deadline_s, self._run_request)
        if ahead == self._signals.edge_ahead:
            return decision
        self._context.router.give_back(decision)
        self._signals = self._asked = replace(self._signals, edge_ahead=ahead)
        decision = self._first = self._context.router.decide(self._signals)
        return decision

    def _turned_away(self, error: UpwellError) -> UpwellError:
        return self._context.turned_away(self._signals, self._first, error)

    def _ask(self, decision: Decision) -> tuple[Plan, Reason]:
        """Send what goes up at once and run the rest on the device, then send what turned out hard."""
        exits = self._edge is not None and bool(self._edge.exits)
        if decision.up_rows and not exits:
            decision = self._first = self._send(decision)
        if decision.kept_rows:
            self._note_obstacle(decision)
        hard = decision.verdict.settings.hard
        if hard is not None and not decision.escalate:
            wanted = len(decision.up_rows) + len(decision.kept_rows)
            self._learn_scores(hard, self._parts.rows - wanted, ())
        rest = without(self._parts.all, decision.up_rows) if decision.up_rows and not exits else self._parts.all
        if not rest or self._edge is None:
            return decision.plan, decision.reason
        try:
            outputs = self._run_edge(rest, decision.deadline_s)
        except ModelFailed as error:
            return self._lift_instead(error, Reason.EDGE_FAILED, rest)
        except Refused as error:
            return self._lift_instead(error, Reason.EDGE_BUSY, rest)
        reason = decision.reason
        if decision.up_rows and exits:
            self._send(decision)
        if decision.escalate and hard is not None and not self._edge.scorer.can(hard):
            reason = Reason.NO_SCORES
        elif decision.escalate:
            second = self._second_decision(decision, rest, outputs)
            if second.up_rows:
                second = self._second = self._send(second)
            self._note_obstacle(second)
            if second.reason is not Reason.EASY and not (decision.kept_rows or decision.up_rows):
                reason = second.reason
        return _EXIT_PLANS[decision.plan] if exits else decision.plan, reason

    def _second_decision(self, first: Decision, rest: tuple[int, ...], outputs: Mapping[str, Array]) -> Decision:
        hard = first.verdict.settings.hard
        assert self._edge is not None and hard is not None  # noqa: S101, PT018  or nothing would escalate
        measured = self._edge.scorer.score(outputs, hard, len(rest))
        self._hardness = dict(zip(rest, measured, strict=True))
        rows = without(without(rest, first.kept_rows), first.up_rows)
        hardness = tuple(self._hardness[row] for row in rows)
        self._asked = replace(self._signals, scored_rows=rows, hardness=hardness)
        began_s = time.monotonic()
        self._second = self._context.router.decide(self._asked)
        if self._context.trace is not None:
            add_decision(self._context.trace, self._second, began_s)
        self._learn_scores(hard, len(rows), hardness)
        return self._second

    def _learn_scores(self, hard: HardSettings, scored: int, values: tuple[float, ...]) -> None:
        """Tell the router how many rows were hard: what a share or a risk is held by counts every request."""
        if not (math.isnan(hard.cloud_share) and math.isnan(hard.max_risk)):
            rows = self._parts.rows
            self._context.router.observe(Scored(self._model.name, hard.scope, rows, rows - scored, values))

    def _lift_instead(self, error: UpwellError, reason: Reason, rows: tuple[int, ...]) -> tuple[Plan, Reason]:
        """The device failed, or has no time: everything that it should have answered goes up, if it may."""
        if self._edge is None or self._edge.exits:  # the tail takes nothing but what the head gives
            raise self._turned_away(error)
        decision = self._context.router.decide(replace(self._signals, has_edge=False, ways=()))
        if decision.refusal or not decision.up_rows:
            raise self._turned_away(error)
        self._second = decision = replace(decision, up_rows=rows, reason=reason)
        self._send(decision)
        self._edge = None
        return Plan.CLOUD, reason

    def _send(self, decision: Decision) -> Decision:
        """Send what goes up; the decision acted on, another one where a head failed that was to run first."""
        target = self._model
        inputs = self._select(self._sent_inputs if decision.way is None else self._inputs, decision.up_rows)
        joined: Joined | None = None
        if decision.way is not None:
            try:
                target, half = split_head(
                    self._context, target, decision.way, inputs, decision, self._run_request, self._arrived_s
                )
            except (ModelFailed, Refused, DeadlineExceeded, InvalidRequest) as error:
                return self._send_otherwise(decision, error)
            self._edge_s = (self._edge_s or 0.0) + half.duration_s
            inputs, joined = half.tensors, half.joined
        self._attempts.append(CloudAttempt(self._context, target, decision, self._signals, inputs, self._id, joined))
        return decision

    def _send_otherwise(self, decision: Decision, error: UpwellError) -> Decision:
        """No head runs: the whole goes up, or stays here, as if the model were not split."""
        _log.warning("model=%s: the head of %s failed: %s", self.model, decision.way, type(error).__name__)
        whole = self._context.router.decide(replace(self._asked, ways=()))
        if whole.refusal or (self._edge is None and not whole.up_rows):
            raise self._turned_away(error)
        return self._send(whole) if whole.up_rows else whole

    def _select(self, inputs: Mapping[str, Array], rows: tuple[int, ...]) -> Mapping[str, Array]:
        entry_model = self._model.entry_model
        return (
            inputs
            if entry_model is None or len(rows) == self._parts.rows
            else entry_model.signature.select_rows(inputs, rows)
        )

    def _run_edge(self, rows: tuple[int, ...], deadline_s: float, *, is_owed: bool = False) -> Mapping[str, Array]:
        assert self._edge is not None  # noqa: S101  asked for only where there is one
        router = self._context.router
        run_request = replace(self._run_request, is_owed=True) if is_owed else self._run_request
        run_request = timed(
            run_request, router.recent.edge.get(self.model), len(rows), self._arrived_s, time.monotonic()
        )
        inputs = self._inputs if len(rows) == self._parts.rows else self._select(self._inputs, rows)
        run = self._edge.run(inputs, deadline_s, run_request)
        router.ran(self.model, len(rows), run.duration_s)
        if self._context.trace is not None:
            add_run(self._context.trace, EDGE, len(rows), run.duration_s)
        self._edge_s, self._edge_digest = (self._edge_s or 0.0) + run.duration_s, run.digest
        self._parts.edge.append((rows, run.outputs))
        if run.exits:
            self._sent_inputs = run.exits
        return run.outputs

    def _settle(self, decision: Decision) -> None:
        """Wait for the cloud, with the edge run beside it in time, until every row has an answer or none can come."""
        settings = decision.verdict.settings
        if any(action != "error" for action in settings.on_cloud_failure.values()):
            self._cover(decision)
        self._wait(settings.objective)
        self._check_stand_ins()

    def _wait(self, objective: Objective) -> None:
        """For each call until its answer is there, or nobody needs it any more."""
        for attempt in self._attempts:
            if objective != "accuracy" and self._parts.edge_covers(attempt.rows):
                attempt.wait(-math.inf)  # the first good answer wins, and the device's is there
                attempt.overtaken()
                continue
            attempt.wait(attempt.decision.give_up_s)
            attempt.give_up()

    def _cover(self, decision: Decision) -> None:
        """Wait for rows that only the cloud has, and run the device for those still missing when it must start."""
        uncovered = [attempt for attempt in self._attempts if not self._parts.edge_covers(attempt.rows)]
        if not uncovered or self._edge is None:
            return
        with self._edge.scheduler.promise(decision.fallback_start_s, decision.give_up_s) as start_s:
            for attempt in uncovered:
                attempt.wait(start_s)
            missing = tuple(row for a in uncovered if self._may_stand_in(a) for row in a.rows)
            if missing:
                self._stand_in(missing, decision)

    def _stand_in(self, rows: tuple[int, ...], decision: Decision) -> None:
        try:
            self._run_edge(rows, decision.deadline_s, is_owed=True)
        except (ModelFailed, DeadlineExceeded):
            if all(attempt.outcome is not None for attempt in self._attempts):
                raise  # otherwise the cloud may still answer

    def _may_stand_in(self, attempt: CloudAttempt) -> bool:
        """Whether the device's answer may be needed for these rows; while the cloud is waited for it may."""
        miss = attempt.outcome
        if isinstance(miss, CloudFailure) and miss.reason in DEGRADED:  # what the policy keeps here is no failure
            return attempt.decision.verdict.settings.on_failure(miss.reason) != "error"
        return not isinstance(miss, CloudReply)

    def _note_obstacle(self, decision: Decision) -> None:
        if not decision.degraded:
            return
        self._obstacle = decision.obstacle
        if decision.verdict.settings.on_failure(decision.obstacle or decision.reason) == "error":
            raise CloudFailed(f"the cloud was wanted and not asked: {decision.obstacle}")

    def _check_stand_ins(self) -> None:
        """Raise unless edge answers stand in for all that the cloud missed, and may."""
        missed = [(a, a.outcome) for a in self._attempts if isinstance(a.outcome, CloudFailure)]
        for attempt, miss in missed:
            if self._model.edge is not None and not self._may_stand_in(attempt):
                raise CloudFailed(f"{miss.reason}: {miss.detail}")
        replies = [(a.rows, a.outcome) for a in self._attempts if isinstance(a.outcome, CloudReply)]
        if missed and not self._parts.are_complete(replies):
            raise failure(next(miss for attempt, miss in missed if not self._parts.edge_covers(attempt.rows)))
