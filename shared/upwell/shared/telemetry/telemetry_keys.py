"""Telemetry keys that `agent.yaml` and `cloud.yaml` share."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from upwell.shared.config.addresses import Address, without_secrets
from upwell.shared.config.yaml import FilePart
from upwell.shared.units import Seconds, Share

LogFormat: TypeAlias = Literal["text", "json"]
"""Format of log lines on standard error."""


class _Collector(FilePart):
    """A collector's URL, and whether it may be called without TLS."""

    path: ClassVar[str]

    endpoint: str = Field(description="The collector's URL, such as `http://127.0.0.1:4318`; off loopback `https`.")
    insecure: bool = Field(False, description="Allow `http` off loopback.")

    @model_validator(mode="after")
    def _reachable(self) -> _Collector:
        try:
            url = urlsplit(self.endpoint)
            host, _ = url.hostname, url.port
        except ValueError:
            host = None
        if not host or url.scheme not in ("http", "https"):
            raise ValueError(f"expected a URL such as http://127.0.0.1:4318, got {without_secrets(self.endpoint)!r}")
        if url.username is not None or url.query or url.fragment:
            # The URL may hold a secret, which must not be logged.
            raise ValueError("expected a URL without name, password or query; put them in OTEL_EXPORTER_OTLP_HEADERS")
        if url.scheme == "http" and not self.insecure and not Address(host).is_loopback:
            what = self.path.rpartition("/")[2]
            raise ValueError(
                f"{self.endpoint} would send {what} over the network in clear; write https or `insecure: true`"
            )
        return self

    @property
    def url(self) -> str:
        """The URL to post to."""
        base = self.endpoint.rstrip("/")
        return base if base.endswith(self.path) else base + self.path


class Traces(_Collector):
    """OpenTelemetry traces over OTLP/HTTP; needs the extra `telemetry`."""

    path = "/v1/traces"

    sample: Share = Field(
        0.05,
        description="Share of requests traced if the caller has not decided.",
    )


class MetricsPush(_Collector):
    """Pushes all metrics over OTLP/HTTP, from a device that nobody can scrape; needs the extra `telemetry`."""

    path = "/v1/metrics"

    every: Seconds = Field(60.0, ge=1, le=3600, description="How often, ± 10 %.")
