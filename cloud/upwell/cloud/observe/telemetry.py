"""What one serving process counts, traces and logs of its requests, as configured in `cloud.yaml`.

The observer counts, traces and logs each request, as a `Dataplane` in front of the service.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from upwell.cloud.batching.model_queue import Run
from upwell.cloud.config import Serve
from upwell.cloud.observe.metrics import (
    ANONYMOUS,
    ModelCounts,
    Reporter,
    RequestCounters,
    RequestEnd,
    Snapshot,
)
from upwell.cloud.service.model_loader import BrokenModel, ModelVersions, OnRun
from upwell.shared.oip.auth.caller import client_key
from upwell.shared.oip.auth.request_quotas import size_bytes
from upwell.shared.oip.dataplane import Call, Dataplane, DataplaneLayer, InferRequest, InferResponse
from upwell.shared.oip.error_statuses import Status, status_of
from upwell.shared.telemetry.log_context import LONGEST_NAME, note_trace
from upwell.shared.telemetry.logs import FIELDS
from upwell.shared.telemetry.open_collectors import open_tracer
from upwell.shared.telemetry.tracing import Tracer

_access = logging.getLogger("upwell.access")


class Observer:
    """Counts engine runs and requests, and records their traces. Thread-safe.

    `has_names` says that callers have names (from tokens or certificates); without it all are counted as anonymous.
    `tally` and `tracer` are None where they are switched off.
    """

    def __init__(
        self, tally: RequestCounters | None, tracer: Tracer | None, *, has_names: bool, logs_access: bool = False
    ) -> None:
        self.tally = tally
        self.tracer = tracer
        self.logs_access = logs_access
        self._has_names = has_names

    def name_of(self, client: str) -> str:
        """The client's name in metrics; never its address."""
        is_address = client == "unix" or client_key(client) != client
        return client if self._has_names and client and not is_address else ANONYMOUS

    def ran(self, model: str, version: str, run: Run) -> None:
        """Count and trace one run of an engine."""
        if self.tally is not None:
            shares = [(self.name_of(entry.call.client), entry.rows) for entry in run.entries]
            self.tally.ran(model, version, run.rows, run.ended_s - run.started_s, shares)
        if self.tracer is not None:
            traced = [(entry, entry.call.trace) for entry in run.entries if entry.call.trace is not None]
            for entry, trace in traced:
                trace.add("upwell.cloud.queue", entry.arrived_s, run.started_s)
                mates = [other.root for _, other in traced if other is not trace]
                facts = {"upwell.batch.rows": run.rows, "upwell.batch.requests": len(run.entries)}
                trace.add("upwell.cloud.engine", run.started_s, run.ended_s, facts, links=mates)


class Observed(DataplaneLayer):
    """A `Dataplane` that counts, traces and logs inference requests and passes all other calls through."""

    def __init__(
        self, dataplane: Dataplane, observer: Observer, versions_by_model: Callable[[], Mapping[str, ModelVersions]]
    ) -> None:
        super().__init__(dataplane)
        self._observer = observer
        self._versions_by_model = versions_by_model

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """See `Dataplane.infer`."""
        started_s, observer = time.monotonic(), self._observer
        if observer.tracer is not None:
            trace = observer.tracer.begin(call.traceparent, started_s)
            if trace is not None:
                note_trace(trace.root.trace_id)
                call = replace(call, trace=trace)
        try:
            response = self._dataplane.infer(request, call)
        except Exception as error:  # any failure is counted, then raised again
            self._failed(request, call, status_of(error), started_s)
            raise
        took_s = time.monotonic() - started_s
        in_bytes, out_bytes = size_bytes(request.inputs), size_bytes(response.outputs)
        queue_s = 1e-3 * float(response.parameters.get("upwell.cloud_queue_ms", 0.0))
        end = RequestEnd(response.model, response.version, "OK", took_s, in_bytes, out_bytes, queue_s)
        self._tell(request, call, end)
        return response

    def _failed(self, request: InferRequest, call: Call, status: Status, started_s: float) -> None:
        """Count a failed request. Unknown models and versions are counted without a name, or callers could create any
        number of time series."""
        model_versions = self._versions_by_model().get(request.model)
        version = "" if model_versions is None else request.version or model_versions.default
        if model_versions is None or version not in model_versions.versions:
            version = ""
        model = "" if model_versions is None else request.model
        took_s, in_bytes = time.monotonic() - started_s, size_bytes(request.inputs)
        self._tell(request, call, RequestEnd(model, version, status.code.name, took_s, in_bytes))

    def _tell(self, request: InferRequest, call: Call, end: RequestEnd) -> None:
        """Report the end of a request. Traces carry only the name of the status: an error's text may quote the caller's
        tensors or an invented model name."""
        observer = self._observer
        if observer.tally is not None:
            observer.tally.ended(observer.name_of(call.client), end)
        if call.trace is not None and observer.tracer is not None:
            facts = {
                "upwell.request_id": request.id,
                "upwell.model": end.model,
                "upwell.version": end.version,
                "upwell.client": call.client,
                "upwell.status": end.status,
            }
            observer.tracer.end(call.trace, "upwell.cloud.infer", facts, "" if end.status == "OK" else end.status)
        if observer.logs_access:
            _log_access(request, call, end)


def states_of(versions_by_model: Mapping[str, ModelVersions]) -> Iterable[ModelCounts]:
    """The current state of each version of each model."""
    for model_versions in versions_by_model.values():
        for model in model_versions.versions.values():
            if isinstance(model, BrokenModel):
                yield ModelCounts(model.name, model.version, False, 0, None)
            else:
                yield ModelCounts(model.name, model.version, True, model.batcher.waiting, model.load_s)


def _log_access(request: InferRequest, call: Call, ended: RequestEnd) -> None:
    took_ms, model = round(1e3 * ended.took_s, 3), request.model[:LONGEST_NAME]
    fields = {
        "request_id": request.id,
        "client": call.client,
        "model": model,
        "version": ended.version,
        "status": ended.status,
        "took_ms": took_ms,
        "queue_ms": round(1e3 * ended.queue_s, 3),
        "in_bytes": ended.in_bytes,
        "out_bytes": ended.out_bytes,
    }
    _access.info(
        "%s %r version %r %s %.3f ms, id %r", call.client, model, ended.version, ended.status, took_ms,
        request.id, extra={FIELDS: fields},
    )  # fmt: skip


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
