"""What the operator learns of each request: a `Dataplane` before the service that counts, traces and logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from upwell.cloud.batching.request import QueuedRequest
from upwell.cloud.observe.request_counters import ANONYMOUS, AnswerCost, ModelCounts, RequestCounters
from upwell.cloud.service.loading import BrokenModel, CloudModel
from upwell.cloud.service.model_versions import ModelVersions
from upwell.shared.oip.auth.callers import client_key
from upwell.shared.oip.auth.quotas import size_bytes
from upwell.shared.oip.dataplane import Call, Dataplane, InferRequest, InferResponse, ModelMetadata, ServerMetadata
from upwell.shared.oip.statuses import Status, status_of
from upwell.shared.telemetry.current import note_trace
from upwell.shared.telemetry.logs import FIELDS
from upwell.shared.telemetry.tracer import Tracer

_MAX_NAMES = 10_000
_access = logging.getLogger("upwell.access")


@dataclass(frozen=True)
class _Ended:
    """How a request ended."""

    version: str
    status: str
    took_s: float
    in_bytes: int
    out_bytes: int = 0
    queue_s: float = 0.0


class Observer:
    """Counts what the engines and the requests do, and records traces of it. Safe to use from many threads.

    `has_names` says that callers have names (tokens or certificates): without them they
    are all anonymous. `tally` and `tracer` are None where nobody wants to know.
    """

    def __init__(
        self, tally: RequestCounters | None, tracer: Tracer | None, *, has_names: bool, logs_access: bool = False
    ) -> None:
        self.tally = tally
        self.tracer = tracer
        self.logs_access = logs_access
        self._has_names = has_names
        self._names: dict[str, str] = {}

    def name_of(self, client: str) -> str:
        """The client as metrics name it: never by its address."""
        if not self._has_names:
            return ANONYMOUS
        name = self._names.get(client)
        if name is None:
            is_address = client == "unix" or client_key(client) != client
            name = ANONYMOUS if is_address or not client else client
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[client] = name
        return name

    def ran(
        self, model: CloudModel, entries: Sequence[QueuedRequest], rows: int, started_s: float, ended_s: float
    ) -> None:
        """An engine has run for these requests."""
        if self.tally is not None:
            shares = [(self.name_of(entry.call.client), entry.rows) for entry in entries]
            self.tally.ran(model.name, model.version, rows, ended_s - started_s, shares)
        if self.tracer is not None:
            traced = [(entry, entry.call.trace) for entry in entries if entry.call.trace is not None]
            for entry, trace in traced:
                trace.add("upwell.cloud.queue", entry.arrived_s, started_s)
                mates = [other.root for _, other in traced if other is not trace]
                facts = {"upwell.batch.rows": rows, "upwell.batch.requests": len(entries)}
                trace.add("upwell.cloud.engine", started_s, ended_s, facts, links=mates)


class Observed:
    """A `Dataplane` whose requests are counted, traced and logged; the rest passes through."""

    def __init__(
        self, dataplane: Dataplane, observer: Observer, versions_by_model: Callable[[], Mapping[str, ModelVersions]]
    ) -> None:
        self._dataplane = dataplane
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
        except Exception as error:
            self._failed(request, call, status_of(error), started_s)
            raise
        took_s = time.monotonic() - started_s
        in_bytes, out_bytes = size_bytes(request.inputs), size_bytes(response.outputs)
        queue_s = 1e-3 * float(response.parameters.get("upwell.cloud_queue_ms", 0.0))
        if observer.tally is not None:
            name = observer.name_of(call.client)
            cost = AnswerCost(took_s, queue_s, in_bytes, out_bytes)
            observer.tally.answered(response.model, response.version, name, cost)
        if call.trace is not None or observer.logs_access:
            self._tell(request, call, _Ended(response.version, "OK", took_s, in_bytes, out_bytes, queue_s))
        return response

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """See `Dataplane.metadata`."""
        return self._dataplane.metadata(model, version)

    def server_metadata(self) -> ServerMetadata:
        """See `Dataplane.server_metadata`."""
        return self._dataplane.server_metadata()

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """See `Dataplane.ready`."""
        return self._dataplane.ready(model, version)

    def reading(self, call: Call, size_bytes: int) -> AbstractContextManager[None]:
        """See `Dataplane.reading`."""
        return self._dataplane.reading(call, size_bytes)

    def _failed(self, request: InferRequest, call: Call, status: Status, started_s: float) -> None:
        """What a caller writes makes no new series: a model or version that is not there has no name."""
        model_versions = self._versions_by_model().get(request.model)
        version = "" if model_versions is None else request.version or model_versions.default
        if model_versions is None or version not in model_versions.versions:
            version = ""
        observer, in_bytes = self._observer, size_bytes(request.inputs)
        if observer.tally is not None:
            model = "" if model_versions is None else request.model
            observer.tally.failed(model, version, status.code.name, observer.name_of(call.client), in_bytes)
        took_s = time.monotonic() - started_s
        self._tell(
            request, call, _Ended(version, status.code.name, took_s, in_bytes), is_known=model_versions is not None
        )

    def _tell(self, request: InferRequest, call: Call, ended: _Ended, *, is_known: bool = True) -> None:
        """What leaves for a collector says how the request ended by the status' name alone: an error's text may hold
        what was in the tensors, and a model that is not there is a text of the caller's."""
        tracer = self._observer.tracer
        if call.trace is not None and tracer is not None:
            facts = {
                "upwell.request_id": request.id,
                "upwell.model": request.model if is_known else "",
                "upwell.version": ended.version,
                "upwell.client": call.client,
                "upwell.status": ended.status,
            }
            tracer.end(call.trace, "upwell.cloud.infer", facts, "" if ended.status == "OK" else ended.status)
        if self._observer.logs_access:
            _log_access(request, call, ended)


def states_of(versions_by_model: Mapping[str, ModelVersions]) -> Iterable[ModelCounts]:
    """How each version of each model is now."""
    for model_versions in versions_by_model.values():
        for model in model_versions.versions.values():
            if isinstance(model, BrokenModel):
                yield ModelCounts(model.name, model.version, False, 0, None)
            else:
                yield ModelCounts(model.name, model.version, True, model.batcher.waiting, model.load_s)


def _log_access(request: InferRequest, call: Call, ended: _Ended) -> None:
    took_ms = round(1e3 * ended.took_s, 3)
    fields = {
        "request_id": request.id,
        "client": call.client,
        "model": request.model,
        "version": ended.version,
        "status": ended.status,
        "took_ms": took_ms,
        "queue_ms": round(1e3 * ended.queue_s, 3),
        "in_bytes": ended.in_bytes,
        "out_bytes": ended.out_bytes,
    }
    _access.info(
        "%s %r version %r %s %.3f ms, id %r", call.client, request.model, ended.version, ended.status, took_ms,
        request.id, extra={FIELDS: fields},
    )  # fmt: skip
