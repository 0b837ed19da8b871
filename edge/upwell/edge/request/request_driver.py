"""Drives the flow of one request with real runs on the device, calls to the cloud, and the monotonic clock.

All of it happens in the caller's thread: during a call to the cloud it waits, or runs the edge model meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from upwell.edge.admission.edf_scheduler import RunWithdrawn
from upwell.edge.models.edge_model import EdgeModel, HeadOutput, NotFinite, ServedModel
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.answer import Answer, build_answer
from upwell.edge.request.request import Request, RequestContext, RequestRecord, RowParts, pictures_of, signals_of
from upwell.edge.request.request_spans import EDGE, HEAD, UPLINK, add_decision, add_run
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.egress import EgressForbidden
from upwell.shared.errors import DeadlineExceeded, ModelFailed, Refused
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.routing.decide.router_state import Decision, PicturesPrepared
from upwell.shared.routing.estimators.preparation_times import NO_PREPARATIONS, EncodedPictures
from upwell.shared.routing.flow.flow_actions import (
    Admit,
    CallEnded,
    Cancel,
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
from upwell.shared.routing.flow.request_flow import RequestFlow
from upwell.shared.routing.scheduling.run_request import RUN_REQUESTS, RunRequest, timed, with_preparation
from upwell.shared.signature.uplink_pictures import at_quality, encode_for_uplink, shrink_for_uplink
from upwell.shared.telemetry.tracing import Place
from upwell.shared.tensors import Array

if TYPE_CHECKING:  # imported for agents with a cloud
    from upwell.edge.uplink.cloud_call import CloudCall, Message

_NO_HALVES: Mapping[int, HeadOutput] = MappingProxyType({})
_NO_CALLS: Mapping[str, _Call] = MappingProxyType({})
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Call:
    """A call in progress, its attempt, and its span in the request's trace, if that is recorded."""

    call: CloudCall
    attempt: int
    place: Place | None
    has_ended: bool = False


class _Preparation:
    """How long the pictures of one run took to prepare: told to the router, and the end of a run that they made late.

    `run_request` counts the expected time, which the device is busy with too. `duration_s` is 0 before, and where the
    pictures are so small that their preparation counts as part of the run.
    """

    def __init__(
        self,
        router: RouterService,
        model: str,
        pictures: EncodedPictures | None,
        deadline_s: float,
        run_request: RunRequest,
    ) -> None:
        self._router, self._model, self._pictures = router, model, pictures
        self.duration_s = 0.0
        self.run_request = run_request
        self._deadline_s = deadline_s
        self._latest_start_s = deadline_s - (0.0 if run_request.is_owed else run_request.known_run_s)
        if pictures is not None:
            times = router.recent.preparation.get(model, NO_PREPARATIONS)
            self.run_request = with_preparation(run_request, times.expect_s(pictures, time.monotonic()))

    def __call__(self, duration_s: float) -> None:
        """Note the time. Raises `Refused` if the run no longer fits, so that the cloud is asked if it may be, and
        `DeadlineExceeded` if nothing does."""
        if self._pictures is not None:
            self.duration_s = duration_s
            self._router.observe(PicturesPrepared(self._model, self._pictures, duration_s))
        now_s = time.monotonic()
        if now_s > self._latest_start_s:
            error = Refused if now_s < self._deadline_s else DeadlineExceeded
            raise error(
                f"the pictures took {duration_s * 1e3:.1f} ms to prepare, which left too little time for the run"
            )


class RequestDriver:
    """One request. Made and run once, in one thread."""

    def __init__(self, context: RequestContext, model: ServedModel, request: Request, id: str) -> None:
        self._context, self._model, self._id = context, model, id
        self._inputs, self._arrived_s = request.inputs, request.arrived_s
        signals, self._sent_inputs, self._resizes = signals_of(context, model, request)
        self._flow = RequestFlow(context.router, signals)
        self._parts = RowParts(len(signals.row_sizes_bytes))
        self._edge_s: float | None = None
        self._edge_digest = ""
        self._was_refused = False
        self._run_request = RUN_REQUESTS["normal"]
        self._slot: AbstractContextManager[float] | None = None
        self._halves: Mapping[int, HeadOutput] = _NO_HALVES
        self._calls: Mapping[str, _Call] = _NO_CALLS

    def run(self) -> tuple[Answer, RequestRecord]:
        """Run the request; returns the answer and the record. Raises `UpwellError` if there is no answer."""
        flow, perform, context = self._flow, PERFORM, self._context
        noted = (Admit, Score) if context.uplinks or context.trace is not None else ()
        try:
            action = flow.begin(time.monotonic())
            while action is not None:
                asked = type(action)
                try:
                    result = perform[asked](self, action)
                except BaseException as error:  # noqa: BLE001  the flow ends what is under way, and raises it again
                    action = flow.fail(error, time.monotonic())
                    continue
                began_s = time.monotonic()
                try:
                    action = flow.resume(result, began_s)
                finally:
                    if asked in noted:
                        self._note_decision(asked is Score, began_s)
        except Refused:
            if flow.turned_away:  # it does not count towards its source's rate
                self._give_back_admission()
            raise
        done = self.record()
        assert done is not None  # noqa: S101  it was decided, or there would be an error
        answer = build_answer(done, flow, context.agent)
        if flow.second is not None and (gave_up := flow.gave_up(time.monotonic())) is not None:
            context.router.observe(gave_up)
        return answer, done

    def record(self) -> RequestRecord | None:
        """The record of the request; None if it ended before the first decision."""
        flow = self._flow
        if flow.first is None:
            return None
        return RequestRecord(
            self._model, self._id, flow.signals, self._inputs, self._sent_inputs, flow.first, flow.second,
            flow.hardness, self._parts, flow.attempts, self._edge_s, self._edge_digest, self._resizes,
            self._was_refused,
        )  # fmt: skip

    def _note_decision(self, is_second: bool, began_s: float) -> None:
        decision = self._flow.second if is_second else self._flow.first
        if decision is None:  # there was no decision to learn from
            return
        if self._context.trace is not None:
            add_decision(self._context.trace, decision, began_s)
        if is_second:
            return
        uplinks, signals = self._context.uplinks, self._flow.signals
        if uplinks and signals.may_offload and not decision.verdict.egress_rule:
            next(iter(uplinks.values())).note_candidate(partial(self._context.router.judge, signals))

    # The flow's actions.

    def _admit(self, action: Admit) -> int:
        decision, signals = action.decision, self._flow.signals
        settings = decision.verdict.settings
        if settings.source is None:
            self._run_request = RUN_REQUESTS[settings.priority]
        else:
            facts = signals.request_facts
            try:
                self._run_request = self._context.admission.admit(facts.model, settings, facts.tags, self._arrived_s)
            except Refused:
                self._context.router.give_back(decision)
                raise
        edge = self._model.edge
        if edge is None or not signals.edge_ahead:
            return signals.edge_ahead
        return edge.scheduler.ahead_of(decision.deadline_s, self._run_request)

    def _give_back_admission(self) -> None:
        facts, first = self._flow.signals.request_facts, self._flow.first
        assert first is not None  # noqa: S101  what is turned away was decided about
        self._context.admission.give_back(facts.model, first.verdict.settings, facts.tags)

    def _run_edge(self, action: RunEdge) -> float | list[CallEnded]:
        edge, rows = self._model.edge, action.rows
        assert edge is not None  # noqa: S101  asked for only where there is one
        owed = replace(self._run_request, is_owed=True) if action.is_owed else self._run_request
        times = self._context.router.recent.edge.get(self._model.name)
        run_request = timed(owed, times, len(rows), self._arrived_s, time.monotonic(), action.deadline_s)
        inputs, prepared = self._select(self._inputs, rows), None
        if self._flow.signals.pictures is not None:
            prepared = self._preparation(edge, inputs, action.deadline_s, run_request)
            run_request = prepared.run_request
        try:
            run = edge.run(inputs, action.deadline_s, run_request, prepared, self._news if action.is_owed else None)
        except RunWithdrawn:
            return self._wait(Wait(-math.inf))
        if self._context.trace is not None:
            add_run(self._context.trace, EDGE, len(rows), run.duration_s)
        self._edge_s, self._edge_digest = (self._edge_s or 0.0) + run.duration_s, run.digest
        self._was_refused |= run.was_refused
        self._parts.edge.append((rows, run))
        if run.exits:
            self._sent_inputs = run.exits
        return run.duration_s if prepared is None else max(0.0, run.duration_s - prepared.duration_s)

    def _run_head(self, action: RunHead) -> float:
        decision, key = action.decision, action.split_route.key
        rows, times = len(decision.up_rows), self._context.router.recent.edge.get(key)
        run_request = timed(self._run_request, times, rows, self._arrived_s, time.monotonic(), decision.deadline_s)
        head, inputs, prepared = self._model.head(key), self._select(self._inputs, decision.up_rows), None
        if self._flow.signals.pictures is not None:
            prepared = self._preparation(head.edge, inputs, decision.deadline_s, run_request)
            run_request = prepared.run_request
        try:
            half = head.run(inputs, decision.deadline_s, run_request, prepared)
        except Exception as error:
            text = "model=%s: the head of %s failed: %s"
            _log.warning(text, self._model.name, action.split_route, type(error).__name__)
            raise
        if self._context.trace is not None:
            add_run(self._context.trace, HEAD, rows, half.duration_s)
        self._edge_s = (self._edge_s or 0.0) + half.duration_s
        self._was_refused |= half.was_refused
        self._halves = {**self._halves, len(self._flow.attempts): half}
        return half.duration_s if prepared is None else max(0.0, half.duration_s - prepared.duration_s)

    def _preparation(
        self, model: EdgeModel, inputs: Mapping[str, Array], deadline_s: float, run_request: RunRequest
    ) -> _Preparation:
        return _Preparation(self._context.router, self._model.name, pictures_of(model, inputs), deadline_s, run_request)

    def _score(self, action: Score) -> tuple[float, ...] | None:
        edge = self._model.edge
        assert edge is not None  # noqa: S101  it has just run
        if not edge.scorer.can(action.hard):
            return None
        run = self._parts.edge[-1][1]
        return tuple(edge.scorer.score(run.outputs, action.hard, len(action.rows), run.candidates))

    def _encode(self, action: Encode) -> int:
        attempt, half = self._flow.attempts[action.attempt], self._halves.get(action.attempt)
        inputs = self._message_inputs(attempt.rows, attempt.decision) if half is None else half.tensors
        split_route = attempt.decision.split_route
        model = self._model.cloud_model if split_route is None else self._model.head(split_route.key).cut.tail
        request = InferRequest(model=model, inputs=inputs, id=self._id)
        message = self._context.uplinks[attempt.decision.interface].encode(request, self._context.traceparent)
        if not action.attempt:
            self._messages: dict[int, Message] = {}
            # Reentrant, so that gRPC's threads may report the end of a call at any time; True: a turn on the link.
            self._news: SimpleQueue[bool] = SimpleQueue()
        self._messages[action.attempt] = message
        return len(message.data)

    def _message_inputs(self, rows: tuple[int, ...], decision: Decision) -> Mapping[str, Array]:
        inputs, entry_model, quality = self._select(self._sent_inputs, rows), self._model.entry_model, decision.quality
        if entry_model is None or not decision.shrinks or (quality is None and not self._resizes):
            return inputs
        if quality is not None:
            signature = at_quality(entry_model.signature, quality.quality)
            return encode_for_uplink(signature, self._select(self._inputs, rows), self._resizes)
        return shrink_for_uplink(entry_model.signature, inputs, self._resizes)

    def _queue(self, action: JoinQueue) -> None:
        self._context.router.enqueue(action.message, partial(self._news.put, True))

    def _send(self, action: Send) -> MessageSent | CloudFailure:
        context, attempt = self._context, self._flow.attempts[action.attempt]
        place = None if context.trace is None else context.trace.calling()
        message = self._messages[action.attempt]
        if place is not None:
            message = replace(message, traceparent=str(place))
        # Rules may use the link, so it is taken without this message.
        judge = partial(context.router.judge, self._flow.signals, action.known)
        apart_from = self._calls[action.apart_from].call if action.apart_from else None
        try:
            call = context.uplinks[attempt.decision.interface].start(
                message, judge, attempt.decision.give_up_s, apart_from
            )
        except EgressForbidden as error:
            return CloudFailure(error.reason, str(error))
        self._calls = {**self._calls, action.call: _Call(call, action.attempt, place)}
        call.on_end(partial(self._news.put, False))
        return MessageSent(call.sent_bytes, call.frees_link)

    def _wait(self, action: Wait) -> list[CallEnded]:
        is_turn = False
        while True:
            ended = [one for name in tuple(self._calls) if (one := self._ended(name)) is not None]
            left_s = action.until_s - time.monotonic()
            if ended or is_turn or left_s <= 0:
                return ended
            with suppress(Empty):
                is_turn = self._news.get(timeout=min(left_s, threading.TIMEOUT_MAX))

    def _ended(self, name: str) -> CallEnded | None:
        """The end of a call that was not yet reported; None while it is in progress."""
        call = self._calls[name]
        if call.has_ended:
            return None
        outcome = call.call.wait(-math.inf)
        if outcome is None:
            return None
        is_blameless = False
        if isinstance(outcome, CloudReply):
            try:
                outcome = self._checked(call.attempt, outcome)
            except ModelFailed as error:
                # The request itself may cause it (NaN in, NaN out), so it counts against neither side.
                is_blameless = isinstance(error, NotFinite)
                outcome = call.call.reject(str(error))
        return self._record_end(name, outcome, is_blameless=is_blameless)

    def _checked(self, number: int, reply: CloudReply) -> CloudReply:
        """The reply as an answer of the whole model. Raises `ModelFailed` if it is invalid."""
        half, edge = self._halves.get(number), self._model.edge
        if half is not None:
            reply = replace(reply, response=replace(reply.response, outputs=half.joined(reply.response.outputs)))
        if edge is not None:
            edge.check_cloud(reply.response.outputs, len(self._flow.attempts[number].rows))
        return reply

    def _record_end(self, name: str, outcome: CloudReply | CloudFailure, *, is_blameless: bool = False) -> CallEnded:
        call = self._calls[name]
        if not call.has_ended:  # one that was told as late is given up with those beside it
            call.has_ended = True
            error, is_sent = "", True
            if isinstance(outcome, CloudFailure):
                error = str(outcome.reason)
                is_sent = not outcome.is_unsent
                _log.debug("cloud: model=%s id=%s %s: %s", self._model.name, self._id, outcome.reason, outcome.detail)
            self._tell_end(call, error, is_sent=is_sent)
        has_others = self._context.uplinks[self._flow.attempts[call.attempt].decision.interface].has_others
        return CallEnded(name, outcome, call.call.ended_s, call.call.elapsed_s, is_blameless, has_others)

    def _give_up(self, action: GiveUp) -> CallEnded:
        return self._record_end(action.call, self._calls[action.call].call.give_up())

    def _cancel(self, action: Cancel) -> None:
        call = self._calls[action.call]
        call.call.cancel()
        if not call.has_ended:
            call.has_ended = True
            self._tell_end(call, "cancelled")

    def _reserve(self, action: Reserve) -> float:
        edge = self._model.edge
        assert edge is not None  # noqa: S101  asked for only where there is one
        self._slot = edge.scheduler.reserve(action.start_s, action.end_s)
        return self._slot.__enter__()

    def _release(self, _: Release) -> None:
        assert self._slot is not None  # noqa: S101  taken before
        self._slot.__exit__(None, None, None)

    def _select(self, inputs: Mapping[str, Array], rows: tuple[int, ...]) -> Mapping[str, Array]:
        if len(rows) == self._parts.rows:
            return inputs
        entry_model = self._model.entry_model
        if entry_model is None:
            return inputs
        return entry_model.signature.select_rows(inputs, rows)

    def _tell_end(self, call: _Call, error: str, *, is_sent: bool = True) -> None:
        trace, attempt, sent_bytes = self._context.trace, self._flow.attempts[call.attempt], call.call.sent_bytes
        if is_sent:
            self._context.metrics.sent(attempt.whole or attempt.model, sent_bytes)
        if trace is not None and call.place is not None:
            facts = {"upwell.rows": len(attempt.rows), "upwell.sent_bytes": sent_bytes, "upwell.hedged": attempt.hedged}
            ended_s = call.call.ended_s
            trace.called(UPLINK, call.place, ended_s - call.call.elapsed_s, ended_s, facts, error)


PERFORM: Mapping[type[Any], Callable[[RequestDriver, Any], Any]] = {
    Admit: RequestDriver._admit,
    RunEdge: RequestDriver._run_edge,
    RunHead: RequestDriver._run_head,
    Score: RequestDriver._score,
    Encode: RequestDriver._encode,
    JoinQueue: RequestDriver._queue,
    Send: RequestDriver._send,
    Wait: RequestDriver._wait,
    GiveUp: RequestDriver._give_up,
    Cancel: RequestDriver._cancel,
    Reserve: RequestDriver._reserve,
    Release: RequestDriver._release,
}
