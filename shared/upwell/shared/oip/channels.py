"""A client's way to a server, or to all servers of a name: the gRPC channel, its options, and what it proves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from upwell.shared.errors import ConfigError
from upwell.shared.oip.security import Address
from upwell.shared.oip.servicer import METHODS, SERVICE
from upwell.shared.oip.tls import PemFiles, channel_credentials
from upwell.shared.oip.watched import WatchedFiles

Options: TypeAlias = tuple[tuple[str, int | str], ...]

_OPTIONS: Options = (
    # A new client makes a new connection instead of joining one that may be half-open.
    ("grpc.use_local_subchannel_pool", 1),
    # After an outage the link is back within about a second; this is also the limit on one attempt to connect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # gRPC sends again what a connection that its server closes has not taken any more, and nothing else: there is no
    # retry policy. Whether to try again is decided where the deadline and the budget are known.
    ("grpc.enable_retries", 1),
)


def channel_options(address: Address, max_message_bytes: int, *, checks_health: bool) -> Options:
    """How gRPC is to treat a channel to `address`.

    Of several servers behind a name each call goes to the next one. One that cannot be reached gets none, nor, with
    `checks_health`, one whose health says NOT_SERVING; one that knows no health service counts as healthy. The name is
    looked up again when a connection ends.
    """
    limits = (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    )
    proxy = (("grpc.enable_http_proxy", 0),) if address.is_loopback else ()
    if address.name_server is None:
        return (*_OPTIONS, *limits, *proxy)
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if checks_health:
        config["healthCheckConfig"] = {"serviceName": ""}
    return (*_OPTIONS, *limits, *proxy, ("grpc.service_config", json.dumps(config)))


@dataclass(frozen=True)
class Link:
    """A channel, the certificates it was made with, and its methods, which take and give serialized messages."""

    pem: PemFiles | None
    channel: grpc.Channel
    methods: Mapping[str, Any]

    @classmethod
    def open(cls, endpoint: str, options: Options, pem: PemFiles | None, token: WatchedFiles[str] | None) -> Link:
        """Make a channel, which connects with its first call. `token` is what gRPC's own calls for health bring."""
        if pem is None:
            channel = grpc.insecure_channel(endpoint, options)
        else:
            credentials = channel_credentials(pem)
            if token is not None:
                calls = grpc.metadata_call_credentials(_HealthToken(token))
                credentials = grpc.composite_channel_credentials(credentials, calls)
            channel = grpc.secure_channel(endpoint, credentials, options)
        return cls(pem, channel, {name: channel.unary_unary(f"/{SERVICE}/{name}") for name in METHODS})


class _HealthToken(grpc.AuthMetadataPlugin):
    """Gives gRPC's own calls the token. All others bring theirs."""

    def __init__(self, token: WatchedFiles[str]) -> None:
        self._token = token

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        if not context.service_url.endswith("/grpc.health.v1.Health"):
            callback((), None)
            return
        try:
            callback((("authorization", f"Bearer {self._token.get()}"),), None)
        except ConfigError as error:
            callback((), error)
