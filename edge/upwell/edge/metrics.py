"""What the agent tells Prometheus. Names carry units; labels are model, route and reason, all of bounded number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from upwell.edge.answer import Answer
from upwell.shared.errors import ConfigError
from upwell.shared.routing.estimators import LinkEstimate
from upwell.shared.routing.state import RouterState

_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


class AgentMetrics:
    """The agent's counters in a registry of their own, so that two agents may live in one process."""

    def __init__(self, state: Callable[[], RouterState]) -> None:
        self.registry = CollectorRegistry()
        labels = ("model", "route", "reason")
        self._requests = Counter("upwell_requests", "Requests answered.", labels, registry=self.registry)
        self._latency = Histogram(
            "upwell_request_seconds",
            "Time to the answer.",
            ("model", "route"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._degraded = Counter(
            "upwell_degraded",
            "Answers of the device where the policy wanted the cloud.",
            ("model", "reason"),
            registry=self.registry,
        )
        self._failed = Counter(
            "upwell_failed", "Requests that ended in an error, by error.", ("model", "error"), registry=self.registry
        )
        self._up = Counter("upwell_uplink_bytes", "Bytes of messages sent up.", ("model",), registry=self.registry)
        self.registry.register(_LinkCollector(state))

    def answered(self, model: str, answer: Answer) -> None:
        """Count an answer."""
        self._requests.labels(model, str(answer.route), str(answer.reason)).inc()
        self._latency.labels(model, str(answer.route)).observe(answer.timings.total_s)
        if answer.degraded:
            self._degraded.labels(model, str(answer.reason)).inc()

    def failed(self, model: str, error: Exception) -> None:
        """Count a request that ended in an error."""
        self._failed.labels(model, type(error).__name__).inc()

    def sent(self, model: str, size_bytes: int) -> None:
        """Count bytes that went up, whatever became of them."""
        self._up.labels(model).inc(size_bytes)

    def serve(self, host: str, port: int) -> WSGIServer:
        """Answer `GET /metrics` on a thread; port 0 takes a free one. Raises `ConfigError` where it cannot listen."""
        try:
            server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigError.at(None, f"cannot listen on {host}:{port}: {error.strerror}", "agent.metrics") from None
        return server


class _LinkCollector(Collector):
    """The link estimate and the breakers, read when scraped."""

    def __init__(self, state: Callable[[], RouterState]) -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One gauge for each part of the estimate; without a sample yet, NaN."""
        state = self._state()
        link: LinkEstimate = state.link
        yield GaugeMetricFamily("upwell_link_rtt_seconds", "Estimated round trip to the cloud.", link.rtt_s)
        inverse = link.inverse_bandwidth_s_per_byte
        bandwidth = GaugeMetricFamily(
            "upwell_link_bytes_per_second", "Estimated bandwidth to the cloud; NaN if unknown."
        )
        bandwidth.add_metric([], 1.0 / inverse if inverse > 0 else math.nan)
        yield bandwidth
        breakers = GaugeMetricFamily("upwell_breaker_open", "1 while the cloud is left alone.", labels=["model"])
        for key, breaker in state.breakers.items():
            breakers.add_metric([key or "*"], float(breaker.is_open))
        yield breakers
