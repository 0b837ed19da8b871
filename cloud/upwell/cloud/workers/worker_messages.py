"""The messages of supervisor and workers: one JSON object per line, over a private socket pair."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from pydantic import TypeAdapter

from upwell.cloud.workers.startup_banner import ModelLine
from upwell.shared.errors import ModelNotFound, NotAllowed, NotLoaded, Refused, Unavailable, UpwellError
from upwell.shared.oip.grpc.server.triton_extensions import AS_CONFIGURED, LoadSettings
from upwell.shared.oip.model_statistics import ModelStatistics

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class StartWorker:
    """To a new worker: what to serve, and the changes by request since the service began."""

    number: int
    config: Mapping[str, Any]
    unloaded: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] | None = None
    settings: Mapping[str, LoadSettings] = field(default_factory=dict)
    fatal: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Loaded:
    """From a worker: its models are loaded; it does not listen yet."""

    models: tuple[ModelLine, ...]


@dataclass(frozen=True)
class Listen:
    """To a worker: all have loaded, so start listening."""


@dataclass(frozen=True)
class Serving:
    """From a worker: it serves."""


HEARTBEAT_S = 1.0


@dataclass(frozen=True)
class Alive:
    """From a worker that has loaded its models: sent every `HEARTBEAT_S` by a thread that does nothing else."""


@dataclass(frozen=True)
class LoadsNow:
    """From a worker: it begins to load a version of a model, or has ended that (without a name). It may be silent
    meanwhile."""

    model: str = ""
    version: str = ""


@dataclass(frozen=True)
class Failed:
    """From a worker: it cannot serve, and ends. `is_config` says that something a person wrote is wrong."""

    text: str
    is_config: bool


@dataclass(frozen=True)
class Ask:
    """From a worker: a caller wants a model loaded or, with `unload`, unloaded in all workers."""

    id: int
    model: str
    unload: bool
    settings: LoadSettings = AS_CONFIGURED


@dataclass(frozen=True)
class Change:
    """To every worker: load or unload a model."""

    id: int
    model: str
    unload: bool
    settings: LoadSettings = AS_CONFIGURED


@dataclass(frozen=True)
class Done:
    """From a worker: a change is made or has failed. `versions` are those of the model now, empty if unchanged, and
    `settings` those of its load.
    """

    id: int
    error: tuple[str, str] | None = None
    versions: tuple[str, ...] = ()
    settings: LoadSettings = AS_CONFIGURED


@dataclass(frozen=True)
class WorkerReply:
    """To the worker that asked: all have made the change; `error` is that of a worker that failed."""

    id: int
    error: tuple[str, str] | None = None


@dataclass(frozen=True)
class Counted:
    """From a worker: its counts since it began (a `Snapshot`)."""

    tables: Mapping[str, Any]


@dataclass(frozen=True)
class AskStatistics:
    """From a worker: a caller wants the request statistics of all workers."""

    id: int


@dataclass(frozen=True)
class TellStatistics:
    """To every worker: send your statistics."""

    id: int


@dataclass(frozen=True)
class Statistics:
    """From a worker: its statistics. To the worker that asked: the sum of all."""

    id: int
    models: tuple[ModelStatistics, ...]


@dataclass(frozen=True)
class Drain:
    """To a worker: answer what was accepted, then end."""


Message = (
    StartWorker | Loaded | Listen | Serving | Alive | LoadsNow | Failed | Ask | Change | Done | WorkerReply | Counted
    | AskStatistics | TellStatistics | Statistics | Drain
)  # fmt: skip

_READERS: Mapping[str, TypeAdapter[Message]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Message)}
_ERRORS: Mapping[str, type[UpwellError]] = {
    kind.__name__: kind for kind in (ModelNotFound, NotAllowed, NotLoaded, Refused, Unavailable)
}


def error_to_wire(error: BaseException) -> tuple[str, str]:
    """An error's kind and text; the text of an unexpected error stays here."""
    kind = type(error).__name__
    return (kind, str(error)) if kind in _ERRORS else ("", "")


def error_from_wire(error: tuple[str, str]) -> Exception:
    """The error again, to be raised where the caller waits."""
    kind, text = error
    return _ERRORS[kind](text) if kind in _ERRORS else RuntimeError("a worker failed; its log says why")


def encode(message: Message) -> bytes:
    """The message as one line."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in one line."""
    fields: dict[str, Any] = json.loads(line)
    return _READERS[fields.pop("kind")].validate_python(fields)


@dataclass
class Channel:
    """One end of the pair. Any thread may send; one receives. The socket's timeout, if any, applies to both."""

    socket: socket.socket
    _received: bytearray = field(default_factory=bytearray)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def send(self, message: Message) -> None:
        """Send a message. Raises `OSError` if the other side is gone or stuck."""
        with self._sending:
            self.socket.sendall(encode(message))

    def receive(self) -> list[Message] | None:
        """Wait for data; returns the messages that are complete, or None at the end of the stream."""
        try:
            data = self.socket.recv(_CHUNK_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            return None
        self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = bytearray(rest)
        return [decode(bytes(line)) for line in lines]

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
