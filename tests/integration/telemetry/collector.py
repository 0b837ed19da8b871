"""A real receiver of OTLP over HTTP on loopback, which decodes what it is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 15.0


@dataclass(frozen=True)
class Received:
    """One span as it came over the wire, with the service that sent it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    started_ns: int
    ended_ns: int
    error: str
    attributes: Mapping[str, Any]
    links: Sequence[str]


@dataclass(frozen=True)
class Pushed:
    """One push of metrics as it came over the wire: who pushed, and each value by name and labels.

    Of a histogram there are `NAME_count`, `NAME_sum`, and `NAME_bucket` with the label `le`, counted up.
    """

    resource: Mapping[str, Any]
    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float:
        """The value with just these labels."""
        return self.values[name, frozenset(labels.items())]


class Collector:
    """Answers `POST /v1/traces` and `/v1/metrics` with 200, or with `status`; holds every answer back while `is_stuck`.

    A redirect, 302, leads to `redirect`.
    """

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.pushed: list[Pushed] = []
        self.redirect = ""
        self.posts = self.connections = 0
        self.bodies = bytearray()
        self.status = 200
        self.is_stuck = False
        self._news = threading.Condition()
        self._released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait(self, enough: Callable[[Sequence[Received]], bool]) -> Sequence[Received]:
        """All spans, once they are enough; fails where they do not come."""
        with self._news:
            assert self._news.wait_for(lambda: enough(self.spans), WAIT_S), [span.name for span in self.spans]
            return list(self.spans)

    def wait_pushed(self, enough: Callable[[Pushed], bool]) -> Pushed:
        """The first push that is enough; fails where none comes."""
        with self._news:
            assert self._news.wait_for(lambda: any(map(enough, self.pushed)), WAIT_S), self.pushed[-1:]
            return next(one for one in self.pushed if enough(one))

    def posted(self, count: int = 1) -> bool:
        """Wait for so many deliveries, taken or not."""
        with self._news:
            return self._news.wait_for(lambda: self.posts >= count, WAIT_S)

    def close(self) -> None:
        """Let go of everybody."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, body: bytes) -> int:
        """One delivery; the status to answer with."""
        with self._news:
            self.posts += 1
            self.bodies += body
            self._news.notify_all()
        if self.is_stuck:
            self._released.wait()
        if self.status == 200:
            is_push = path == "/v1/metrics"
            pushed = list(pushed_in(ExportMetricsServiceRequest.FromString(body))) if is_push else []
            spans = [] if is_push else list(_spans(ExportTraceServiceRequest.FromString(body)))
            with self._news:
                self.pushed += pushed
                self.spans += spans
                self._news.notify_all()
        return self.status


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector until the block ends."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def setup(self) -> None:
            collector.connections += 1
            super().setup()

        def do_POST(self) -> None:
            assert self.path in ("/v1/traces", "/v1/metrics")
            assert self.headers["Content-Type"] == "application/x-protobuf"
            self.send_response(collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            if collector.redirect:
                self.send_header("Location", collector.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def _spans(request: ExportTraceServiceRequest) -> Iterator[Received]:
    for group in request.resource_spans:
        service = _values(group.resource.attributes)["service.name"]
        for scope in group.scope_spans:
            for span in scope.spans:
                error = span.status.message if span.status.code == 2 else ""
                yield Received(
                    service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
                    span.start_time_unix_nano, span.end_time_unix_nano, error,
                    _values(span.attributes), [link.span_id.hex() for link in span.links],
                )  # fmt: skip


def pushed_in(request: ExportMetricsServiceRequest) -> Iterator[Pushed]:
    """What was pushed."""
    for group in request.resource_metrics:
        values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
            for point in getattr(metric, metric.WhichOneof("data") or "gauge").data_points:
                labels = _values(point.attributes)
                if metric.HasField("histogram"):
                    values[f"{metric.name}_count", frozenset(labels.items())] = point.count
                    values[f"{metric.name}_sum", frozenset(labels.items())] = point.sum
                    below = 0
                    for bound, count in zip((*point.explicit_bounds, "+Inf"), point.bucket_counts, strict=True):
                        below += count
                        values[f"{metric.name}_bucket", frozenset({**labels, "le": str(bound)}.items())] = below
                else:
                    values[metric.name, frozenset(labels.items())] = getattr(point, point.WhichOneof("value"))
        yield Pushed(_values(group.resource.attributes), values)


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
