"""An attempt to have some rows of a request answered by the cloud, and what the router learns from it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudHeld,
    CloudSent,
    Decision,
)
from upwell.shared.routing.flow.flow_actions import (
    CallEnded,
    Cancel,
    CloudFailure,
    CloudReplyFacts,
    Encode,
    GiveUp,
    JoinQueue,
    RouterPort,
    Send,
    Step,
)
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.scheduling.send_queue import QueuedMessage
from upwell.shared.value_classes import value_class

HOPELESS = frozenset({Reason.CLOUD_INVALID_ARGUMENT})
"""Failures caused by the request itself, for which a retry cannot help."""

_EARLY_S = 0.005
"""How long before its deadline a call may end with DEADLINE_EXCEEDED, since clocks and timers round (seconds)."""

_names = itertools.count()


class Clock:
    """The time of the latest event, in seconds of the driver's clock; set before any is handled."""

    __slots__ = ("now_s",)
    now_s: float


@value_class
class LinkWait:
    """How long a message waited for the link, and the number and size of the messages before it."""

    wait_s: float
    messages: int
    size_bytes: int


class CloudAttempt:
    """Rows offloaded by a decision; the outcome of each message is learnt exactly once.

    If the link is busy, the first message waits in the queue until its turn, and stays on the device if there is an
    obstacle by then. A hedge, a retry and a probe of the breaker do not wait.

    Usually one message is sent. If the decision names a hedge, a second one follows once the first has been in progress
    for that long and the router allows it: to another endpoint, or else over a connection of its own. The first good
    answer wins and the other call is cancelled. If the policy says `retry`, one more call follows a failed one in the
    same way, if the time left covers the predicted time of an answer and the budgets allow it. A probe of the breaker
    is sent once, since it is to find out how one request fares.

    The driver asks the policy again for each message. If the policy keeps the request on the device by then, the first
    message and a retry fail with that reason, and a hedge is dropped.

    `model` is the router's key of the cloud model, and `whole` the model of which it is a tail, or "". `outcome` is
    None until there is one, and if the edge answer came first. `ended_s` is NaN until then.
    """

    def __init__(
        self, clock: Clock, router: RouterPort, number: int, decision: Decision, target: tuple[str, str]
    ) -> None:
        self.number = number
        self.decision = decision
        self.rows = decision.up_rows
        self.outcome: CloudReplyFacts | CloudFailure | None = None
        self.calls: list[str] = []
        """Calls in progress."""
        self.link_wait: LinkWait | None = None
        """Whether and how it had to wait; its time is NaN while it does."""
        self.hedged = False
        self.model, self.whole = target
        self.started_s = self.ended_s = math.nan
        self.hedge_at_s = math.inf
        self._clock, self._router = clock, router
        self._may_retry = not decision.probes
        self._size_bytes = self._settled_bytes = 0
        self._queued: QueuedMessage | None = None
        self._frees_link: set[str] = set()

    @property
    def elapsed_s(self) -> float:
        """Time from sending to the end of the deciding call, or to the latest event."""
        return (self._clock.now_s if math.isnan(self.ended_s) else self.ended_s) - self.started_s

    @property
    def is_open(self) -> bool:
        """Whether an outcome may still come."""
        return self.outcome is None and (bool(self.calls) or self.is_queued)

    @property
    def is_queued(self) -> bool:
        """Whether the first message waits for the link."""
        return self._queued is not None

    def begin(self, *, may_wait: bool) -> Step[None]:
        """Send the first message, or with `may_wait` put it into the queue if the link is busy."""
        try:
            self._size_bytes = yield Encode(self.number)
        except BaseException:
            self._router.give_back(self.decision)  # free the probe's slot and return what was drawn from budgets
            raise
        decision, call = self.decision, str(next(_names))
        self.started_s = self._clock.now_s
        if may_wait and not decision.probes:
            message = QueuedMessage(
                call,
                self.model,
                len(self.rows),
                self._size_bytes,
                decision.gain,
                decision.needed_chance,
                decision.give_up_s,
                decision.interface,
            )
            if self._router.turn(message).at_s > -math.inf:
                self.link_wait = self._wait_behind(message)
                self._queued = message
                yield JoinQueue(message)
                return
        yield from self._send_first(call)

    def look(self, *, is_last: bool = False) -> Step[float]:
        """Send the waiting message if its turn has come, or keep it here if there is an obstacle; with `is_last` do one
        of both. Returns when to look again."""
        message = self._queued
        if message is None:
            return math.inf
        turn = self._router.turn(message)
        if not is_last and turn.at_s > self._clock.now_s:
            return turn.at_s
        if turn.obstacle is None and self._clock.now_s < message.give_up_s:
            call = self._leave_queue()
            self.started_s = self._clock.now_s
            yield from self._send_first(call)
        else:
            self._give_up_queue(turn.obstacle or Reason.CLOUD_TOO_SLOW)
        return -math.inf

    def _wait_behind(self, message: QueuedMessage) -> LinkWait:
        state = self._router.state.over(message.interface)
        sizes = [
            *(one.size_bytes for one in state.backlog.in_flight if not one.has_left),
            *(one.size_bytes for one in state.queue.before(message, self._clock.now_s)),
        ]
        return LinkWait(math.nan, len(sizes), sum(sizes))

    def _leave_queue(self) -> str:
        """Record how long it waited; returns its call."""
        assert self._queued is not None  # noqa: S101  the callers have looked
        assert self.link_wait is not None  # noqa: S101  noted when it was queued
        call, self._queued = self._queued.call, None
        self.link_wait = replace(self.link_wait, wait_s=self._clock.now_s - self.started_s)
        return call

    def _give_up_queue(self, obstacle: Reason) -> None:
        """Keep the rows on the device, since their message can no longer be in time."""
        self._tell_not_sent(self._leave_queue())
        self._stay(CloudFailure(obstacle, "the link was busy with others"), self._clock.now_s)

    def _send_first(self, call: str) -> Step[None]:
        if not self.decision.probes:
            self.hedge_at_s = self.started_s + self.decision.hedge_after_s
        denied = yield from self._send(call)
        if denied is not None:
            self._stay(denied, self.started_s)

    def take(self, ended: CallEnded) -> Step[None]:
        """Handle the end of a call."""
        if ended.call not in self.calls:
            return
        if not isinstance(ended.outcome, CloudFailure):
            self.calls.remove(ended.call)
            self._router.observe(self._answered(ended.call, ended.outcome))
            yield from self._settle(ended)
        elif ended.is_blameless:
            self.calls.remove(ended.call)
            self._tell_dropped(ended.call)
            yield from self._settle(ended)
        elif not self._are_all_late(ended.outcome):
            yield from self._miss(ended, ended.outcome)

    def hedge(self) -> Step[None]:
        """Send a hedge beside the only call in progress, if the router allows it."""
        self.hedge_at_s = math.inf
        if self._router.acquire_hedge(self.decision):
            (first,) = self.calls
            denied = yield from self._send(str(next(_names)), first)
            self.hedged = denied is None  # otherwise the first may still be answered

    def send_no_more(self) -> None:
        """The edge answer suffices: send neither a hedge nor a retry."""
        self.hedge_at_s = math.inf
        self._may_retry = False

    def give_up(self) -> Step[None]:
        """End late calls; if there is no answer by now, count one failure of the cloud, unless nothing was sent."""
        if self.is_queued:
            self._give_up_queue(Reason.CLOUD_TOO_SLOW)
        if self.is_open:
            ended = yield from self._end_late()
            yield from self._settle(ended)

    def overtaken(self) -> Step[None]:
        """End calls after the edge answer came first; that counts as a failure of the cloud if they took longer than
        predicted with confidence, or if there was no prediction. There is no outcome, since none is needed any more."""
        if not self.is_open:
            return
        if self.is_queued or self.elapsed_s < self.decision.predicted_sure_s:
            yield from self.drop()
        else:
            ended = yield from self._end_late()
            self.ended_s = ended.ended_s

    def drop(self) -> Step[None]:
        """Cancel calls whose answer is no longer needed, which says nothing about the cloud."""
        if self.outcome is None:
            if self.is_queued:
                self._tell_not_sent(self._leave_queue())
            yield from self._drop_others()
            if math.isnan(self.ended_s):
                self.ended_s = self._clock.now_s

    def _send(self, call: str, apart_from: str = "") -> Step[CloudFailure | None]:
        """Send the paid message; returns why not, if the policy keeps it here by now."""
        router, decision = self._router, self.decision
        known = router.state.over(decision.interface)
        # Told before it is done: on a busy machine the answer may be there before the sending returns.
        router.observe(CloudSent(self.model, call, len(self.rows), self._size_bytes, self.whole, decision.interface))
        try:
            result = yield Send(self.number, call, known, apart_from)
        except BaseException:
            self._tell_not_sent(call)
            raise
        if isinstance(result, CloudFailure):
            self._tell_not_sent(call)
            return result
        router.settle(decision, result.sent_bytes or None)
        self._settled_bytes = result.sent_bytes
        self.calls.append(call)
        if result.frees_link:
            self._frees_link.add(call)
        return None

    def _tell_not_sent(self, call: str) -> None:
        self._router.settle(self.decision, None)
        self._tell_dropped(call)

    def _end_late(self) -> Step[CallEnded]:
        """Cancel every call in progress, and count that as one failure, that of the first call."""
        first, *others = self.calls
        self.calls = []
        for hedge in others:  # a hedge had less time than the first call, so it adds nothing
            yield GiveUp(hedge)
            self._tell_dropped(hedge)
        ended: CallEnded = yield GiveUp(first)
        assert isinstance(ended.outcome, CloudFailure)  # noqa: S101  cancelling leads to a failure
        self._tell_failed(ended, ended.outcome)
        return ended

    def _are_all_late(self, miss: CloudFailure) -> bool:
        """Whether a call ended because the time of all is up: `give_up` counts them as one failure."""
        is_late = miss.reason is Reason.CLOUD_DEADLINE and self._clock.now_s >= self.decision.give_up_s - _EARLY_S
        return is_late and len(self.calls) > 1

    def _answered(self, call: str, reply: CloudReplyFacts) -> CloudAnswered:
        return CloudAnswered(
            self.model,
            len(self.rows),
            reply.sent_bytes,
            reply.total_s,
            reply.server_s,
            reply.is_first,
            received_bytes=reply.received_bytes,
            call=call,
            hedged=self.hedged,
            interface=self.decision.interface,
        )

    def _miss(self, ended: CallEnded, miss: CloudFailure) -> Step[None]:
        """Record a failure; it is the outcome only if no other call is in progress and none follows."""
        self.calls.remove(ended.call)
        self._tell_failed(ended, miss)
        if self.calls:
            return
        if self._is_worth_another(ended, miss) and self._router.acquire_retry(self.decision):
            self._may_retry = False
            denied = yield from self._send(str(next(_names)), ended.call)
            if denied is not None:
                self._stay(denied, ended.ended_s)
        else:
            yield from self._settle(ended)

    def _is_worth_another(self, ended: CallEnded, miss: CloudFailure) -> bool:
        wanted = self.decision.verdict.settings.on_failure(miss.reason) == "retry" and miss.reason not in HOPELESS
        if miss.retry_after_s is not None and not ended.has_others:  # the cloud said that a retry would fail
            return False
        predicted_s = self.decision.predicted_cloud_s
        left_s = self.decision.give_up_s - self._clock.now_s
        return wanted and self._may_retry and left_s > (0.0 if math.isnan(predicted_s) else predicted_s)

    def _stay(self, denied: CloudFailure, ended_s: float) -> None:
        """Keep the rows on the device: the policy has changed since the decision."""
        self.outcome = denied
        self.ended_s = ended_s

    def _settle(self, ended: CallEnded) -> Step[None]:
        self.outcome = ended.outcome
        self.ended_s = ended.ended_s
        yield from self._drop_others()

    def _drop_others(self) -> Step[None]:
        while self.calls:
            call = self.calls.pop()
            yield Cancel(call)
            self._tell_dropped(call)

    def _tell_failed(self, ended: CallEnded, miss: CloudFailure) -> None:
        if miss.is_unsent and self._settled_bytes:  # a late message may have left, and is paid for
            self._router.settle(self.decision, None, self._settled_bytes)
        waited_s = ended.elapsed_s if miss.reason is Reason.CLOUD_DEADLINE else math.inf
        chance = 1.0 if math.isnan(self.decision.chance) else self.decision.chance
        frees_link, decision = ended.call in self._frees_link, self.decision
        self._router.observe(
            CloudCallFailed(
                self.model,
                miss.reason,
                decision.probes,
                waited_s,
                ended.call,
                chance,
                frees_link,
                decision.interface,
                miss.detail if miss.is_unsent else "",
            )
        )
        if miss.retry_after_s is not None:
            self._router.observe(CloudHeld(self.model, miss.retry_after_s))

    def _tell_dropped(self, call: str) -> None:
        decision, frees_link = self.decision, call in self._frees_link
        self._router.observe(CloudDropped(self.model, decision.probes, call, frees_link, decision.interface))
