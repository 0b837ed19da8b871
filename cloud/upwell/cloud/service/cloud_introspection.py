"""Model configuration, statistics and settings for clients of Triton's extensions."""

from __future__ import annotations

from collections.abc import Sequence

from upwell.cloud.service.cloud_service import CloudService
from upwell.shared.oip.introspection import ModelConfig, Placement, ServerSettings
from upwell.shared.oip.model_statistics import ModelStatistics, StatisticsCounter
from upwell.shared.oip.resize_parameters import write_seen
from upwell.shared.telemetry.telemetry_keys import Traces


class CloudIntrospection:
    """An `Introspection` of the models of `service` and the counts of `counter`, for this process."""

    def __init__(self, service: CloudService, counter: StatisticsCounter, traces: Traces | None) -> None:
        self._service = service
        self._counter = counter
        self._settings = ServerSettings() if traces is None else ServerSettings(trace=_traced(traces))

    def config(self, model: str, version: str = "") -> ModelConfig:
        """See `Introspection.config`."""
        found = self._service.find(model, version)
        metadata, settings = self._service.metadata(model, version), found.settings
        kind: Placement = "KIND_CPU" if settings.device == "cpu" else "KIND_GPU"
        return ModelConfig(
            model, metadata.versions, found.platform, settings.engine, metadata.inputs, metadata.outputs,
            settings.instances, kind, settings.max_batch, settings.buckets,
            write_seen(found.digest, found.processor.resizes),
        )  # fmt: skip

    def statistics(self, model: str = "", version: str = "") -> Sequence[ModelStatistics]:
        """See `Introspection.statistics`."""
        if model:
            found = self._service.find(model, version)
        offers = self._service.versions_by_model
        every = [one for offer in offers.values() for one in offer.served if not model or one.name == model]
        return self._counter.read((one.name, one.version) for one in every if not version or one is found)

    def settings(self) -> ServerSettings:
        """See `Introspection.settings`."""
        return self._settings


def _traced(traces: Traces) -> dict[str, tuple[str, ...]]:
    """The trace settings in Triton's words; `trace_rate` means one in so many requests."""
    rate = round(1 / traces.sample) if traces.sample > 0 else 0
    return {
        "trace_level": ("TIMESTAMPS",),
        "trace_mode": ("opentelemetry",),
        "trace_rate": (str(rate),),
        "trace_count": ("-1",),
    }
