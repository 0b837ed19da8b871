"""The cloud service's use case: one request, from the caller's tensors to the answer.

Clients may also ask for a model's configuration, statistics and settings, as Triton's extensions have them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version as package_version

from upwell.cloud.batching.model_queue import RunResult, priority_of
from upwell.cloud.engines.base import DeviceLost
from upwell.cloud.service.model_loader import BrokenModel, CloudModel, ModelVersions, offered
from upwell.shared.errors import InvalidRequest, ModelNotFound, Unavailable
from upwell.shared.oip.class_labels import LABELS, label_parameters
from upwell.shared.oip.dataplane import (
    Call,
    Dataplane,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Parameter,
    ServerMetadata,
)
from upwell.shared.oip.held_refusals import HeldRefusals
from upwell.shared.oip.introspection import ModelConfig, Placement, ServerSettings, extensions, write_seen
from upwell.shared.oip.model_statistics import ModelStatistics, RequestTimes, StatisticsCounter
from upwell.shared.platform.call_threads import yield_permit
from upwell.shared.signature.processor import Prepared
from upwell.shared.telemetry.telemetry_keys import Traces
from upwell.shared.tensors import Array

log = logging.getLogger("upwell.cloud")


class CloudService(Dataplane):
    """A `Dataplane` over loaded models: pre-processing, queue and engine, post-processing.

    A request without a version gets the model's default: the highest version, unless that is broken. An answer carries
    `upwell.cloud_queue_ms`, `upwell.cloud_compute_ms` (of the whole batch) and `upwell.cloud_digest`.

    The table of models is replaced as a whole, so a request sees a model either before or after a change. A request
    ends on the version on which it began; an engine that was replaced is closed when its last request has ended.

    If a device is lost for this process, the service accepts no more requests and calls `on_device_lost`, unless it is
    draining already.
    """

    def __init__(
        self,
        models: Sequence[CloudModel | BrokenModel],
        *,
        extra_extensions: Sequence[str] = (),
        statistics: StatisticsCounter | None = None,
        on_device_lost: Callable[[], object] = lambda: None,
    ) -> None:
        by_name: dict[str, list[CloudModel | BrokenModel]] = {}
        for model in models:
            by_name.setdefault(model.name, []).append(model)
        self._versions_by_model: Mapping[str, ModelVersions] = {
            name: offered(by_name[name]) for name in sorted(by_name)
        }
        self._extra_extensions = tuple(extra_extensions)
        self._statistics = statistics or StatisticsCounter()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._in_use: dict[CloudModel, int] = {}
        self._given_up: set[CloudModel] = set()
        self._draining = False
        self.device_is_lost = False
        """Whether a device can be used again only by a new process."""
        self._on_device_lost = on_device_lost
        self.refusals = HeldRefusals("the service")
        """Of requests that come while it drains."""

    @property
    def versions_by_model(self) -> Mapping[str, ModelVersions]:
        """All models by name, ready or not: a snapshot that later changes do not touch."""
        return self._versions_by_model

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Answer one request. Raises as `Dataplane.infer` does, and `Unavailable` while draining."""
        model = self._begin(request, call.deadline_s)
        started_s = time.monotonic()
        try:
            response, times = _answer(model, request, call, started_s)
        except BaseException as error:
            self._statistics.failed(model.name, model.version, time.monotonic() - started_s)
            if isinstance(error, DeviceLost):
                self._lose_device(model, error)
                raise Unavailable(f"the device is lost until the service has restarted: {error}") from error
            raise
        finally:
            self._end(model)
        self._statistics.answered(model.name, model.version, times)
        return response

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """The signature of a model, and all its versions that are ready."""
        found = self.find(model, version)
        signature = found.processor.signature
        model_versions = self._versions_by_model.get(model)
        ready = tuple(one.version for one in model_versions.served) if model_versions is not None else ()
        inputs, outputs = (tuple(part.spec for part in side) for side in (signature.inputs, signature.outputs))
        return ModelMetadata(model, ready, found.platform, inputs, outputs)

    def server_metadata(self) -> ServerMetadata:
        """Name and version of the service, and the versions that decide whether the edge computes the same bits."""
        announced = (*extensions(), *self._extra_extensions)
        return ServerMetadata("upwell-cloud", package_version("upwell"), announced)

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the service, or the given model, is ready."""
        if self._draining or model is None:
            return not self._draining
        try:
            self.find(model, version)
        except (ModelNotFound, Unavailable):
            return False
        return True

    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return not self._in_use

    def drain(self, limit_s: float) -> bool:
        """Accept no more requests and wait until those in progress are answered; False if that took too long.

        Runs whose callers have all left count too.
        """
        end_s = time.monotonic() + limit_s
        with self._idle:
            self._draining = True
            if not self._idle.wait_for(lambda: not self._in_use, limit_s):
                return False
            served = [model for model_versions in self._versions_by_model.values() for model in model_versions.served]
        return all(model.batcher.rest(end_s - time.monotonic()) for model in served)

    def close(self) -> None:
        """Free all models, after `drain`."""
        for name in self._versions_by_model:
            self.put(name, None)

    def put(self, name: str, model_versions: ModelVersions | None) -> None:
        """Offer the model `name` as `model_versions` from now on (None: no more), in one step.

        Versions that are no longer offered are closed at once or when their requests have ended. While draining, new
        versions are closed instead of offered.
        """
        with self._idle:
            former = self._versions_by_model.get(name)
            if self._draining and model_versions is not None:
                former, model_versions = model_versions, former
            else:
                table = {one: each for one, each in self._versions_by_model.items() if one != name}
                table |= {name: model_versions} if model_versions is not None else {}
                self._versions_by_model = {one: table[one] for one in sorted(table)}
            kept = set() if model_versions is None else set(model_versions.served)
            given_up = [] if former is None else [model for model in former.served if model not in kept]
            self._given_up.update(model for model in given_up if model in self._in_use)
            idle = [model for model in given_up if model not in self._in_use]
        for model in idle:
            if model.batcher.rest(0.0):
                model.batcher.close()
            else:
                _close_at_rest(model)

    def find(self, name: str, version: str = "") -> CloudModel:
        """The model that answers a request of that name and version. Raises `ModelNotFound`, `Unavailable`."""
        versions_by_model = self._versions_by_model
        if name not in versions_by_model:
            raise ModelNotFound.unknown(name, versions_by_model)
        versions = versions_by_model[name].versions
        if version and version not in versions:
            raise ModelNotFound(f"model {name!r} has no version {version!r}; available: {', '.join(versions)}")
        model = versions[version or versions_by_model[name].default]
        if isinstance(model, BrokenModel):
            raise Unavailable(f"model {name!r} version {model.version} is not ready: {model.reason}")
        return model

    def _begin(self, request: InferRequest, deadline_s: float) -> CloudModel:
        """The model that will answer, with one more request counted as in progress."""
        with self._lock:
            if not self._draining:
                model = self.find(request.model, request.version)
                self._in_use[model] = self._in_use.get(model, 0) + 1
                return model
        raise self.refusals.refusal(deadline_s)

    def _lose_device(self, model: CloudModel, error: DeviceLost) -> None:
        with self._lock:
            was_draining, self._draining, self.device_is_lost = self._draining, True, True
        if not was_draining:
            text = "model %s version %s has lost its device, which only a new process can use: this one drains and ends"
            log.error(text, model.name, model.version)
            log.debug("%s", error)  # it may quote the request
            self._on_device_lost()

    def _end(self, model: CloudModel) -> None:
        with self._lock:
            self._in_use[model] -= 1
            if self._in_use[model]:
                return
            del self._in_use[model]
            last = model in self._given_up
            self._given_up.discard(model)
            if self._draining:
                self._idle.notify_all()
        if last:
            _close_at_rest(model)


def _close_at_rest(model: CloudModel) -> None:
    """Close the model's engine after its last run, not in this thread, whose caller may wait for an answer."""

    def close() -> None:
        model.batcher.rest()
        model.batcher.close()

    threading.Thread(target=close, name=f"close {model.name}/{model.version}", daemon=True).start()


def _answer(model: CloudModel, request: InferRequest, call: Call, began_s: float) -> tuple[InferResponse, RequestTimes]:
    if request.outputs:
        _check_wanted(request, model)
    processor = model.processor
    priority = priority_of(request.parameters)
    if not processor.identity:
        model.batcher.check(call, priority)
        yield_permit()  # pictures are decoded without the GIL
    trace, started_s = call.trace, time.monotonic()
    prepared = processor.pre(request.inputs)
    prepared_s = time.monotonic()
    if trace is not None:
        trace.add("upwell.cloud.pre", started_s)
    ran = _run(model, prepared, call, priority)
    ran_s = time.monotonic()
    outputs = processor.post(ran.outputs, prepared)
    ended_s = time.monotonic()
    if trace is not None:
        trace.add("upwell.cloud.post", ran_s)
    if request.outputs:
        outputs = {name: outputs[name] for name in request.outputs}
    facts: dict[str, Parameter] = {
        "upwell.cloud_queue_ms": 1e3 * ran.queue_s,
        "upwell.cloud_compute_ms": 1e3 * ran.compute_s,
        "upwell.cloud_digest": model.digest,
    }
    if LABELS in request.parameters:
        facts.update(label_parameters(request.parameters, processor.signature.labels))
    pre_s, post_s = prepared_s - started_s, ended_s - ran_s
    times = RequestTimes(ended_s - began_s, ran.queue_s, pre_s, ran.compute_s, post_s, ran.batch_rows)
    return InferResponse(model.name, outputs, model.version, request.id, facts), times


def _check_wanted(request: InferRequest, model: CloudModel) -> None:
    for name in request.outputs:
        known = [output.name for output in model.processor.signature.outputs]
        if name not in known:
            raise InvalidRequest(f"model {model.name!r} has no output {name!r}; available: {', '.join(known)}")


def _run(model: CloudModel, prepared: Prepared, call: Call, priority: int) -> RunResult:
    """The model's own outputs, with the seconds of all its runs where it takes several."""
    if model.processor.runs_whole(prepared):
        return model.batcher.run(prepared.tensors, call, priority)
    runs: list[RunResult] = []

    def run(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        runs.append(model.batcher.run(tensors, call, priority))
        return runs[-1].outputs

    raw = model.processor.run_rows(run, prepared)
    queue_s, compute_s = sum(one.queue_s for one in runs), sum(one.compute_s for one in runs)
    return RunResult(raw, queue_s, compute_s, runs[-1].batch_rows)


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
        kind: Placement = "KIND_CPU" if found.engine.device == "cpu" else "KIND_GPU"
        max_batch = settings.max_batch if found.processor.signature.has_rows else 0
        return ModelConfig(
            model, metadata.versions, found.platform, settings.engine, metadata.inputs, metadata.outputs,
            settings.instances, kind, max_batch, settings.buckets,
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
