"""A client for whatever an endpoint says: gRPC, or HTTP/1.1 for a URL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from upwell.shared.oip.client import LOOPBACK_ONLY, OipClient
from upwell.shared.oip.dataplane import InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.http.client import HttpClient
from upwell.shared.oip.security import ClientSecurity, parse_endpoint
from upwell.shared.oip.server import DEFAULT_MAX_MESSAGE_BYTES


class Pending(Protocol):
    """An inference under way, over either transport: see `client.PendingInfer`."""

    sent_bytes: int

    def result(self, timeout_s: float | None = None) -> InferResponse: ...  # noqa: D102  as there
    @property
    def received_bytes(self) -> int: ...  # noqa: D102  as there
    def done(self) -> bool: ...  # noqa: D102  as there
    def cancel(self) -> None: ...  # noqa: D102  as there
    def add_done_callback(self, callback: Callable[[Any], None]) -> None: ...  # noqa: D102  as there


class Client(Protocol):
    """A client of one server, over either transport: see `client.OipClient`."""

    endpoint: str

    def infer(self, request: InferRequest, timeout_s: float) -> InferResponse: ...  # noqa: D102  as there
    def infer_async(  # noqa: D102  as there
        self, request: InferRequest | bytes, timeout_s: float, traceparent: str = ""
    ) -> Pending: ...
    def warm_up(self, timeout_s: float, on_end: Callable[[bool], None]) -> None: ...  # noqa: D102  as there
    def server_live(self, timeout_s: float) -> bool: ...  # noqa: D102  as there
    def ready(self, timeout_s: float, model: str | None = None, version: str = "") -> bool: ...  # noqa: D102  as there
    def server_metadata(self, timeout_s: float) -> ServerMetadata: ...  # noqa: D102  as there
    def metadata(self, model: str, timeout_s: float, version: str = "") -> ModelMetadata: ...  # noqa: D102  as there
    def close(self) -> None: ...  # noqa: D102  as there


def open_client(
    endpoint: str,
    security: ClientSecurity = LOOPBACK_ONLY,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    silence_s: float | None = None,
    options: Sequence[tuple[str, int | str]] = (),
) -> Client:
    """A client for `endpoint`. `options` are for gRPC, `silence_s` for HTTP. Raises `ConfigError`."""
    if parse_endpoint(endpoint).scheme:
        return HttpClient(endpoint, security, max_message_bytes=max_message_bytes, silence_s=silence_s)
    return OipClient(endpoint, security, max_message_bytes=max_message_bytes, options=options)
