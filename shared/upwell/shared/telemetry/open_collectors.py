"""Opens the configured collectors; the code that talks to them needs the extra `telemetry`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from upwell.shared.errors import ExtraMissing
from upwell.shared.telemetry.telemetry_keys import MetricsPush, Traces
from upwell.shared.telemetry.tracing import Tracer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from upwell.shared.telemetry.otlp import MetricsDelivery


def open_tracer(section: Traces, name: str, instance: str) -> Tracer:
    """A tracer that sends to the section's collector, for the service `name` and its `instance`.

    Raises `ConfigError` if the extra is not installed.
    """
    with ExtraMissing.on_import("telemetry", "traces need an extra", "traces"):
        from upwell.shared.telemetry.otlp import otlp_delivery
    return Tracer(section.sample, otlp_delivery(section.url, name, instance))


def open_metrics_push(
    section: MetricsPush, families: Callable[[], Iterable[Metric]], attributes: Callable[[], Mapping[str, str]]
) -> MetricsDelivery:
    """Push `families` to the section's collector until closed. Raises `ConfigError` as `open_tracer` does."""
    with ExtraMissing.on_import("telemetry", "it needs an extra", "agent.otlp"):
        from upwell.shared.telemetry.otlp import MetricsDelivery
    return MetricsDelivery(section, families, attributes)
