"""The agent's Open Inference Protocol dataplane: tags and facts travel as parameters."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version as package_version

from upwell.edge.config import DEFAULT_MAX_REQUESTS
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.request.answer import Answer
from upwell.edge.request.request import Request
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.uplink.cloud_call import REASON_OF
from upwell.edge.uplink.egress import METADATA_BYTES, EgressForbidden
from upwell.shared.errors import (
    CallerLeft,
    CloudFailed,
    InvalidRequest,
    ModelNotFound,
    NoAllowedRoute,
    Refused,
    Unavailable,
)
from upwell.shared.oip.class_labels import label_parameters
from upwell.shared.oip.dataplane import (
    Call,
    Dataplane,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Parameter,
    ServerMetadata,
)
from upwell.shared.oip.grpc.client.client import RemoteError
from upwell.shared.oip.held_refusals import HeldRefusals
from upwell.shared.oip.introspection import EXTENSIONS as INTROSPECTION
from upwell.shared.oip.introspection import ModelConfig, ServerSettings, extensions
from upwell.shared.oip.model_statistics import ModelStatistics, RequestTimes, StatisticsCounter
from upwell.shared.tensors import Array

TAG_PREFIX = "upwell.tag."
METADATA_TIMEOUT_S = 2.0
_BACKLOG_S = 0.1
"""For what callers have sent and gRPC has not handed over yet."""

VERSION = "1"
"""The one version of each model that an agent serves."""


class AgentDataplane(Dataplane):
    """Adapts an `Agent` to the interfaces `Dataplane` and `Introspection`."""

    def __init__(self, agent: AgentCore, max_requests: int = DEFAULT_MAX_REQUESTS) -> None:
        self._agent = agent
        self._max_requests = max_requests
        self._room = threading.BoundedSemaphore(max_requests)
        self._counter = StatisticsCounter()
        self._refusals = HeldRefusals("the agent")
        self._is_ready, self._is_draining = True, False

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Answer a request; its facts are in the response's parameters (`upwell.route`, `upwell.reason`, ...).

        Raises `Refused` at once if `max_requests` are already being handled, and `Unavailable` while draining.
        """
        arrived_s = time.monotonic()
        if call.cancelled.is_set():
            raise CallerLeft("the caller has left")
        if self._is_draining:
            raise self._refusals.refusal(call.deadline_s)
        if not self._room.acquire(blocking=False):
            raise Refused(f"{self._max_requests} requests are already being handled; try again later")
        try:
            return self._infer(request, call, arrived_s)
        except BaseException:
            if request.model in self._agent.models:
                self._counter.failed(request.model, VERSION, time.monotonic() - arrived_s)
            raise
        finally:
            self._room.release()

    def _infer(self, request: InferRequest, call: Call, arrived_s: float) -> InferResponse:
        _check_version(request.model, request.version)
        model = self._agent.model(request.model)
        _check_outputs(model, request.outputs)
        tags = _tags(request.parameters)
        answer = self._agent.handle(
            Request(request.model, request.inputs, arrived_s, call.deadline_s, tags, request.id, call.traceparent)
        )
        outputs = _wanted(request.model, answer.outputs, request.outputs)
        self._count(request.model, answer, time.monotonic() - arrived_s)
        return InferResponse(
            model=request.model,
            version=VERSION,
            id=answer.id,
            outputs=outputs,
            parameters=answer.parameters() | label_parameters(request.parameters, answer.labels),
        )

    def drain(self) -> None:
        """Answer what has been sent so far, then refuse. Returns when the ports can be closed; then `release`.

        Requests that gRPC has not handed over when its port closes end as cancelled, without a reason.
        """
        self._is_ready = False
        time.sleep(_BACKLOG_S)
        self._is_draining = True
        self._refusals.settle()

    def release(self) -> None:
        """Send the refusals held since `drain`."""
        self._refusals.release()

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """The signature of a model; the cloud's for one that only the cloud serves.

        Raises `NoAllowedRoute` if the policy forbids asking the cloud.
        """
        _check_version(model, version)
        if self._agent.is_closed:
            raise Unavailable("the agent is closed")
        served = self._agent.model(model)
        if served.edge is None:
            return self._cloud_metadata(served)
        signature = served.edge.signature
        return ModelMetadata(
            name=model,
            versions=(VERSION,),
            platform=f"upwell_{served.edge.runtime.name}",
            inputs=tuple(one.spec for one in signature.inputs),
            outputs=tuple(one.spec for one in signature.outputs),
        )

    def server_metadata(self) -> ServerMetadata:
        """Name, version, and the library versions on which equal processing on both sides depends."""
        return ServerMetadata(self._agent.name, package_version("upwell"), (*extensions(), *INTROSPECTION))

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the agent (until it drains) or a model (if it is served) is ready."""
        return (
            self._is_ready
            and not self._agent.is_closed
            and (model is None or (model in self._agent.models and version in ("", VERSION)))
        )

    def config(self, model: str, version: str = "") -> ModelConfig:
        """See `Introspection.config`. The placement is the runtime's, the queue the agent's."""
        found, entry = self.metadata(model, version), self._agent.model(model).entry_model
        has_rows = entry is None or entry.signature.has_rows
        return ModelConfig(
            model, found.versions, found.platform, "upwell", found.inputs, found.outputs,
            placement="KIND_MODEL", max_batch=int(has_rows),
        )  # fmt: skip

    def statistics(self, model: str = "", version: str = "") -> Sequence[ModelStatistics]:
        """See `Introspection.statistics`. `compute` is the run on the device, or in the cloud if the device did not
        run."""
        if model:
            _check_version(model, version)
            self._agent.model(model)
        return self._counter.read((name, VERSION) for name in sorted(self._agent.models) if model in ("", name))

    def settings(self) -> ServerSettings:
        """See `Introspection.settings`."""
        return ServerSettings()

    def _count(self, model: str, answer: Answer, total_s: float) -> None:
        timings = answer.timings
        compute_s = timings.cloud_compute_s if timings.edge_s is None else timings.edge_s
        times = RequestTimes(total_s, timings.cloud_queue_s or 0.0, compute_s=compute_s or 0.0)
        self._counter.answered(model, VERSION, times)
        self._counter.ran(model, VERSION, len(answer.routes), times.compute_s, time.time())

    def _cloud_metadata(self, served: ServedModel) -> ModelMetadata:
        """The metadata of the whole in the cloud, or else of a head and its tail."""
        assert self._agent.uplink is not None  # noqa: S101  the configuration demands one for such a model
        head = None if served.cloud_model or not served.heads else served.heads[0]
        judge = partial(self._agent.router.verdict, served.name, {}, (METADATA_BYTES,))
        asked = head.cut.tail if head else served.cloud_model
        try:
            found = self._agent.uplink.metadata(asked, judge, METADATA_TIMEOUT_S)
        except EgressForbidden as error:
            raise NoAllowedRoute(f"{error}, and the model has no edge side to describe its inputs") from None
        except RemoteError as error:
            raise CloudFailed(f"{REASON_OF.get(error.kind, 'cloud_error')}: {error}") from None
        if head is None or served.entry_model is None:
            return ModelMetadata(served.name, (VERSION,), found.platform, found.inputs, found.outputs)
        inputs = tuple(one.spec for one in served.entry_model.signature.inputs)
        made = tuple(one.spec for one in head.edge.signature.outputs if one.name in head.cut.outputs)
        return ModelMetadata(served.name, (VERSION,), found.platform, inputs, (*made, *found.outputs))


def _tags(parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """The request's tags. Raises `InvalidRequest` for a tag that is not a string.

    Nothing is converted: to a rule that keeps requests on the device, `true` as a bool, an int or a string would
    differ.
    """
    tags = {}
    for name, value in parameters.items():
        if name.startswith(TAG_PREFIX):
            if not isinstance(value, str):
                raise InvalidRequest(f"parameter {name!r}: expected a string, got {value!r}")
            tags[name.removeprefix(TAG_PREFIX)] = value
    return tags


def _check_version(model: str, version: str) -> None:
    if version not in ("", VERSION):
        raise ModelNotFound(f"model {model!r} has no version {version!r}; an agent serves version {VERSION}")


def _check_outputs(model: ServedModel, outputs: tuple[str, ...]) -> None:
    if model.edge is None:
        return
    known = [one.name for one in model.edge.signature.outputs]
    for name in outputs:
        if name not in known:
            raise _no_output(model.name, name, known)


def _wanted(model: str, outputs: Mapping[str, Array], names: tuple[str, ...]) -> Mapping[str, Array]:
    for name in names:
        if name not in outputs:  # of a model whose outputs only the cloud knows
            raise _no_output(model, name, outputs)
    return {name: outputs[name] for name in names} if names else outputs


def _no_output(model: str, name: str, known: Iterable[str]) -> InvalidRequest:
    return InvalidRequest(f"model {model!r} has no output {name!r}; available: {', '.join(known)}")
