"""The cloud service's use case: one request, from the caller's tensors to the answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version as package_version

from upwell.cloud.loading import BrokenModel, ServedModel
from upwell.shared.capabilities import extensions
from upwell.shared.errors import InvalidRequest, ModelNotFound, Unavailable
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse, ModelMetadata, Parameter, ServerMetadata
from upwell.shared.signature.processor import Prepared
from upwell.shared.tensors import Array


class CloudService:
    """A `Dataplane` over loaded models: pre-processing, queue and engine, post-processing.

    A request without a version gets the highest one. An answer carries `upwell.cloud_queue_ms`,
    `upwell.cloud_compute_ms` (of the whole batch it was in) and `upwell.cloud_digest`.
    """

    def __init__(self, models: Sequence[ServedModel | BrokenModel]) -> None:
        self._models: dict[str, dict[str, ServedModel | BrokenModel]] = {}
        for model in sorted(models, key=lambda one: (one.name, int(one.version))):
            self._models.setdefault(model.name, {})[model.version] = model
        self._idle = threading.Condition()
        self._under_way = 0
        self._draining = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all models, ready or not."""
        return tuple(self._models)

    @property
    def capacity(self) -> int:
        """How many requests can be under way at once: run or wait in a queue."""
        return sum(model.settings.instances + model.settings.max_queue for model in self._served())

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Answer one request. Raises as `Dataplane.infer`; `Unavailable` while draining."""
        self._begin()
        try:
            return _answer(self._find(request.model, request.version), request, call)
        finally:
            self._end()

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """The signature of a model, and all of its versions that are ready."""
        found = self._find(model, version)
        signature = found.processor.signature
        ready = tuple(one.version for one in self._models[model].values() if isinstance(one, ServedModel))
        inputs, outputs = (tuple(part.spec for part in side) for side in (signature.inputs, signature.outputs))
        return ModelMetadata(model, ready, found.platform, inputs, outputs)

    def server_metadata(self) -> ServerMetadata:
        """Who serves, and the versions that decide whether the edge processes bit for bit alike."""
        return ServerMetadata("upwell-cloud", package_version("upwell"), extensions())

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the service, or that model, answers now."""
        if self._draining or model is None:
            return not self._draining
        try:
            self._find(model, version)
        except (ModelNotFound, Unavailable):
            return False
        return True

    def drain(self, limit_s: float) -> bool:
        """Take no more requests and wait until those under way have been answered; False if that took too long."""
        with self._idle:
            self._draining = True
            return self._idle.wait_for(lambda: self._under_way == 0, limit_s)

    def close(self) -> None:
        """Free all models."""
        for model in self._served():
            model.engine.close()

    def _served(self) -> Iterator[ServedModel]:
        every = (model for versions in self._models.values() for model in versions.values())
        return (model for model in every if isinstance(model, ServedModel))

    def _begin(self) -> None:
        """Count a request as under way."""
        with self._idle:
            if self._draining:
                raise Unavailable("the service is draining and takes no more requests")
            self._under_way += 1

    def _end(self) -> None:
        with self._idle:
            self._under_way -= 1
            if self._draining:
                self._idle.notify_all()

    def _find(self, name: str, version: str) -> ServedModel:
        versions = self._models.get(name)
        if versions is None:
            raise ModelNotFound(f"no model {name!r} here; there is {', '.join(self._models)}")
        if version and version not in versions:
            raise ModelNotFound(f"model {name!r} has no version {version!r}; there is {', '.join(versions)}")
        model = versions[version or max(versions, key=int)]
        if isinstance(model, BrokenModel):
            raise Unavailable(f"model {name!r} version {model.version} is not ready: {model.reason}")
        return model


def _answer(model: ServedModel, request: InferRequest, call: Call) -> InferResponse:
    _check_wanted(request, model)
    if not model.processor.identity:
        model.batcher.check(call)
    prepared = model.processor.pre(request.inputs)
    raw, queue_s, compute_s = _run(model, prepared, call)
    outputs = model.processor.post(raw, prepared)
    if request.outputs:
        outputs = {name: outputs[name] for name in request.outputs}
    facts: dict[str, Parameter] = {
        "upwell.cloud_queue_ms": 1e3 * queue_s,
        "upwell.cloud_compute_ms": 1e3 * compute_s,
        "upwell.cloud_digest": model.digest,
    }
    return InferResponse(model.name, outputs, model.version, request.id, facts)


def _check_wanted(request: InferRequest, model: ServedModel) -> None:
    for name in request.outputs:
        known = [output.name for output in model.processor.signature.outputs]
        if name not in known:
            raise InvalidRequest(f"model {model.name!r} has no output {name!r}; there is {', '.join(known)}")


def _run(model: ServedModel, prepared: Prepared, call: Call) -> tuple[Mapping[str, Array], float, float]:
    """The model's own outputs, and the seconds spent waiting and running."""
    queue_s = compute_s = 0.0

    def run(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
        nonlocal queue_s, compute_s
        ran = model.batcher.run(tensors, call)
        queue_s += ran.queue_s
        compute_s += ran.compute_s
        return ran.outputs

    raw = model.processor.run_rows(run, prepared)
    return raw, queue_s, compute_s
