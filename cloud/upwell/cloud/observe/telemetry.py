"""Metrics, traces and access log of one serving process, as configured in `cloud.yaml`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version as package_version
from typing import Any

from prometheus_client import CollectorRegistry, Info

from upwell.cloud.config import Serve
from upwell.cloud.observe.metric_families import CloudCollector, Snapshot
from upwell.cloud.observe.observer import Observed, Observer, states_of
from upwell.cloud.observe.request_counters import Reporter, RequestCounters
from upwell.cloud.service.model_loader import ModelVersions, OnRun
from upwell.shared.config.security import Address, parse_address
from upwell.shared.oip.dataplane import Dataplane
from upwell.shared.telemetry.open_collectors import open_tracer
from upwell.shared.telemetry.page_server import serve_pages


class Telemetry:
    """Metrics, traces and the access log of one process. What is not configured is not created and costs nothing.

    `versions_by_model` returns the models served now. Raises `ConfigError` if the extra for traces is missing.
    """

    def __init__(self, serve: Serve, versions_by_model: Callable[[], Mapping[str, ModelVersions]]) -> None:
        instance = f"{socket.gethostname()}:{os.getpid()}"
        self._versions_by_model = versions_by_model
        self._tracer = open_tracer(serve.traces, "upwell-cloud", instance) if serve.traces else None
        self._tally = RequestCounters(lambda: states_of(versions_by_model()), self._became) if serve.metrics else None
        self._reporter: Reporter | None = None
        has_names = serve.tokens is not None or (serve.tls is not None and serve.tls.client_ca is not None)
        wanted = self._tally or self._tracer or serve.access_log
        self._observer = (
            Observer(self._tally, self._tracer, has_names=has_names, logs_access=serve.access_log) if wanted else None
        )

    def before(self, dataplane: Dataplane) -> Dataplane:
        """The dataplane with the configured observer in front."""
        return dataplane if self._observer is None else Observed(dataplane, self._observer, self._versions_by_model)

    @property
    def on_run(self) -> OnRun | None:
        """The callback for engine runs; None if metrics and traces are off."""
        return self._observer.ran if self._observer is not None and (self._tally or self._tracer) else None

    def snapshots(self) -> Iterable[Snapshot]:
        """The snapshots of this process."""
        return [] if self._tally is None else [self._tally.snapshot()]

    def report(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        """Send the counts of this process regularly to the process that combines them."""
        if self._tally is not None:
            self._reporter = Reporter(self._tally.snapshot, tell)

    def _became(self) -> Mapping[str, int]:
        return {} if self._tracer is None else self._tracer.delivery.became

    def close(self) -> None:
        """Send what is left, within seconds."""
        if self._reporter is not None:
            self._reporter.close()
        if self._tracer is not None:
            self._tracer.delivery.close()


def serve_metrics(address: str, read: Callable[[], Iterable[Snapshot]]) -> str:
    """Serve Prometheus metrics from `read` at `HOST:PORT` until the process ends; returns the page's URL.

    Raises `ConfigError` if it cannot listen.
    """
    registry = CollectorRegistry()
    build = Info("upwell_cloud_build", "The service's version of Upwell; always 1.", registry=registry)
    build.info({"version": package_version("upwell")})
    registry.register(CloudCollector(read))
    where = parse_address(address)
    server = serve_pages(where.host, where.port, registry, "serve.metrics")
    return f"http://{Address(where.host, server.server_port)}/metrics"
