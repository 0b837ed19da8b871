"""Sending kept cases beside the live requests, without hurting them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import replace

from upwell.edge.router_cell import RouterCell
from upwell.edge.uplink.calls import REASONS, CloudMiss, CloudReply, Message
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.oip.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.rules import Verdict
from upwell.shared.routing.state import CloudAnswered, CloudDropped, CloudSent

QUIET_S = 0.25
"""Nothing kept is sent within so long after a message of a live request: the next may follow."""

_names = itertools.count()


class Sender:
    """What the spool sends with, from one thread, each case right after it was asked about.

    Live requests come first: what is sent here is paid for from the same budgets, and the router counts it among the
    messages that the next one waits for. Its failures open no breaker: a case may be years old.
    """

    def __init__(self, router: RouterCell, uplink: Uplink) -> None:
        self._router = router
        self._uplink = uplink
        self._model = ""
        self._verdict: Verdict | None = None

    def may_send(self) -> bool:
        """Whether no live request is under way, and the cloud is not left alone."""
        state = self._router.state
        newest_s = max((flight.sent_s for flight in state.backlog.flights), default=-math.inf)
        is_quiet = time.monotonic() - newest_s > QUIET_S
        return is_quiet and not any(breaker.is_open for breaker in state.breakers.values())

    def still_allowed(self, model: str, tags: Mapping[str, str], size_bytes: int) -> bool:
        """Whether the policy of now lets the case leave, which is sent next."""
        self._model, self._verdict = model, self._router.verdict(model, tags, size_bytes)
        return not self._verdict.egress_rule

    def send(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """Send the case. Raises `RemoteError`, UNAVAILABLE where a budget is spent."""
        assert self._verdict is not None  # noqa: S101  the drainer asks before it sends
        message = Message.of(request)
        if not self._router.charge(self._model, len(message.data)):
            raise RemoteError(RemoteErrorKind.UNAVAILABLE, "a budget of the policy is spent")
        name = f"kept {next(_names)}"
        self._router.observe(CloudSent(self._model, name, 1, len(message.data)))
        outcome: CloudReply | CloudMiss | None = None
        try:
            call = self._uplink.start(message, self._verdict, time.monotonic() + timeout_s)
            outcome = call.wait(math.inf)
        finally:
            if not isinstance(outcome, CloudReply):
                self._router.observe(CloudDropped(self._model, (), name))
        if isinstance(outcome, CloudReply):
            self._note(name, outcome)
            return outcome.response
        reason = Reason.CLOUD_ERROR if outcome is None else outcome.reason
        raise RemoteError(_kind(reason), "no answer" if outcome is None else outcome.detail)

    def _note(self, name: str, reply: CloudReply) -> None:
        answered = CloudAnswered(self._model, 1, reply.sent_bytes, reply.total_s, reply.server_s, reply.is_first)
        self._router.observe(replace(answered, received_bytes=reply.received_bytes, call=name))


def _kind(reason: Reason) -> RemoteErrorKind:
    return next((kind for kind, known in REASONS.items() if known is reason), RemoteErrorKind.INTERNAL)
