"""One call to the cloud: its message, how it ends, and what each error means to the router."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn, Protocol

from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.endpoint import Connection, Endpoint
from upwell.shared.errors import ConfigError
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.open_client import Pending
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.reasons import Reason
from upwell.shared.value_classes import value_class

REASON_OF: Mapping[RemoteErrorKind, Reason] = {
    RemoteErrorKind.UNAVAILABLE: Reason.CLOUD_UNAVAILABLE,
    RemoteErrorKind.DEADLINE: Reason.CLOUD_DEADLINE,
    RemoteErrorKind.CANCELLED: Reason.CLOUD_UNAVAILABLE,
    RemoteErrorKind.RESOURCE_EXHAUSTED: Reason.CLOUD_EXHAUSTED,
    RemoteErrorKind.INVALID_ARGUMENT: Reason.CLOUD_INVALID_ARGUMENT,
    RemoteErrorKind.NOT_FOUND: Reason.CLOUD_MODEL_MISSING,
    RemoteErrorKind.UNAUTHENTICATED: Reason.CLOUD_UNAUTHENTICATED,
    RemoteErrorKind.PERMISSION_DENIED: Reason.CLOUD_UNAUTHENTICATED,
    RemoteErrorKind.CERTIFICATE: Reason.CLOUD_CERTIFICATE,
    RemoteErrorKind.GARBAGE: Reason.CLOUD_GARBAGE,
}
"""Maps an error from the cloud to the router's reason; others are `CLOUD_ERROR`."""


@value_class
class Message:
    """A request in wire form, encoded once for all attempts, and its place in a trace."""

    id: str
    data: bytes
    traceparent: str = ""

    @classmethod
    def of(cls, request: InferRequest, traceparent: str = "") -> Message:
        """The message for a request. Raises `InvalidRequest` for tensors that the protocol cannot carry."""
        return cls(request.id, converters.serialize_infer_request(request), traceparent)


class FailedCall:
    """Stands for a call that could not begin.

    A `ConfigError` means that this device's credentials are missing or broken.
    """

    sent_bytes = 0
    received_bytes = 0

    def __init__(self, error: ConfigError | RemoteError) -> None:
        is_remote = isinstance(error, RemoteError)
        self._error = error if is_remote else RemoteError(RemoteErrorKind.UNAUTHENTICATED, str(error))

    def result(self, timeout_s: float | None = None) -> NoReturn:  # noqa: ARG002  as a pending call takes it
        """Raise the error."""
        raise self._error

    def cancel(self) -> None:
        """Do nothing: no call is in progress."""

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        """Call it now: this call has ended."""
        callback(self)


@value_class
class ConnectionLease:
    """The endpoint of a call, and the connection that it uses."""

    endpoint: Endpoint
    link: Connection


class CallLedger(Protocol):
    """Learns how calls end: the uplink."""

    def answered(self, lease: ConnectionLease, network_s: float, size_bytes: int) -> None:
        """The call with so many bytes was answered, after `network_s` outside the server."""

    def missed(self, lease: ConnectionLease, reason: Reason, started_s: float) -> bool:
        """The call, begun at `started_s`, ended without an answer. Returns whether the next one goes to the same
        endpoint.
        """


class CloudCall:
    """One call in progress. Used by one thread; ends when `wait` returns an outcome, or with `cancel`.

    `lease` is None if nothing was sent.
    """

    def __init__(
        self,
        ledger: CallLedger,
        lease: ConnectionLease | None,
        pending: Pending | FailedCall,
        request_id: str,
        started_s: float,
    ) -> None:
        self.lease = lease
        self._request_id = request_id
        self._ledger = ledger
        self._pending = pending
        # Taken before sending: on a busy machine the answer may arrive before that returns.
        self._started_s = started_s
        self._ended_s = math.nan
        self._outcome: CloudReply | CloudFailure | None = None
        heard_s = None if lease is None else lease.link.answered_at_s
        self._is_first = heard_s is None or heard_s > started_s  # then the time includes handshakes
        pending.add_done_callback(self._note_end)

    @property
    def sent_bytes(self) -> int:
        """Size of the request's message."""
        return self._pending.sent_bytes

    @property
    def frees_link(self) -> bool:
        """Whether unsent data is dropped when the call is abandoned."""
        return self.lease is not None and self.lease.link.client.drops_unsent

    @property
    def elapsed_s(self) -> float:
        """Time from sending to the end of the call, whenever that was noticed; until now if it is still in progress."""
        return (time.monotonic() if math.isnan(self._ended_s) else self._ended_s) - self._started_s

    @property
    def ended_s(self) -> float:
        """The time at which it ended; now if it is still in progress."""
        return self._started_s + self.elapsed_s

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the call has ended, in the client's thread (or here, if it has): it must not block."""
        self._pending.add_done_callback(lambda _: callback())

    def wait(self, until_s: float) -> CloudReply | CloudFailure | None:
        """The outcome, or None if there is none at `until_s` (monotonic; infinity waits for the call's own end)."""
        if self._outcome is None:
            timeout_s = None if until_s == math.inf else max(0.0, until_s - time.monotonic())
            try:
                response = self._pending.result(timeout_s)
            except TimeoutError:
                return None
            except RemoteError as error:
                self._miss_by(error)
            else:
                self._take(response)
        return self._outcome

    def reject(self, detail: str) -> CloudFailure:
        """Count an answer that does not fit the signature as garbage."""
        self._outcome = miss = CloudFailure(Reason.CLOUD_GARBAGE, detail)
        return miss

    def give_up(self) -> CloudFailure:
        """Cancel a late call. One that has failed by itself counts as failed."""
        if isinstance(self._outcome, CloudFailure):
            return self._outcome
        miss = self._miss(Reason.CLOUD_DEADLINE, "no answer in time")
        self._pending.cancel()
        return miss

    def cancel(self) -> None:
        """Cancel a call whose answer is no longer needed; this says nothing about the link."""
        if self._outcome is None:
            self._outcome = CloudFailure(Reason.CLOUD_DEADLINE, "cancelled")
            self._pending.cancel()
            if self.lease is not None:
                self.lease.endpoint.give_back(self.lease.link)

    def _note_end(self, _: object) -> None:
        self._ended_s = time.monotonic()

    def _take(self, response: InferResponse) -> None:
        if not response.outputs:
            self._miss(Reason.CLOUD_GARBAGE, "the answer has no outputs")
        elif response.id not in ("", self._request_id):
            self._miss(Reason.CLOUD_GARBAGE, "the answer is to another request")
        else:
            self._outcome = self._reply(response)

    def _reply(self, response: InferResponse) -> CloudReply:
        assert self.lease is not None  # noqa: S101  an answer came some way
        sent_bytes, received_bytes = self._pending.sent_bytes, self._pending.received_bytes
        reply = CloudReply.of(response, sent_bytes, received_bytes, self.elapsed_s, is_first=self._is_first)
        self._ledger.answered(self.lease, max(0.0, reply.total_s - (reply.server_s or 0.0)), sent_bytes)
        self.lease.endpoint.give_back(self.lease.link)
        return reply

    def _miss_by(self, error: RemoteError) -> None:
        miss = self._miss(REASON_OF.get(error.kind, Reason.CLOUD_ERROR), str(error), error.retry_after_s)
        self._outcome = replace(miss, is_unsent=error.is_unsent)

    def _miss(self, reason: Reason, detail: str, retry_after_s: float | None = None) -> CloudFailure:
        stays = self.lease is not None and self._ledger.missed(self.lease, reason, self._started_s)
        is_busy = stays and reason is Reason.CLOUD_EXHAUSTED
        self._outcome = miss = CloudFailure(reason, detail, retry_after_s if is_busy else None)
        if self.lease is not None:
            self.lease.endpoint.give_back(self.lease.link)
        return miss
