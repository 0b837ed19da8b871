"""The interface that both the agent and the cloud service implement, and the values that cross it.

Transports know nothing of models and models nothing of transports: the servicer turns bytes into an `InferRequest`, a
`Dataplane` answers it, and the client does the reverse.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Protocol, TypeAlias

from upwell.shared.telemetry.tracing import Trace
from upwell.shared.tensors import Array, TensorSpec
from upwell.shared.value_classes import value_class

Parameter: TypeAlias = bool | int | float | str


@value_class
class InferRequest:
    """One inference request. `outputs` names the wanted outputs; empty means all. `classes` gives the number of classes
    for outputs to be replaced by their highest scores (see `class_labels`); a `Dataplane` never sees it.
    """

    model: str
    inputs: Mapping[str, Array]
    version: str = ""
    id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)


@value_class
class InferResponse:
    """One answer. `parameters` holds facts about it (`upwell.route`, `upwell.cloud_compute_ms`, ...)."""

    model: str
    outputs: Mapping[str, Array]
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@value_class
class ModelMetadata:
    """Inputs and outputs of a model, as its callers see them."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@value_class
class ServerMetadata:
    """Name and version of a server; `extensions` announces capabilities and versions that decide bit-equality."""

    name: str
    version: str
    extensions: tuple[str, ...]


class Signal(Protocol):
    """An event that is set once and can be waited for: a `threading.Event`, or the cheaper `Flag`."""

    def set(self) -> None:
        """Set it, and end every wait."""
        ...

    def is_set(self) -> bool:
        """Whether it was set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for at most `timeout` seconds; returns whether it is."""
        ...


class Flag:
    """A `Signal` that creates its event only when somebody waits: an event costs as much as parsing a request."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def set(self) -> None:
        """See `Signal.set`."""
        # Set before the event is read, as `wait` checks the flag after creating one: neither can miss the other.
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


@value_class
class Call:
    """The circumstances of one call: its deadline, and whether its caller still waits.

    `deadline_s` is a time of `time.monotonic()`, infinite if the caller gave none. `cancelled` is set when the caller
    has left. `traceparent` is the caller's place in a trace in W3C Trace Context notation, unchecked; "" if it sent
    none. `trace` is set if this request is recorded.
    """

    deadline_s: float = math.inf
    cancelled: Signal = field(default_factory=Flag)
    client: str = ""
    traceparent: str = ""
    trace: Trace | None = None


class Dataplane(Protocol):
    """Serves models: the agent on a device, the service in the cloud, the fake in tests.

    Every method is thread-safe. Failures are raised as `UpwellError`s and never returned; any other exception is a bug
    and reaches the caller only as "internal error".
    """

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Answer one request, or raise; if possible not later than `call.deadline_s`."""
        ...

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Describe a model. Raises `ModelNotFound`."""
        ...

    def server_metadata(self) -> ServerMetadata:
        """Describe the server."""
        ...

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the server (`model` None) or that model can answer now. Unknown models are not ready."""
        ...

    def reading(self, call: Call, size_bytes: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """The context in which a message of this size is read for `infer`. Raises `Refused` instead of reading it.

        An exception in the block means that the message could not be read.
        """
        return nullcontext()


class DataplaneLayer(Dataplane):
    """A `Dataplane` in front of another, which gets all calls that a subclass does not override."""

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
