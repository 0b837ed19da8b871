"""One call at a time to the cloud over a channel that is thrown away when it misbehaves."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.oip.client import OipClient, PendingInfer, RemoteError, RemoteErrorKind
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, Parameter
from upwell.shared.oip.security import ClientSecurity
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.rules import Verdict

REASONS: Mapping[RemoteErrorKind, Reason] = {
    RemoteErrorKind.UNAVAILABLE: Reason.CLOUD_UNAVAILABLE,
    RemoteErrorKind.DEADLINE: Reason.CLOUD_DEADLINE,
    RemoteErrorKind.CANCELLED: Reason.CLOUD_UNAVAILABLE,
    RemoteErrorKind.RESOURCE_EXHAUSTED: Reason.CLOUD_EXHAUSTED,
    RemoteErrorKind.INVALID_ARGUMENT: Reason.CLOUD_INVALID_ARGUMENT,
    RemoteErrorKind.NOT_FOUND: Reason.CLOUD_MODEL_MISSING,
    RemoteErrorKind.UNAUTHENTICATED: Reason.CLOUD_UNAUTHENTICATED,
    RemoteErrorKind.PERMISSION_DENIED: Reason.CLOUD_UNAUTHENTICATED,
    RemoteErrorKind.GARBAGE: Reason.CLOUD_GARBAGE,
}
"""What an error from the cloud is to the router; what is not named is `CLOUD_ERROR`."""

SUSPECT = frozenset({Reason.CLOUD_DEADLINE, Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_GARBAGE, Reason.CLOUD_ERROR})
"""Failures after which the connection itself may be at fault (half open, out of step): the next call gets a new one."""


class EgressForbidden(UpwellError):
    """Something tried to send a request that the policy keeps on the device. A bug in the caller, caught here."""


@dataclass(frozen=True)
class CloudReply:
    """An answer of the cloud and what it cost. The server's times are None where it does not report them."""

    response: InferResponse
    sent_bytes: int
    total_s: float
    queue_s: float | None
    compute_s: float | None
    is_first: bool

    @property
    def digest(self) -> str:
        """The digest of the model that answered, up there or on a gateway that is an agent; empty if unsaid."""
        facts = self.response.parameters
        return str(facts.get("upwell.cloud_digest") or facts.get("upwell.edge_digest") or "")

    @property
    def is_degraded(self) -> bool:
        """Whether a gateway answered in the cloud's stead: an agent says so."""
        return self.response.parameters.get("upwell.degraded") is True

    @property
    def reason(self) -> Reason | None:
        """The reason that a gateway gives, where it is one that we know."""
        told = self.response.parameters.get("upwell.reason")
        return next((reason for reason in Reason if reason == told), None)

    @property
    def server_s(self) -> float | None:
        """The server's own part of the time."""
        if self.queue_s is None or self.compute_s is None:
            return None
        return self.queue_s + self.compute_s


@dataclass(frozen=True)
class CloudMiss:
    """No answer, and why; `detail` is the other side's text."""

    reason: Reason
    detail: str


class _Link:
    """One client and its channel, closed when it is retired and nobody uses it any more."""

    def __init__(self, client: OipClient) -> None:
        self.client = client
        self.users = 0
        self.retired = False
        self.answered = False


class Uplink:
    """Sends requests to one cloud endpoint. No byte leaves before the first call that the policy allows.

    The constructor raises `ConfigError` for an endpoint or security files that are wrong.
    """

    def __init__(self, endpoint: str, security: ClientSecurity, max_message_bytes: int) -> None:
        self._endpoint = endpoint
        self._security = security
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._link: _Link | None = _Link(self._new_client())

    def start(self, request: InferRequest, verdict: Verdict, give_up_s: float) -> CloudCall:
        """Send a request that may take until `give_up_s` (monotonic), and return at once.

        This is where bytes leave: raises `EgressForbidden` if the policy's verdict on the request forbids it,
        whatever was decided before. Where the call cannot even begin (a token file that is gone, say), the
        `CloudCall` has failed already.
        """
        if verdict.egress_rule:
            raise EgressForbidden(f"rule {verdict.egress_rule!r} denies egress")
        started_s = time.monotonic()
        try:
            link = self._take()
        except ConfigError as error:
            return CloudCall(self, None, _Stillborn(error), request.id, started_s)
        try:
            pending = link.client.infer_async(request, max(0.0, give_up_s - started_s))
        except (ConfigError, RemoteError) as error:
            return CloudCall(self, link, _Stillborn(error), request.id, started_s)
        except BaseException:
            self._give_back(link)
            raise
        return CloudCall(self, link, pending, request.id, started_s)

    def metadata(self, model: str, timeout_s: float) -> ModelMetadata:
        """What the cloud says about a model. Raises `RemoteError`."""
        link = self._take()
        try:
            return link.client.metadata(model, timeout_s=timeout_s)
        finally:
            self._give_back(link)

    def close(self) -> None:
        """Cancel what is in flight and close the channel."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.client.close()

    def retire(self, link: _Link) -> None:
        """Use a new connection from now on."""
        with self._lock:
            link.retired = True
            if self._link is link:
                self._link = None

    def _take(self) -> _Link:
        with self._lock:
            if self._link is None:
                self._link = _Link(self._new_client())
            self._link.users += 1
            return self._link

    def _new_client(self) -> OipClient:
        return OipClient(self._endpoint, self._security, max_message_bytes=self._max_message_bytes)

    def _give_back(self, link: _Link | None) -> None:
        if link is None:
            return
        with self._lock:
            link.users -= 1
            unused = link.retired and link.users == 0
        if unused:
            link.client.close()


class _Stillborn:
    """Stands for a call that could not begin.

    A `ConfigError` there means that what this device would prove itself with is missing or broken.
    """

    sent_bytes = 0

    def __init__(self, error: ConfigError | RemoteError) -> None:
        is_remote = isinstance(error, RemoteError)
        self._error = error if is_remote else RemoteError(RemoteErrorKind.UNAUTHENTICATED, str(error))

    def result(self, timeout_s: float | None = None) -> NoReturn:  # noqa: ARG002  as a pending call takes it
        raise self._error

    def cancel(self) -> None:
        """Nothing is under way."""

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        callback(self)


class CloudCall:
    """One request on its way. Used by one thread; ends with `wait` giving an outcome, or with `cancel`."""

    def __init__(
        self, uplink: Uplink, link: _Link | None, pending: PendingInfer | _Stillborn, request_id: str, started_s: float
    ) -> None:
        self._request_id = request_id
        self._uplink = uplink
        self._link = link
        self._pending = pending
        self._started_s = (
            started_s  # from before the sending: on a busy machine the answer may be there before it returns
        )
        self._ended_s = math.nan
        self._outcome: CloudReply | CloudMiss | None = None
        pending.add_done_callback(self._note_end)

    @property
    def sent_bytes(self) -> int:
        """Size of the request's message."""
        return self._pending.sent_bytes

    @property
    def elapsed_s(self) -> float:
        """Time from sending to the end of the call, whenever that was noticed; to now while it goes on."""
        return (time.monotonic() if math.isnan(self._ended_s) else self._ended_s) - self._started_s

    def _note_end(self, _: object) -> None:
        self._ended_s = time.monotonic()

    def wait(self, until_s: float) -> CloudReply | CloudMiss | None:
        """The outcome, or None if there is none yet at `until_s` (monotonic; infinity waits for the call's own end)."""
        if self._outcome is None:
            timeout_s = None if until_s == math.inf else max(0.0, until_s - time.monotonic())
            try:
                response = self._pending.result(timeout_s)
            except TimeoutError:
                return None
            except RemoteError as error:
                self._finish(CloudMiss(REASONS.get(error.kind, Reason.CLOUD_ERROR), str(error)))
            else:
                self._finish(self._reply(response) if self._is_ours(response) else self._not_ours(response))
        return self._outcome

    def _is_ours(self, response: InferResponse) -> bool:
        return bool(response.outputs) and response.id in ("", self._request_id)

    def _not_ours(self, response: InferResponse) -> CloudMiss:
        detail = "the answer has no outputs" if not response.outputs else "the answer is to another request"
        return CloudMiss(Reason.CLOUD_GARBAGE, detail)

    def reject(self, detail: str) -> CloudMiss:
        """Count an answer that was read but is not what the signature promises as garbage."""
        self._outcome = CloudMiss(Reason.CLOUD_GARBAGE, detail)
        return self._outcome

    def give_up(self) -> CloudMiss:
        """Cancel a call that is late."""
        self._finish(CloudMiss(Reason.CLOUD_DEADLINE, "no answer in time"))
        self._pending.cancel()
        assert isinstance(self._outcome, CloudMiss)  # noqa: S101  set one line above
        return self._outcome

    def cancel(self) -> None:
        """Cancel a call whose answer nobody needs any more; says nothing about the link."""
        if self._outcome is None:
            self._outcome = CloudMiss(Reason.CLOUD_DEADLINE, "cancelled")
            self._pending.cancel()
            self._uplink._give_back(self._link)

    def _reply(self, response: InferResponse) -> CloudReply:
        assert self._link is not None  # noqa: S101  an answer came over some link
        is_first, self._link.answered = not self._link.answered, True
        return CloudReply(
            response,
            self._pending.sent_bytes,
            self.elapsed_s,
            _seconds(response.parameters.get("upwell.cloud_queue_ms")),
            _seconds(response.parameters.get("upwell.cloud_compute_ms")),
            is_first,
        )

    def _finish(self, outcome: CloudReply | CloudMiss) -> None:
        self._outcome = outcome
        if isinstance(outcome, CloudMiss) and outcome.reason in SUSPECT and self._link is not None:
            self._uplink.retire(self._link)
        self._uplink._give_back(self._link)


def _seconds(milliseconds: Parameter | None) -> float | None:
    """A reported time, if the server reported one that can be true."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        return None
    return milliseconds / 1e3 if math.isfinite(milliseconds) and milliseconds >= 0 else None
