"""Opens a client for an endpoint: gRPC, or HTTP/1.1 for a URL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from upwell.shared.config.addresses import parse_endpoint
from upwell.shared.config.security import ClientSecurity
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.oip.grpc.client.client import LOOPBACK_ONLY, OipClient, PendingInfer

if TYPE_CHECKING:
    from upwell.shared.oip.http.client.client import HttpClient, HttpPendingInfer

Client: TypeAlias = "OipClient | HttpClient"
"""A client of one server over either transport, with the interface of `OipClient`."""

Pending: TypeAlias = "PendingInfer | HttpPendingInfer"
"""An inference in progress over either transport. `cancel` does not discard an answer that has come."""


def open_client(
    endpoint: str,
    security: ClientSecurity = LOOPBACK_ONLY,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    silence_s: float | None = None,
    options: Sequence[tuple[str, int | str]] = (),
    interface: str = "",
) -> Client:
    """A client for `endpoint`, over the network interface `interface` if one is named. `options` are for gRPC,
    `silence_s` for HTTP. Raises `ConfigError`."""
    if parse_endpoint(endpoint).scheme:
        from upwell.shared.oip.http.client.client import HttpClient  # rarely needed, and it imports urllib

        return HttpClient(
            endpoint, security, max_message_bytes=max_message_bytes, silence_s=silence_s, interface=interface
        )
    return OipClient(endpoint, security, max_message_bytes=max_message_bytes, options=options, interface=interface)
