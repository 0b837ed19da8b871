"""Configuration keys of a protocol server that `agent.yaml` and `cloud.yaml` share."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from upwell.shared.config.addresses import ListenAddress, TcpAddress, check_all_differ, without_secrets
from upwell.shared.config.security import ServerSecurity, TlsFiles
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.oip.auth.limit_keys import UNLIMITED, Limits
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES
from upwell.shared.telemetry.telemetry_keys import LogFormat, Traces
from upwell.shared.units import Bytes


def _origin(text: str) -> str:
    if re.fullmatch(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", text) is None:
        raise ValueError(
            f"expected an origin in lower case, such as https://site.example, got {without_secrets(text)!r}"
        )
    return text


Origin: TypeAlias = Annotated[str, AfterValidator(_origin)]
"""The origin of a page: scheme, host and, unless it is the default, port. No wildcards."""


class ServerTls(FilePart):
    """TLS for `listen` and `listen_http`: PEM files, read again when they change."""

    cert: RelativePath = Field(description="Certificate chain.")
    key: RelativePath = Field(description="Its private key.")
    client_ca: RelativePath | None = Field(
        None, description="Issuers of client certificates; every client must show one."
    )


class ServerKeys(FilePart):
    """Where a server listens, who may call it, and what it reports to its operator."""

    listen: tuple[ListenAddress, ...] = Field(
        min_length=1, description="Addresses: HOST:PORT (port 0: any free) or unix:/PATH."
    )
    listen_http: tuple[ListenAddress, ...] = Field((), description="The same over HTTP/1.1, at other addresses.")
    http_origins: tuple[Origin, ...] = Field(
        (),
        description="Sites whose pages may call from a browser, such as `https://site.example`.",
    )
    tls: ServerTls | None = None
    tokens: RelativePath | None = Field(None, description="A tokens.yaml with the bearer tokens of callers.")
    insecure: bool = Field(False, description="Allow addresses off loopback without TLS or authentication.")
    limits: Limits = UNLIMITED
    max_message: Bytes = Field(
        DEFAULT_MAX_MESSAGE_BYTES, gt=0, le=MAX_MESSAGE_BYTES, description="Largest message received or sent."
    )
    metrics: TcpAddress | None = Field(
        None,
        description="Where Prometheus scrapes it, such as 127.0.0.1:9464.",
    )
    traces: Traces | None = None
    log: LogFormat = Field("text", description="Log lines for people, or JSON objects.")

    @model_validator(mode="after")
    def _ports_of_their_own(self) -> ServerKeys:
        metrics = [self.metrics] if self.metrics else []
        check_all_differ({"listen": self.listen, "listen_http": self.listen_http, "metrics": metrics})
        return self

    @property
    def security(self) -> ServerSecurity:
        """The protection of the server."""
        tls = TlsFiles(self.tls.cert, self.tls.key, self.tls.client_ca) if self.tls else None
        return ServerSecurity(tls, self.tokens, self.insecure)
