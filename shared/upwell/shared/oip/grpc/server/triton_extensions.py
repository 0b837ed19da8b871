"""Triton's extensions over gRPC: configuration, statistics, settings, model repository; refusals for all others."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import grpc

from upwell.rpc.oip.v2 import model_repository_pb2 as pb
from upwell.shared.errors import InvalidRequest, ModelNotFound, NotLoaded
from upwell.shared.oip.auth.caller import check_may_control, check_may_use, may_use, naming_no_others
from upwell.shared.oip.codec import triton_messages as codec
from upwell.shared.oip.codec.tensor_messages import parse
from upwell.shared.oip.dataplane import Call
from upwell.shared.oip.grpc.server.servicer import Method, add_methods
from upwell.shared.oip.introspection import (
    Introspection,
    ServerSettings,
    refuse_changes,
    refuse_repository,
    refuse_shared_memory,
)
from upwell.shared.oip.model_statistics import ModelStatistics
from upwell.shared.platform.call_threads import yield_permit
from upwell.shared.telemetry.log_context import LONGEST_NAME

INTROSPECTION_METHODS = ("ModelConfig", "ModelStatistics", "TraceSetting", "LogSettings")

_SHARED_MEMORY = tuple(
    f"{kind}SharedMemory{what}" for kind in ("System", "Cuda") for what in ("Status", "Register", "Unregister")
)


def add_introspection_methods(server: grpc.Server, introspection: Introspection) -> None:
    """Add the methods to the protocol's service on `server`, before it starts."""
    servicer = _IntrospectionServicer(introspection)
    told = (servicer.config, servicer.statistics, servicer.trace_settings, servicer.log_settings)
    methods: Mapping[str, Method] = dict(zip(INTROSPECTION_METHODS, told, strict=True))
    add_methods(server, {**methods, **dict.fromkeys(_SHARED_MEMORY, _refuse_shared_memory)})


def permitted_statistics(introspection: Introspection, model: str, version: str) -> Sequence[ModelStatistics]:
    """The statistics of the models that the current caller may use. Raises as `introspection` does."""
    if not model:
        return [one for one in introspection.statistics() if may_use(one.model)]
    check_may_use(model)
    with naming_no_others(model, version):
        return introspection.statistics(model, version)


class _IntrospectionServicer:
    """Decode, call, encode."""

    def __init__(self, introspection: Introspection) -> None:
        self._introspection = introspection

    def config(self, data: bytes, _: Call) -> bytes:
        model, version = codec.parse_config_request(data)
        check_may_use(model)
        with naming_no_others(model, version):
            return codec.serialize_config(self._introspection.config(model, version))

    def statistics(self, data: bytes, _: Call) -> bytes:
        model, version = codec.parse_statistics_request(data)
        yield_permit()  # other workers may be asked
        return codec.serialize_statistics(permitted_statistics(self._introspection, model, version))

    def trace_settings(self, data: bytes, _: Call) -> bytes:
        model, names = codec.parse_trace_request(data)
        return codec.serialize_trace_settings(self._settings(model, names))

    def log_settings(self, data: bytes, _: Call) -> bytes:
        return codec.serialize_log_settings(self._settings("", codec.parse_log_request(data)))

    def _settings(self, model: str, names: Sequence[str]) -> ServerSettings:
        if model:
            check_may_use(model)
            with naming_no_others(model):
                self._introspection.config(model)  # raises if the model does not exist
        refuse_changes(names)
        return self._introspection.settings()


def _refuse_shared_memory(_data: bytes, _call: Call) -> bytes:
    refuse_shared_memory()


REPOSITORY_METHODS = ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
REPOSITORY_EXTENSION = "model_repository"
"""The extension announced by a server with these methods."""

_UNLOAD_PARAMETERS = frozenset({"unload_dependents"})  # no model here depends on another, so either value is accepted

_log = logging.getLogger(__name__)


class ModelState(str, Enum):
    """Whether a version is ready, in Triton's words."""

    READY = "READY"
    LOADING = "LOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True)
class IndexEntry:
    """One version of a model in the repository. `reason` explains its state, "" if there is nothing to explain."""

    model: str
    version: str
    state: ModelState
    reason: str = ""


@dataclass(frozen=True)
class LoadSettings:
    """Settings of a load that override the configuration until the model's next load. None: as configured.

    `max_batch`: most rows in one run; `instances`: concurrent runs.
    """

    max_batch: int | None = None
    instances: int | None = None


AS_CONFIGURED = LoadSettings()
"""A load without settings."""


class Repository(Protocol):
    """Lists, loads and unloads models. Thread-safe; failures are `UpwellError`s."""

    def index(self) -> Sequence[IndexEntry]:
        """Every version of every model, ready or not."""
        ...

    def load(self, model: str, settings: LoadSettings = AS_CONFIGURED) -> None:
        """Load a model, or reload what has changed, and return when it is ready.

        Raises `ModelNotFound`, `NotAllowed`, `Refused` if too many loads are waiting, and `NotLoaded` if a version is
        broken.
        """
        ...

    def unload(self, model: str) -> None:
        """Stop serving a model; requests in progress are still answered. Raises `ModelNotFound`, `NotAllowed`."""
        ...


def refuse_repository_methods(server: grpc.Server) -> None:
    """Add the three methods to a `server` without a repository, before it is started: each says so."""
    add_methods(server, dict.fromkeys(REPOSITORY_METHODS, lambda _data, _call: refuse_repository()))


def add_repository_methods(server: grpc.Server, actions: RepositoryActions) -> None:
    """Add the three methods of the extension to the protocol's service on `server`, before it starts."""
    servicer = _RepositoryServicer(actions)
    add_methods(server, dict(zip(REPOSITORY_METHODS, (servicer.index, servicer.load, servicer.unload), strict=True)))


class RepositoryActions:
    """What callers may do with `repository`, over any transport: permissions and logging."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def index(self, *, ready: bool) -> list[IndexEntry]:
        """The versions of the models that the caller may use; with `ready` only those that are ready."""
        entries = (one for one in self._repository.index() if one.state is ModelState.READY or not ready)
        return [one for one in entries if may_use(one.model)]

    def load(self, model: str, parameters: Mapping[str, object], call: Call) -> None:
        """Load a model with the parameters of the request. Raises as `Repository.load`, and `InvalidRequest`."""
        with self._change(model, call, "load"):
            self._repository.load(model, read_load_settings(model, parameters))

    def unload(self, model: str, parameters: Mapping[str, object], call: Call) -> None:
        """Unload a model. Raises as `Repository.unload`, and `InvalidRequest`."""
        with self._change(model, call, "unload"):
            _refuse_parameters(parameters, _UNLOAD_PARAMETERS)
            self._repository.unload(model)

    @contextmanager
    def _change(self, model: str, call: Call, what: str) -> Iterator[None]:
        """Run a change of `model`; errors begin with Triton's words, for which its clients look."""
        if len(model) > LONGEST_NAME:  # it would be logged, and sent to all workers
            raise InvalidRequest(f"failed to {what} a model: its name has {len(model)} characters, too many")
        check_may_control(model)
        _log.info("%s requests to %s model %r", call.client, what, model)
        yield_permit()
        try:
            with naming_no_others(model):
                yield
        except (InvalidRequest, ModelNotFound, NotLoaded) as error:
            raise type(error)(f"failed to {what} {model!r}: {error}") from None


class _RepositoryServicer:
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
        self._actions.load(request.model_name, _values(request.parameters), call)
        return pb.RepositoryModelLoadResponse().SerializeToString()

    def unload(self, data: bytes, call: Call) -> bytes:
        request = parse(pb.RepositoryModelUnloadRequest, data)
        _refuse_named(request.repository_name)
        self._actions.unload(request.model_name, _values(request.parameters), call)
        return pb.RepositoryModelUnloadResponse().SerializeToString()


def _refuse_named(repository: str) -> None:
    if repository:
        raise InvalidRequest("there is only one repository, without a name; leave `repository_name` empty")


def _values(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> dict[str, object]:
    chosen = {name: one.WhichOneof("parameter_choice") for name, one in parameters.items()}
    return {name: getattr(parameters[name], choice) if choice else None for name, choice in chosen.items()}


_CONFIG = "config"
_MAX_CONFIG_CHARACTERS = 1 << 16
_KEYS = "a load may set only `max_batch_size` and `instance_group` (`count`)"
_MOST_ROWS, _MOST_INSTANCES = 4096, 256


def read_load_settings(model: str, parameters: Mapping[str, object]) -> LoadSettings:
    """Parse the parameters of a load: `config` is a Triton model configuration in JSON, of which two keys are
    supported. Raises `InvalidRequest` for anything else, which would otherwise be ignored.
    """
    _refuse_parameters(parameters, frozenset({_CONFIG}))
    if _CONFIG not in parameters:
        return AS_CONFIGURED
    config = _json_object(parameters[_CONFIG])
    for key, value in config.items():
        if key == "name" and value != model:
            raise InvalidRequest(f"its `config` is for model {value!r}")
        if key not in ("name", "max_batch_size", "instance_group"):
            raise InvalidRequest(f"its `config` has the key {key!r}; {_KEYS}")
    rows, groups = config.get("max_batch_size"), config.get("instance_group")
    max_batch = None if rows is None else max(1, _count("max_batch_size", rows, 0, _MOST_ROWS))
    if groups is None:
        return LoadSettings(max_batch)
    if not isinstance(groups, list) or not groups or not all(isinstance(one, dict) for one in groups):
        raise InvalidRequest('expected `instance_group` of its `config` to be a list such as [{"count": 2}]')
    for key in sorted({key for one in groups for key in one} - {"count", "name"}):
        raise InvalidRequest(f"`instance_group` of its `config` has the key {key!r}; only `count` may change")
    counts = (_count("count", one.get("count", 1), 1, _MOST_INSTANCES) for one in groups)
    return LoadSettings(max_batch, _count("count", sum(counts), 1, _MOST_INSTANCES))


def _json_object(text: object) -> dict[str, object]:
    if not isinstance(text, str) or len(text) > _MAX_CONFIG_CHARACTERS:
        raise InvalidRequest(
            f"expected the parameter 'config' to be a string of at most {_MAX_CONFIG_CHARACTERS} characters"
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest(f"the parameter 'config' cannot be read as JSON{where}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the parameter 'config' is not a JSON object")
    return found


def _count(name: str, value: object, least: int, most: int) -> int:
    """An integer as written by protobuf's JSON: a number, or a string of digits."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise InvalidRequest(f"`{name}` of its `config` must be a whole number from {least} to {most}")
    return value


def _refuse_parameters(parameters: Iterable[str], known: frozenset[str]) -> None:
    """Refuse unknown parameters, such as other files than those on disk: ignoring them would serve something else."""
    for name in parameters:
        if name not in known:
            raise InvalidRequest(
                f"the parameter {name!r} is not supported here: models are defined by their folder and the service's "
                "configuration"
            )
