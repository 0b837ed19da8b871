"""The keys about telemetry that `agent.yaml` and `cloud.yaml` share."""

from __future__ import annotations

from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from upwell.shared.config.security import Address
from upwell.shared.config.yaml import FilePart
from upwell.shared.units import Share

LogFormat: TypeAlias = Literal["text", "json"]
"""How log lines are written to standard error."""

_PATH = "/v1/traces"


class Traces(FilePart):
    """OpenTelemetry traces over OTLP/HTTP; needs the extra `telemetry`."""

    endpoint: str = Field(
        description="The collector's URL, such as `http://127.0.0.1:4318`; `/v1/traces` is added. Off loopback "
        "`https`, unless `insecure`."
    )
    sample: Share = Field(
        0.05,
        description="Share of the requests recorded, such as 5%, of those whose caller has not decided that already.",
    )
    insecure: bool = Field(False, description="Allow `http` off loopback.")

    @model_validator(mode="after")
    def _reachable(self) -> Traces:
        try:
            url = urlsplit(self.endpoint)
            host, _ = url.hostname, url.port
        except ValueError:
            host = None
        if not host or url.scheme not in ("http", "https"):
            raise ValueError(f"expected a URL such as http://127.0.0.1:4318, got {self.endpoint.rpartition('@')[2]!r}")
        if url.username is not None or url.query or url.fragment:
            # What stands there may be a secret, which is not for a log.
            raise ValueError("expected a URL without name, password or query; OTEL_EXPORTER_OTLP_HEADERS has those")
        if url.scheme == "http" and not self.insecure and not Address(host).is_loopback:
            raise ValueError(f"{self.endpoint} would carry traces over a network in the clear; use https or `insecure`")
        return self

    @property
    def url(self) -> str:
        """Where requests with spans are posted to."""
        base = self.endpoint.rstrip("/")
        return base if base.endswith(_PATH) else base + _PATH
