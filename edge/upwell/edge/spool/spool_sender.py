"""Sending spooled cases without harming live requests."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from upwell.edge.models.edge_model import ServedModel
from upwell.edge.policy.router_service import RouterService
from upwell.edge.spool.spooled_request import Later
from upwell.edge.uplink.cloud_call import REASON_OF, CloudCall, Message
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.routing.decide.router_state import LINK, CloudAnswered, CloudDropped, CloudHeld, CloudSent, Signals
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.reasons import Reason

QUIET_S = 0.25
"""Pause after a message of a live request before a case is sent, since another request may follow."""

PATIENCE_S = 5.0
"""If live requests leave no such pause for this long, one case is sent between two of them."""

_LOST_S = 30.0
"""Time after which a message in progress is ignored, longer than any request may take."""

_names = itertools.count()


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
