"""What metrics and traces add to one request of the service, beside the client library's own counters."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from upwell.cloud.observe.metrics import RequestCounters
from upwell.cloud.observe.telemetry import Observed, Observer
from upwell.shared.oip.dataplane import (
    Call,
    Dataplane,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Parameter,
    ServerMetadata,
)
from upwell.shared.telemetry.otlp import SpanDelivery
from upwell.shared.telemetry.tracing import Tracer

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(120)]

ROUNDS, TIMES = 20, 2000
REQUEST = InferRequest("m", {"x": np.zeros((1, 256), np.float32)}, id="r")
FACTS: Mapping[str, Parameter] = {
    "upwell.cloud_queue_ms": 0.1,
    "upwell.cloud_compute_ms": 1.0,
    "upwell.cloud_digest": "sha256:0",
}
RESPONSE = InferResponse("m", {"y": np.zeros((1, 10), np.float32)}, "1", "r", FACTS)

LIBRARY = """
import time
from prometheus_client import CollectorRegistry, Counter, Histogram
at = CollectorRegistry()
requests = Counter("requests", "x", ["model", "version", "status"], registry=at)
times = [Histogram(name, "x", ["model", "version"], registry=at) for name in ("request", "queue", "compute", "rows")]
sizes = Counter("size", "x", ["client", "direction"], registry=at)
device = Counter("device", "x", ["client"], registry=at)
best = 1e9
for _ in range(20):
    began = time.perf_counter()
    for _ in range(2000):
        requests.labels("m", "1", "OK").inc()
        for one in times:
            one.labels("m", "1").observe(0.001)
        sizes.labels("c", "in").inc(1)
        sizes.labels("c", "out").inc(1)
        device.labels("c").inc(0.001)
    best = min(best, (time.perf_counter() - began) / 2000)
print(best)
"""


class Instant(Dataplane):
    """A dataplane that has its answer at hand."""

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        return RESPONSE

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        raise NotImplementedError

    def server_metadata(self) -> ServerMetadata:
        raise NotImplementedError

    def ready(self, model: str | None = None, version: str = "") -> bool:
        return True


class Nowhere(SpanExporter):
    """An exporter that takes everything."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def best_us(work: Callable[[], object]) -> float:
    """Microseconds of one, in the best of the rounds: what else runs here only adds to them."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        for _ in range(TIMES):
            work()
        best_s = min(best_s, (time.perf_counter() - began_s) / TIMES)
    return 1e6 * best_s


def library_us(folder: str | None) -> float:
    """The same numbers counted with the client library; with a folder, as it counts for several processes."""
    environment = {**os.environ, **({"PROMETHEUS_MULTIPROC_DIR": folder} if folder else {})}
    done = subprocess.run([sys.executable, "-c", LIBRARY], env=environment, capture_output=True, text=True, check=True)
    return 1e6 * float(done.stdout)


def test_what_it_costs(tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> None:
    plain, call = Instant(), Call(client="ipv4:127.0.0.1:50000")
    bare_us = best_us(lambda: plain.infer(REQUEST, call))
    found = {}
    for name, tally, share in (("metrics", True, None), ("traces, not sampled", False, 0.0), ("sampled", False, 1.0)):
        tracer = None if share is None else Tracer(share, SpanDelivery(Nowhere(), Resource.create(), 1 << 30))
        observer = Observer(RequestCounters(list) if tally else None, tracer, has_names=False)
        observed = Observed(plain, observer, dict)
        found[name] = best_us(lambda observed=observed: observed.infer(REQUEST, call)) - bare_us  # type: ignore[misc]  # a loop's own
        if tracer is not None:
            tracer.delivery.close()
    counting = RequestCounters(list)
    found["metrics of a run"] = best_us(lambda: counting.ran("m", "1", 1, 0.001, [("c", 1)]))
    found["client library, one process"] = library_us(None)
    found["client library, several processes"] = library_us(str(tmp_path_factory.mktemp("mapped")))
    with capsys.disabled():
        print("\nadded to a request:")
        for name, cost_us in found.items():
            print(f"  {name:36s} {cost_us:6.1f} µs")
