"""Some rows of a request on their way to the cloud and back, and what the router learns from it."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

from upwell.edge.admission.rate_limits import timed
from upwell.edge.admission.schedulability import RunRequest
from upwell.edge.models.heads import HeadOutput
from upwell.edge.models.served import NotFinite, ServedModel
from upwell.edge.request.context import RequestContext
from upwell.edge.request.spans import HEAD, UPLINK, add_run
from upwell.edge.uplink.calls import CloudCall, CloudFailure, CloudReply, Message
from upwell.edge.uplink.egress import EgressForbidden
from upwell.shared.errors import ModelFailed
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.routing.decide.state import (
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudHeld,
    CloudSent,
    Decision,
    Signals,
    SplitRoute,
)
from upwell.shared.routing.reasons import Reason
from upwell.shared.telemetry.trace import Place
from upwell.shared.tensors import Array

HOPELESS = frozenset({Reason.CLOUD_INVALID_ARGUMENT})
"""Failures after which asking once more cannot help: it is the request that is wrong."""

_EARLY_S = 0.005
"""So much before its deadline a call may end for it: clocks and timers round."""

Joined: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""The answer that is wanted, from that of a tail; raises `ModelFailed` where it cannot be made of it."""

_log = logging.getLogger(__name__)
_names = itertools.count()


@dataclass(frozen=True)
class _Attempt:
    """One message sent for the rows, and the name under which the router knows it."""

    name: str
    call: CloudCall
    place: Place | None
    """Where it stands in the request's trace; None where that is not recorded."""


class CloudAttempt:
    """Rows sent up by a decision. Used by one thread; what comes of each message is learnt exactly once.

    Usually one message is sent. Where the decision names a hedge, a second one follows once the first has been under
    way for so long and the router grants it: to another endpoint, or where there is none over a connection of its own.
    The first good answer wins and the other call is cancelled. Where the policy says `retry`, a call that failed is
    followed by one more in the same way, if the time left is as long as an answer is predicted to take and the budgets
    have it. A probe of the breaker is sent once: it is to find out how one request fares.

    The policy is asked again for each message, of a request with these `signals`. Where it keeps the request on the
    device by then, the first message and a retry are a miss with that reason, and there is no hedge.
    """

    def __init__(
        self,
        context: RequestContext,
        model: ServedModel,
        decision: Decision,
        signals: Signals,
        inputs: Mapping[str, Array],
        request_id: str,
        joined: Joined | None = None,
    ) -> None:
        assert context.uplink is not None  # noqa: S101  the router sends nothing up without a cloud
        self.rows = decision.up_rows
        self.decision = decision
        self.outcome: CloudReply | CloudFailure | None = None
        self._signals = signals
        self._context = context
        self._uplink = context.uplink
        self._model = model
        self._id = request_id
        self._joined = joined
        self._under_way: list[_Attempt] = []
        self._news: SimpleQueue[None] = SimpleQueue()  # reentrant, so that gRPC's threads may tell of ends at any time
        self._hedged = False
        self._may_retry = not decision.probes
        try:
            request = InferRequest(model=model.cloud_model, inputs=inputs, id=request_id)
            self._message = Message.of(request, context.traceparent)
        except BaseException:
            context.router.give_back(decision)  # a probe's slot must not stay taken, nor what was drawn from budgets
            raise
        self._started_s = time.monotonic()
        self._ended_s = math.nan
        self._hedge_at_s = math.inf if decision.probes else self._started_s + decision.hedge_after_s
        try:
            self._send()
        except EgressForbidden as error:
            self._stay(error, self._started_s)

    @property
    def elapsed_s(self) -> float:
        """Time from sending to the end of the call that decided, or to now."""
        return (time.monotonic() if math.isnan(self._ended_s) else self._ended_s) - self._started_s

    def wait(self, until_s: float) -> None:
        """Take the outcome if it is there by `until_s`, an instant that may have passed; hedge when it is time."""
        while self.outcome is None:
            self._take_ended()
            now_s = time.monotonic()
            if self.outcome is not None or now_s >= until_s:
                return
            if now_s >= self._hedge_at_s:
                self._hedge()
                continue
            pause_s = min(until_s, self._hedge_at_s) - now_s
            with suppress(Empty):
                self._news.get(timeout=min(pause_s, threading.TIMEOUT_MAX))

    def give_up(self) -> None:
        """End calls that are late; without an answer by now that counts as one failure of the cloud."""
        if self.outcome is None and self._under_way:
            self._settle(*self._end_late())

    def overtaken(self) -> None:
        """End calls that the device's answer came before; that is a failure of the cloud if it took longer than it
        was sure to take, or nobody knew how long it would take. There is no outcome: nobody waits for one any more."""
        if self.outcome is not None or not self._under_way:
            return
        if self.elapsed_s < self.decision.predicted_sure_s:
            self.drop()
        else:
            first, _ = self._end_late()
            self._ended_s = first.call.ended_s

    def drop(self) -> None:
        """Cancel calls whose answer nobody needs any more; that says nothing about the cloud."""
        if self.outcome is None:
            self._drop_others()
            self._ended_s = time.monotonic()

    def _end_late(self) -> tuple[_Attempt, CloudFailure]:
        """Give up every call that is under way, and count that as one failure: that of the first."""
        first, *others = self._under_way
        self._under_way = []
        for hedge in others:  # it had less time than the call before it, so it says nothing more
            hedge.call.give_up()
            self._tell_dropped(hedge)
        miss = first.call.give_up()
        self._tell_failed(first, miss)
        return first, miss

    def _send(self, apart_from: CloudCall | None = None) -> None:
        """Send the message, which is paid for."""
        name, size_bytes, trace = str(next(_names)), len(self._message.data), self._context.trace
        place = None if trace is None else trace.calling()
        message = self._message if place is None else replace(self._message, traceparent=str(place))
        # Rules may look at the link: as it is without this message.
        judge = partial(self._context.router.judge, self._signals, self._context.router.state)
        # Told before it is done: on a busy machine the answer may be there before the sending returns.
        self._context.router.observe(CloudSent(self._model.name, name, len(self.rows), size_bytes, self._model.whole))
        try:
            call = self._uplink.start(message, judge, self.decision.give_up_s, apart_from)
        except BaseException:
            self._context.router.settle(self.decision, None)
            self._context.router.observe(CloudDropped(self._model.name, self.decision.probes, name))
            raise
        self._context.router.settle(self.decision, call.sent_bytes or None)
        self._context.metrics.sent(self._model.whole or self._model.name, call.sent_bytes)
        self._under_way.append(_Attempt(name, call, place))
        news = self._news
        call.on_end(lambda: news.put(None))

    def _hedge(self) -> None:
        self._hedge_at_s = math.inf
        if len(self._under_way) == 1 and self._context.router.acquire_hedge(self.decision):
            with suppress(EgressForbidden):  # the first may still be answered
                self._send(apart_from=self._under_way[0].call)
                self._hedged = True

    def _take_ended(self) -> None:
        for attempt in tuple(self._under_way):
            outcome = attempt.call.wait(-math.inf)
            if isinstance(outcome, CloudReply):
                self._take_reply(attempt, outcome)
            elif outcome is not None and not self._are_all_late(outcome):
                self._take_miss(attempt, outcome)
            if self.outcome is not None:
                return

    def _are_all_late(self, miss: CloudFailure) -> bool:
        """Whether a call ended since its own time is up, which is that of all: `give_up` counts them as one failure."""
        is_late = miss.reason is Reason.CLOUD_DEADLINE and time.monotonic() >= self.decision.give_up_s - _EARLY_S
        return is_late and len(self._under_way) > 1

    def _take_reply(self, attempt: _Attempt, reply: CloudReply) -> None:
        try:
            if self._joined is not None:
                reply = replace(reply, response=replace(reply.response, outputs=self._joined(reply.response.outputs)))
            if self._model.edge is not None:
                self._model.edge.check_cloud(reply.response.outputs, len(self.rows))
        except NotFinite as error:
            # A request may deserve it (what is not a number goes in and comes out), so it speaks against nobody.
            self._under_way.remove(attempt)
            self._tell_dropped(attempt, str(Reason.CLOUD_GARBAGE))
            self._settle(attempt, attempt.call.reject(str(error)))
            return
        except ModelFailed as error:
            self._take_miss(attempt, attempt.call.reject(str(error)))
            return
        self._under_way.remove(attempt)
        self._context.router.observe(self._answered(attempt, reply))
        self._trace(attempt, "")
        self._settle(attempt, reply)

    def _answered(self, attempt: _Attempt, reply: CloudReply) -> CloudAnswered:
        return CloudAnswered(
            self._model.name,
            len(self.rows),
            reply.sent_bytes,
            reply.total_s,
            reply.server_s,
            reply.is_first,
            received_bytes=reply.received_bytes,
            call=attempt.name,
            hedged=self._hedged,
        )

    def _take_miss(self, attempt: _Attempt, miss: CloudFailure) -> None:
        """Note a failure; it is the outcome only where no other call is under way and none follows."""
        self._under_way.remove(attempt)
        self._tell_failed(attempt, miss)
        if self._under_way:
            return
        if self._is_worth_another(miss) and self._context.router.acquire_retry(self.decision):
            self._may_retry = False
            try:
                self._send(apart_from=attempt.call)
            except EgressForbidden as error:
                self._stay(error, attempt.call.ended_s)
        else:
            self._settle(attempt, miss)

    def _is_worth_another(self, miss: CloudFailure) -> bool:
        wanted = self.decision.verdict.settings.on_failure(miss.reason) == "retry" and miss.reason not in HOPELESS
        if miss.retry_after_s is not None and not self._uplink.has_others:  # it said that it would be for nothing
            return False
        predicted_s = self.decision.predicted_cloud_s
        left_s = self.decision.give_up_s - time.monotonic()
        return wanted and self._may_retry and left_s > (0.0 if math.isnan(predicted_s) else predicted_s)

    def _stay(self, error: EgressForbidden, ended_s: float) -> None:
        """The rows stay here after all: the policy has changed since the decision."""
        self.outcome = CloudFailure(error.reason, str(error))
        self._ended_s = ended_s

    def _settle(self, attempt: _Attempt, outcome: CloudReply | CloudFailure) -> None:
        self.outcome = outcome
        self._ended_s = attempt.call.ended_s
        self._drop_others()

    def _drop_others(self) -> None:
        while self._under_way:
            attempt = self._under_way.pop()
            attempt.call.cancel()
            self._tell_dropped(attempt)

    def _tell_failed(self, attempt: _Attempt, miss: CloudFailure) -> None:
        self._trace(attempt, str(miss.reason))
        _log.debug("cloud: model=%s id=%s %s: %s", self._model.name, self._id, miss.reason, miss.detail)
        waited_s = attempt.call.elapsed_s if miss.reason is Reason.CLOUD_DEADLINE else math.inf
        self._context.router.observe(
            CloudCallFailed(self._model.name, miss.reason, self.decision.probes, waited_s, attempt.name)
        )
        if miss.retry_after_s is not None:
            self._context.router.observe(CloudHeld(self._model.name, miss.retry_after_s))

    def _tell_dropped(self, attempt: _Attempt, why: str = "cancelled") -> None:
        self._trace(attempt, why)
        self._context.router.observe(CloudDropped(self._model.name, self.decision.probes, attempt.name))

    def _trace(self, attempt: _Attempt, error: str) -> None:
        trace, call = self._context.trace, attempt.call
        if trace is not None and attempt.place is not None:
            facts = {"upwell.rows": len(self.rows), "upwell.sent_bytes": call.sent_bytes, "upwell.hedged": self._hedged}
            ended_s = call.ended_s
            trace.called(UPLINK, attempt.place, ended_s - call.elapsed_s, ended_s, facts, error)


def split_head(
    context: RequestContext,
    model: ServedModel,
    way: SplitRoute,
    inputs: Mapping[str, Array],
    decision: Decision,
    run_request: RunRequest,
    arrived_s: float,
) -> tuple[ServedModel, HeadOutput]:
    """The tail, as a model in the cloud, and what the head gives for the decision's rows.

    Raises as `EdgeModel.run` does; what the decision had taken for itself is given back then.
    """
    rows, head = len(decision.up_rows), model.head(way.key)
    try:
        run_request = timed(run_request, context.router.recent.edge.get(way.key), rows, arrived_s, time.monotonic())
        half = head.run(inputs, decision.deadline_s, run_request)
    except BaseException:
        context.router.give_back(decision)
        raise
    context.router.ran(way.key, rows, half.duration_s)
    if context.trace is not None:
        add_run(context.trace, HEAD, rows, half.duration_s)
    return head.tail(model), half
