"""The model repository extension of the protocol, as Triton defines it: what there is to serve, load and unload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import grpc

from upwell.rpc.oip.v2 import model_repository_pb2 as pb
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.auth.callers import check_may_control, may_use, naming_no_others
from upwell.shared.oip.codec.messages import parse
from upwell.shared.oip.dataplane import Call
from upwell.shared.oip.grpc.servicer import add_methods
from upwell.shared.platform.call_threads import yield_permit

METHODS = ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
EXTENSION = "model_repository"
"""What a server that has these methods announces in its metadata."""

_UNLOAD_PARAMETERS = frozenset({"unload_dependents"})  # no model here depends on another, so it may say either

_log = logging.getLogger(__name__)


class ModelState(str, Enum):
    """Whether a version answers. The words are Triton's."""

    READY = "READY"
    LOADING = "LOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True)
class IndexEntry:
    """One version of a model in the repository. `reason` says why it is in that state, where there is a reason."""

    model: str
    version: str
    state: ModelState
    reason: str = ""


class Repository(Protocol):
    """What is to be served, and the say over it. Safe to call from many threads; failures are `UpwellError`s."""

    def index(self) -> Sequence[IndexEntry]:
        """Every version of every model that is there, whether it answers or not."""
        ...

    def load(self, model: str) -> None:
        """Load a model, or again what has changed of it, and return when it answers.

        Raises `ModelNotFound`, `NotAllowed`, `Refused` where too many wait for others' loads, and `NotLoaded`
        where a version of it is broken.
        """
        ...

    def unload(self, model: str) -> None:
        """Serve a model no more; requests under way are still answered. Raises `ModelNotFound`, `NotAllowed`."""
        ...


def add_repository_methods(server: grpc.Server, actions: RepositoryActions) -> None:
    """Add the three methods of the extension to the protocol's service on `server`, before it is started."""
    servicer = _Servicer(actions)
    add_methods(server, dict(zip(METHODS, (servicer.index, servicer.load, servicer.unload), strict=True)))


class RepositoryActions:
    """What callers may do with `repository`, over whichever transport: their permissions, and what is logged of it."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def index(self, *, ready: bool) -> list[IndexEntry]:
        """The versions of the models that the caller may use; with `ready` those alone that answer."""
        entries = (one for one in self._repository.index() if one.state is ModelState.READY or not ready)
        return [one for one in entries if may_use(one.model)]

    def load(self, model: str, parameters: Iterable[str], call: Call) -> None:
        """Load a model, `parameters` being the names of those that the request has. Raises as `Repository.load`."""
        _refuse_parameters(parameters, frozenset())
        self._change(model, call, "load", self._repository.load)

    def unload(self, model: str, parameters: Iterable[str], call: Call) -> None:
        """Unload a model. Raises as `Repository.unload`."""
        _refuse_parameters(parameters, _UNLOAD_PARAMETERS)
        self._change(model, call, "unload", self._repository.unload)

    def _change(self, model: str, call: Call, what: str, change: Callable[[str], None]) -> None:
        check_may_control(model)
        _log.info("%s asks to %s the model %r", call.client, what, model)
        yield_permit()
        with naming_no_others(model):
            change(model)


class _Servicer:
    """Decode, call, encode."""

    def __init__(self, actions: RepositoryActions) -> None:
        self._actions = actions

    def index(self, data: bytes, _: Call) -> bytes:
        request = parse(pb.RepositoryIndexRequest, data)
        _refuse_named(request.repository_name)
        response = pb.RepositoryIndexResponse()
        for one in self._actions.index(ready=request.ready):
            response.models.add(name=one.model, version=one.version, state=one.state.value, reason=one.reason)
        return response.SerializeToString()

    def load(self, data: bytes, call: Call) -> bytes:
        request = parse(pb.RepositoryModelLoadRequest, data)
        _refuse_named(request.repository_name)
        self._actions.load(request.model_name, request.parameters, call)
        return pb.RepositoryModelLoadResponse().SerializeToString()

    def unload(self, data: bytes, call: Call) -> bytes:
        request = parse(pb.RepositoryModelUnloadRequest, data)
        _refuse_named(request.repository_name)
        self._actions.unload(request.model_name, request.parameters, call)
        return pb.RepositoryModelUnloadResponse().SerializeToString()


def _refuse_named(repository: str) -> None:
    if repository:
        raise InvalidRequest("the one repository here has no name; leave `repository_name` empty")


def _refuse_parameters(parameters: Iterable[str], known: frozenset[str]) -> None:
    """Another configuration or other files than those on disk, for one: ignoring them would serve something else."""
    for name in parameters:
        if name not in known:
            raise InvalidRequest(
                f"the parameter {name!r} is not supported here: a model is what its folder and the service's "
                "configuration say"
            )
