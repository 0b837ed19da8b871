"""Sends spooled cases when the link is back: one at a time, after live requests, from what their budgets leave."""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from upwell.edge.models.edge_model import ServedModel
from upwell.edge.policy.router_service import RouterService
from upwell.edge.spool.database_keeper import Keeper
from upwell.edge.spool.open_database import REOPEN_S
from upwell.edge.spool.result_delivery import News
from upwell.edge.spool.spool_store import Store
from upwell.edge.spool.spooled_request import Later, SpoolLimits, SpoolTally, SpoolUnavailable, Stored
from upwell.edge.uplink.cloud_call import REASON_OF, CloudCall, Message
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.egress import EgressForbidden
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.oip.codec.converters import serialize_infer_response
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.routing.decide.router_state import LINK, CloudAnswered, CloudDropped, CloudHeld, CloudSent, Signals
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.reasons import Reason

T = TypeVar("T")


@dataclass(frozen=True)
class CaseSender:
    """The callbacks for sending spooled cases.

    `send` sends a request with a time limit in seconds; raises `RemoteError`, and `EgressForbidden` if it must stay.
    `may_send`: whether anything may be sent now. `left_alone`: the models whose cases must wait. `still_allowed`:
    whether the present policy lets a request of this model with these tags leave.
    """

    send: Callable[[InferRequest, float], InferResponse]
    may_send: Callable[[], bool]
    left_alone: Callable[[], Collection[str]]
    still_allowed: Callable[[str, Mapping[str, str], InferRequest], bool]


NOBODYS_FAULT = frozenset(
    {
        RemoteErrorKind.UNAVAILABLE,
        RemoteErrorKind.CANCELLED,
        RemoteErrorKind.UNAUTHENTICATED,
        RemoteErrorKind.PERMISSION_DENIED,
        RemoteErrorKind.CERTIFICATE,
    }
)
"""Errors that are not the case's fault: it waits as long as needed."""

QUIET_S = 0.25
"""Pause after a message of a live request before a case is sent, since another request may follow."""

PATIENCE_S = 5.0
"""If live requests leave no such pause for this long, one case is sent between two of them."""

_LOST_S = 30.0
"""Time after which a message in progress is ignored, longer than any request may take."""

_names = itertools.count()

_POLL_S = 0.1
_REST_POLL_S = 1.0
_IDLE_S = 30.0
_FREE_CASES = 3
"""Number of different cases failing in a row after which the cloud itself is suspected."""

_MOST_REMEMBERED = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Failures:
    """How often a case has failed, and how many others had passed by the last time."""

    count: int = 0
    passed: int = -1


@dataclass(frozen=True)
class _Rest:
    """How often in a row a model had to pause, and until when (monotonic)."""

    count: int = 0
    until_s: float = 0.0


class Drainer:
    """Sends one case at a time: oldest first, spooled ones before audits, at most `rate_per_s` and half the time.

    A case that the cloud rejects (INVALID_ARGUMENT) is set aside at once. After any other error that may be its fault
    it pauses, twice as long each time, while the others continue; the error counts as an attempt only if something else
    has succeeded since the last one, and after `attempts` of those it is set aside. So neither a case that breaks the
    cloud nor a portal that garbles every answer costs other cases. When the link is down nothing counts, and all cases
    pause; if the cloud does not have a model, or its budget is spent (`Later`), the cases of that model pause. The n-th
    pause is `first_pause_s`·2ⁿ⁻¹ (at most `longest_pause_s`), times a random factor in [0.5, 1], so that a thousand
    devices behind one link do not return all at once.
    """

    def __init__(
        self,
        keeper: Keeper[Store],
        limits: SpoolLimits,
        tally: SpoolTally,
        results: News,
        sender: CaseSender,
        seed: int | None = None,
    ) -> None:
        self._keeper = keeper
        self._limits = limits
        self._tally = tally
        self._results = results
        self._sender = sender
        self._random = random.Random(seed)  # noqa: S311 (spreads load; keeps no secret)
        self._changed = threading.Condition()
        self._closing = False
        self._news = False
        self._passed = 0
        self._took_s = 0.0
        self._outages = 0
        self._failing: set[str] = set()
        self._failures: dict[str, _Failures] = {}
        self._rests: dict[str, _Rest] = {}
        self._thread = threading.Thread(target=self._run, name="spool-drainer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for cases now, since there is a new one."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def cloud_answered(self) -> None:
        """Note that the cloud answered: the link is up, so later failures happen while other requests succeed."""
        with self._changed:
            self._passed += 1
            if self._outages or self._failing:
                self._outages = 0
                self._failing.clear()
                self._changed.notify_all()

    def stop(self) -> None:
        """Send nothing more. A call in progress runs to its end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, after any call in progress."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing:
            try:
                self._step()
            except SpoolUnavailable:
                self._pause(REOPEN_S)
            except Exception as error:  # noqa: BLE001 (the boundary to what the agent handed us: the thread must live)
                _log.error("sending the spool failed; it will be tried again", exc_info=error)
                self._pause(REOPEN_S)

    def _step(self) -> None:
        if not self._sender.may_send():
            self._pause(_POLL_S)
            return
        began_s = time.monotonic()
        resting = {model for model, rest in self._rests.items() if began_s < rest.until_s}
        resting.update(self._sender.left_alone())
        item, due_s = self._keeper.ask(
            lambda store: (store.next_due(self._keeper.now_s(), resting), store.next_due_s())
        )
        if item is None:
            due_in_s = math.inf if due_s is None else max(0.0, due_s - self._keeper.now_s())
            self._idle(_REST_POLL_S if resting else min(_IDLE_S, due_in_s))
        elif self._try(item):
            took_s = self._took_s  # only of sending, not of waiting for a full disk
            self._pause(max(took_s, 1.0 / self._limits.rate_per_s - took_s))  # leaves half of the link to others
            self._wait_for_cloud()

    def _try(self, item: Stored) -> bool:
        """Send the case unless it may no longer leave; returns whether that was tried."""
        self._took_s = 0.0
        try:
            request = item.infer_request()
            if not self._sender.still_allowed(item.model, item.tags, request):
                return self._deny(item)
            response = self._send_timed(request)
            _check(request, response)
            answer = serialize_infer_response(response)
        except EgressForbidden:  # the policy changed a moment ago
            return self._deny(item)
        except RemoteError as error:
            if error.kind is RemoteErrorKind.INVALID_ARGUMENT:
                self._set_aside(item, item.attempts + 1, str(error))
            elif error.kind is RemoteErrorKind.NOT_FOUND:
                self._note_rest(item, str(error))
            elif error.kind in NOBODYS_FAULT:
                self._note_outage(item, str(error))
            else:
                self._note_error(item, str(error))
        except Later as error:
            self._note_rest(item, str(error))
        except InvalidRequest as error:
            self._set_aside(item, item.attempts + 1, f"the stored case cannot be read: {error}")
        except ConfigError as error:  # this device's token or certificate is missing or broken
            self._note_outage(item, str(error))
        except Exception as error:  # noqa: BLE001 (whatever `send` raises, the others must go up)
            _log.error("sending case %s failed", item.id, exc_info=error)
            self._note_error(item, f"{type(error).__name__}: {error}")
        else:
            self._finish(item, answer)
        return True

    def _deny(self, item: Stored) -> bool:
        self._save(lambda store: store.remove(item.id, "denied"))
        return False

    def _send_timed(self, request: InferRequest) -> InferResponse:
        began_s = time.monotonic()
        try:
            return self._sender.send(request, self._limits.send_timeout_s)
        finally:
            self._took_s = time.monotonic() - began_s

    def _finish(self, item: Stored, answer: bytes) -> None:
        self._failures.pop(item.id, None)
        self._rests.pop(item.model, None)
        self.cloud_answered()
        wall_s = time.time()
        if self._save(lambda store: store.finish(item.id, answer, self._keeper.now_s(), wall_s)):
            self._results.publish()

    def _note_outage(self, item: Stored, text: str) -> None:
        """Not the case's fault: it goes behind the others that are due, and all pause."""
        self._tally.add({"unavailable": 1})
        self._outages += 1
        next_s = self._keeper.now_s()
        self._save(lambda store: store.postpone(item.id, next_s, item.attempts, text))

    def _note_rest(self, item: Stored, text: str) -> None:
        """Nothing of this model can be sent for now: the case goes behind the others, and the model pauses."""
        self._tally.add({"unavailable": 1})
        count = self._rests.get(item.model, _Rest()).count + 1
        self._rests[item.model] = _Rest(count, time.monotonic() + self._jittered(count))
        next_s = self._keeper.now_s()
        self._save(lambda store: store.postpone(item.id, next_s, item.attempts, text))

    def _note_error(self, item: Stored, text: str) -> None:
        self._tally.add({"errors": 1})
        before = self._failures.get(item.id, _Failures())
        attempts = item.attempts + (self._passed > before.passed)
        if attempts >= self._limits.attempts:
            self._set_aside(item, attempts, text)
            return
        if len(self._failures) >= _MOST_REMEMBERED:
            self._failures.clear()
            self._failing.clear()
        self._failures[item.id] = _Failures(before.count + 1, self._passed)
        self._failing.add(item.id)
        next_s = self._keeper.now_s() + self._jittered(before.count + 1)
        self._save(lambda store: store.postpone(item.id, next_s, attempts, text))

    def _set_aside(self, item: Stored, attempts: int, text: str) -> None:
        _log.warning("set aside case %s of model %s: %s", item.id, item.model, text)
        self._failures.pop(item.id, None)
        self._save(lambda store: store.set_aside(item.id, attempts, text))

    def _save(self, work: Callable[[Store], T]) -> T | None:
        """Do the work on disk before anything else is sent; otherwise a case could be sent again and again."""
        while True:
            try:
                return self._keeper.ask(work)
            except SpoolUnavailable:
                if self._closing:
                    return None
                self._pause(REOPEN_S)

    def _jittered(self, count: int) -> float:
        longest_s = min(self._limits.longest_pause_s, self._limits.first_pause_s * 2.0 ** min(count - 1, 60))
        return longest_s * self._random.uniform(0.5, 1.0)

    @property
    def _misses(self) -> int:
        """The number of failures since link and cloud last answered."""
        return self._outages + max(0, len(self._failing) - _FREE_CASES)

    def _wait_for_cloud(self) -> None:
        """If the cloud seems to be failing, pause, or until it answers another request."""
        if misses := self._misses:
            pause_s = self._jittered(misses)
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not self._misses, pause_s)

    def _pause(self, pause_s: float) -> None:
        if pause_s > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause_s)

    def _idle(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._news, pause_s)
            self._news = False


def _check(request: InferRequest, response: InferResponse) -> None:
    """Raise `RemoteError` unless the response is the cloud's answer to this request."""
    if not response.outputs:
        raise RemoteError(RemoteErrorKind.GARBAGE, "the answer has no outputs")
    if response.id not in ("", request.id):
        raise RemoteError(RemoteErrorKind.GARBAGE, "the answer is to another request")
    if response.parameters.get("upwell.degraded") is True:
        # A gateway answered instead of the cloud, which the device could do as well.
        raise RemoteError(RemoteErrorKind.UNAVAILABLE, "a gateway answered, not the cloud")


class SpoolSender:
    """The spool's sender, used from one thread; each case is sent right after its check.

    Live requests come first: cases are charged to what these leave of the same budgets, and the router counts them
    among the messages ahead of the next one. A case costs nothing if no byte of it has left; a late one may have left.
    A case's failure opens no breaker, since it may be very old. After an open breaker's wait a case may probe the
    cloud, since there may be no live request to do so.
    """

    def __init__(self, router: RouterService, uplink: Uplink, models: Mapping[str, ServedModel]) -> None:
        self._router = router
        self._uplink = uplink
        self._models = models
        self._signals: Signals | None = None
        self._sent_at_s = -math.inf

    def may_send(self) -> bool:
        """Whether no live request is in progress or was sent just now, and no pause is due for the cloud."""
        state, now_s = self._router.state, time.monotonic()
        is_busy = any(
            not message.is_cancelled and now_s - message.sent_s < _LOST_S for message in state.backlog.in_flight
        )
        newest_s = self._router.sent_at_s
        is_quiet = newest_s == self._sent_at_s or now_s - newest_s > QUIET_S
        if is_busy or not (is_quiet or now_s - self._sent_at_s > PATIENCE_S):
            return False
        return LINK not in self._waited_for(now_s)

    def left_alone(self) -> Collection[str]:
        """Models with an open breaker, and those that the cloud asked to retry later."""
        return self._waited_for(time.monotonic())

    def _waited_for(self, now_s: float) -> Collection[str]:
        state = self._router.state
        failing = {
            key
            for key, one in state.breakers.items()
            if one.is_open and (now_s < one.open_until_s or not one.has_slot(now_s))
        }
        return failing | {key for key, until_s in state.backoff_until.items() if now_s < until_s}

    def still_allowed(self, model: str, tags: Mapping[str, str], request: InferRequest) -> bool:
        """Whether the present policy lets the case leave, which is sent next."""
        served = self._models.get(model)
        if served is not None and served.edge is not None:
            sizes = served.edge.signature.row_sizes_bytes(request.inputs)
        else:  # no longer served here, so its rows are unknown
            sizes = (len(Message.of(request).data),)
        self._signals = Signals(RequestFacts(model, tags, max(sizes), time.time()), sizes, time.monotonic())
        return self._router.judge(self._signals).denial is None

    def send(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """Send the case. Raises `RemoteError`, `Later` if a budget is spent, and `EgressForbidden`."""
        assert self._signals is not None  # noqa: S101  the drainer asks before it sends
        message, model = Message.of(request), self._signals.request_facts.model
        charged_at_s = time.time()
        if not self._router.charge(model, len(message.data), charged_at_s):
            raise Later("a budget of the policy is spent for now")
        name = f"kept {next(_names)}"
        judge = partial(self._router.judge, self._signals, self._router.state)
        self._router.observe(CloudSent(model, name, 1, len(message.data)))
        self._sent_at_s = self._router.sent_at_s
        call: CloudCall | None = None
        outcome: CloudReply | CloudFailure | None = None
        try:
            call = self._uplink.start(message, judge, time.monotonic() + timeout_s)
            outcome = call.wait(math.inf)
        finally:
            if not isinstance(outcome, CloudReply):
                self._router.observe(CloudDropped(model, (), name))
            if call is None or not call.sent_bytes or (isinstance(outcome, CloudFailure) and outcome.is_unsent):
                self._router.refund(model, len(message.data), charged_at_s)
            if isinstance(outcome, CloudFailure) and outcome.retry_after_s is not None:
                self._router.observe(CloudHeld(model, outcome.retry_after_s))
        if isinstance(outcome, CloudReply):
            self._note(model, name, outcome)
            return outcome.response
        reason = Reason.CLOUD_ERROR if outcome is None else outcome.reason
        raise RemoteError(_kind(reason), "no answer" if outcome is None else outcome.detail)

    def _note(self, model: str, name: str, reply: CloudReply) -> None:
        answered = CloudAnswered(model, 1, reply.sent_bytes, reply.total_s, reply.server_s, reply.is_first)
        self._router.observe(replace(answered, received_bytes=reply.received_bytes, call=name))


def _kind(reason: Reason) -> RemoteErrorKind:
    return next((kind for kind, known in REASON_OF.items() if known is reason), RemoteErrorKind.INTERNAL)
