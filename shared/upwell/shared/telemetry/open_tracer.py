"""A tracer that delivers to the collector that a configuration names."""

from __future__ import annotations

from upwell.shared.errors import ConfigError
from upwell.shared.telemetry.sections import Traces
from upwell.shared.telemetry.tracer import Tracer


def open_tracer(section: Traces, name: str, instance: str) -> Tracer:
    """One that tells the section's collector of the service `name`, of which this is the `instance`.

    Raises `ConfigError` where the extra is not installed.
    """
    try:
        from upwell.shared.telemetry.otlp import otlp_delivery
    except ImportError:
        raise ConfigError.at(None, "traces need an extra: pip install 'upwell[telemetry]'", "traces") from None
    return Tracer(section.sample, otlp_delivery(section.url, name, instance))
