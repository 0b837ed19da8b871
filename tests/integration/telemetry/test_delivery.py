"""How recorded requests reach a real collector, or do not."""

from __future__ import annotations

import logging
import time

import pytest

from tests.integration.telemetry.collector import collecting
from upwell.shared.telemetry.otlp import otlp_delivery
from upwell.shared.telemetry.tracing import Place, Tracer

CALLER = Place("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)


def test_that_a_collector_refuses_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with collecting() as collector:
        tracer = Tracer(1.0, otlp_delivery(f"{collector.endpoint}/v1/traces", "one", "here"))
        for count, status in enumerate((400, 400, 200), 1):
            collector.status = status
            trace = tracer.begin(str(CALLER), time.monotonic())
            assert trace is not None
            tracer.end(trace, "request", {"upwell.model": "m"})
            assert collector.posted(count)
        tracer.delivery.close()
        assert tracer.delivery.became == {"failed": 2, "sent": 1}
        (span,) = collector.spans
    assert collector.connections == 1, "kept, whatever it answers"
    assert (span.name, span.trace_id, span.parent_id) == ("request", CALLER.trace_id, CALLER.span_id)
    assert (span.service, span.attributes) == ("one", {"upwell.model": "m"})
    assert [record.message for record in caplog.records if record.levelno >= logging.INFO] == [
        "traces cannot be delivered; they are dropped until the collector accepts them again",
        "traces are being delivered again",
    ]


def test_a_collector_that_leads_elsewhere_is_not_followed_and_took_nothing() -> None:
    with collecting() as elsewhere, collecting() as collector:
        collector.status, collector.redirect = 307, f"{elsewhere.endpoint}/v1/traces"
        tracer = Tracer(1.0, otlp_delivery(f"{collector.endpoint}/v1/traces", "one", "here"))
        trace = tracer.begin(str(CALLER), time.monotonic())
        assert trace is not None
        tracer.end(trace, "request", {})
        assert collector.posted(1)
        tracer.delivery.close()
        assert (tracer.delivery.became, elsewhere.posts) == ({"failed": 1}, 0)
