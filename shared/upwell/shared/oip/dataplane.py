"""The one interface that the agent and the cloud service implement, and the values that cross it.

Transport knows nothing of models and models nothing of transport: the servicer turns bytes into an
`InferRequest`, a `Dataplane` answers it, the client is the same thing seen from the other side.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from upwell.shared.tensors import Array, TensorSpec

Parameter: TypeAlias = bool | int | float | str


@dataclass(frozen=True)
class InferRequest:
    """One inference request. `outputs` names the outputs wanted; empty means all."""

    model: str
    inputs: Mapping[str, Array]
    version: str = ""
    id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Call:
    """The circumstances of one call: how long it may take and whether anybody still waits.

    `deadline_s` is an instant of `time.monotonic()`, infinite where the caller gave none.
    `cancelled` is set when the caller has left.
    """

    deadline_s: float = math.inf
    cancelled: threading.Event = field(default_factory=threading.Event)
    client: str = ""


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
