"""The one interface that the agent and the cloud service implement, and the values that cross it.

Transport knows nothing of models and models nothing of transport: the servicer turns bytes into an
`InferRequest`, a `Dataplane` answers it, the client is the same thing seen from the other side.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from upwell.shared.telemetry.trace import Trace
from upwell.shared.tensors import Array, TensorSpec

Parameter: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One inference request. `outputs` names the outputs wanted; empty means all. `classes`: of which of these the
    highest scores are wanted in their place, and how many (see `classification`); a `Dataplane` never gets any.
    """

    model: str
    inputs: Mapping[str, Array]
    version: str = ""
    id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferResponse:
    """One answer. `parameters` carries the facts about it (`upwell.route`, `upwell.cloud_compute_ms`, ...)."""

    model: str
    outputs: Mapping[str, Array]
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelMetadata:
    """What a model takes and gives, as its callers see it."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class ServerMetadata:
    """Who serves; `extensions` announces capabilities and the versions that decide bit-equality."""

    name: str
    version: str
    extensions: tuple[str, ...]


class Signal(Protocol):
    """What is set once and for all, and can be waited for: a `threading.Event`, or the cheaper `Flag`."""

    def set(self) -> None:
        """Let `is_set` be true from now on, and end every wait."""
        ...

    def is_set(self) -> bool:
        """Whether it was set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; whether it is."""
        ...


class Flag:
    """A `Signal` that makes its event only where somebody waits, for an event costs as much as parsing a request."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def set(self) -> None:
        """See `Signal.set`."""
        # Before the event is looked at, as `wait` looks here after it has made one: neither can miss the other.
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def is_set(self) -> bool:
        """See `Signal.is_set`."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """See `Signal.wait`."""
        with _events:
            if self._event is None:
                self._event = threading.Event()
        return self._is_set or self._event.wait(timeout)


_events = threading.Lock()


@dataclass(frozen=True, slots=True)
class Call:
    """The circumstances of one call: how long it may take and whether anybody still waits.

    `deadline_s` is an instant of `time.monotonic()`, infinite where the caller gave none.
    `cancelled` is set when the caller has left. `traceparent` is the caller's place in a trace, as W3C Trace Context
    writes it; empty where it sent none, and not yet checked. `trace` is set where this request is recorded.
    """

    deadline_s: float = math.inf
    cancelled: Signal = field(default_factory=Flag)
    client: str = ""
    traceparent: str = ""
    trace: Trace | None = None


class Dataplane(Protocol):
    """What serves models: the agent on a device, the service in the cloud, the fake in tests.

    Every method is safe to call from many threads. Failures are raised as `UpwellError`s and never
    returned; anything else that escapes is a bug and reaches the caller as "internal error" only.
    """

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Answer one request, or raise; never later than `call.deadline_s` if that can be helped."""
        ...

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Describe a model. Raises `ModelNotFound`."""
        ...

    def server_metadata(self) -> ServerMetadata:
        """Say who serves here."""
        ...

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the server (`model` None) or that model can answer now. Unknown models are not ready."""
        ...

    def reading(self, call: Call, size_bytes: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """While a message of this size is read for `infer`. Raises `Refused` before that is worth it.

        What the block raises says that the message cannot be read.
        """
        return nullcontext()


class DataplaneLayer(Dataplane):
    """A `Dataplane` before another one, to which it passes on whatever a subclass leaves as it is."""

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """See `Dataplane.infer`."""
        return self._dataplane.infer(request, call)

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
