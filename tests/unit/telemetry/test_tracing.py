"""Places in traces as others write them, and which requests are recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from upwell.shared.telemetry import otlp
from upwell.shared.telemetry.otlp import SpanDelivery
from upwell.shared.telemetry.tracing import Place, Trace, Tracer

ID, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{ID}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (GOOD, True),
        (f"00-{ID}-{SPAN}-00", False),
        (f"00-{ID}-{SPAN}-03", True),
        (f"cc-{ID}-{SPAN}-01-x", True),
    ],
)
def test_a_traceparent_is_read(text: str, is_sampled: bool) -> None:
    assert Place.parse(text) == Place(ID, SPAN, is_sampled)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", GOOD[:-1], GOOD + "-", GOOD + "x", GOOD.upper(), "ff" + GOOD[2:], f"00-{'0' * 32}-{SPAN}-01",
        f"00-{ID}-{'0' * 16}-01", f"cc-{ID}-{SPAN}-01x", " " + GOOD, GOOD + "\n", f"cc-{ID}-{SPAN}-01-" + "x" * 600,
        GOOD.replace("0af7", "٠af7"),
    ],
)  # fmt: skip
def test_what_is_none_is_no_place(text: str) -> None:
    assert Place.parse(text) is None


def test_a_place_is_written_as_it_is_read() -> None:
    assert str(Place(ID, SPAN, True)) == GOOD
    trace = Trace.begin(None, 0.0)
    assert Place.parse(str(trace.root)) == trace.root
    assert Place.parse(str(trace.calling())) is not None
    assert Place.parse(str(Place.unrecorded())) is not None


class Exporter(SpanExporter):
    """Keeps what it is given, once it is let go."""

    def __init__(self) -> None:
        self.got: list[ReadableSpan] = []
        self.go = threading.Event()
        self.is_shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.go.wait()
        self.got += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.is_shut_down = True


def delivery(exporter: Exporter, max_waiting: int = 10) -> SpanDelivery:
    return SpanDelivery(exporter, Resource.create(), max_waiting)


def test_the_share_holds_for_those_whose_caller_has_not_decided() -> None:
    chances = iter([0.04, 0.06, 0.0])
    tracer = Tracer(0.05, delivery(Exporter()), chance=lambda: next(chances))
    first = tracer.begin("", 1.0)
    assert first is not None
    assert (first.root.is_sampled, first.parent_id) == (True, "")
    assert tracer.begin("", 1.0) is None
    third = tracer.begin(GOOD, 1.0)
    assert third is not None
    assert (third.root.trace_id, third.parent_id) == (ID, SPAN)
    assert third.root.span_id != SPAN
    assert tracer.begin(f"00-{ID}-{SPAN}-00", 1.0) is None
    assert tracer.begin("rubbish", 1.0) is not None
    tracer.delivery.close()


def test_a_queue_that_is_full_drops_what_comes_and_says_so() -> None:
    exporter = Exporter()
    tracer = Tracer(1.0, delivery(exporter, max_waiting=3))
    for _ in range(5):
        trace = tracer.begin("", time.monotonic())
        assert trace is not None
        trace.add("part", time.monotonic())
        tracer.end(trace, "one", {})
    assert tracer.delivery.became == {"dropped": 2}
    exporter.go.set()
    tracer.delivery.close()
    tracer.delivery.close()
    assert tracer.delivery.became == {"dropped": 2, "sent": 3}
    assert (len(exporter.got), exporter.is_shut_down) == (6, True)
    assert not [one for one in threading.enumerate() if one.name.startswith(("Otel", "upwell-traces"))]


def test_a_collector_that_hangs_keeps_nobody_who_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_CLOSE_S", 0.1)
    exporter = Exporter()
    tracer = Tracer(1.0, delivery(exporter))
    trace = tracer.begin("", time.monotonic())
    assert trace is not None
    tracer.end(trace, "one", {})
    began_s = time.monotonic()
    tracer.delivery.close()
    assert time.monotonic() - began_s < 5.0
    assert exporter.is_shut_down
    tracer.end(trace, "late", {})
    assert tracer.delivery.became == {"dropped": 1}
    exporter.go.set()
