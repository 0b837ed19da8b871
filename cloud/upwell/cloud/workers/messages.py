"""What supervisor and workers say to each other, one JSON object a line, over a socket pair that only they have."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, get_args

from pydantic import TypeAdapter

from upwell.cloud.workers.banner import ModelLine
from upwell.shared.errors import ModelNotFound, NotAllowed, NotLoaded, Refused, Unavailable, UpwellError
from upwell.shared.oip.grpc.repository import AS_CONFIGURED, LoadSettings
from upwell.shared.oip.statistics import ModelStatistics

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class StartWorker:
    """To a new worker: what to serve, and what was changed by request since the service began."""

    number: int
    config: Mapping[str, Any]
    unloaded: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] | None = None
    settings: Mapping[str, LoadSettings] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """From a worker: its models are loaded, and nothing listens yet."""

    models: tuple[ModelLine, ...]


@dataclass(frozen=True)
class Listen:
    """To a worker: all have loaded; open the ports."""


@dataclass(frozen=True)
class Serving:
    """From a worker: it answers."""


@dataclass(frozen=True)
class Failed:
    """From a worker: it cannot serve, and ends. `is_config`: something that a person wrote is wrong."""

    text: str
    is_config: bool


@dataclass(frozen=True)
class Ask:
    """From a worker: a caller wants a model to be loaded or, with `unload`, unloaded in all workers."""

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
    """From a worker: a change is made, or not. `versions` are those of the model by then, none if nothing changed."""

    id: int
    error: tuple[str, str] | None = None
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerReply:
    """To the worker that asked: all have done it; `error` is what a worker said that could not."""

    id: int
    error: tuple[str, str] | None = None


@dataclass(frozen=True)
class Counted:
    """From a worker: what it has counted since it began (`metrics.together`)."""

    tables: Mapping[str, Any]


@dataclass(frozen=True)
class AskStatistics:
    """From a worker: a caller wants to know what all workers have counted of their requests."""

    id: int


@dataclass(frozen=True)
class TellStatistics:
    """To every worker: tell what was counted."""

    id: int


@dataclass(frozen=True)
class Statistics:
    """From a worker, what it has counted; to the one that asked, what all have."""

    id: int
    models: tuple[ModelStatistics, ...]


@dataclass(frozen=True)
class Drain:
    """To a worker: answer what was accepted, and end."""


Message = (
    StartWorker | Loaded | Listen | Serving | Failed | Ask | Change | Done | WorkerReply | Counted | AskStatistics
    | TellStatistics | Statistics | Drain
)  # fmt: skip

_READERS: Mapping[str, TypeAdapter[Message]] = MappingProxyType(
    {kind.__name__: TypeAdapter(kind) for kind in get_args(Message)}
)
_ERRORS: Mapping[str, type[UpwellError]] = MappingProxyType(
    {kind.__name__: kind for kind in (ModelNotFound, NotAllowed, NotLoaded, Refused, Unavailable)}
)


def error_to_wire(error: BaseException) -> tuple[str, str]:
    """An error's kind and text; of one that nobody raised on purpose the text stays here."""
    kind = type(error).__name__
    return (kind, str(error)) if kind in _ERRORS else ("", "")


def error_from_wire(error: tuple[str, str]) -> Exception:
    """The error again, to be raised where a caller waits."""
    kind, text = error
    return _ERRORS[kind](text) if kind in _ERRORS else RuntimeError("a worker failed; its log says why")


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line."""
    fields: dict[str, Any] = json.loads(line)
    return _READERS[fields.pop("kind")].validate_python(fields)


@dataclass
class Channel:
    """One end of the pair. Any thread may send; one receives. The socket's timeout, if any, holds for both."""

    socket: socket.socket
    _received: bytearray = field(default_factory=bytearray)
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def send(self, message: Message) -> None:
        """Send a message. Raises `OSError` where the other side is gone or stuck."""
        with self._sending:
            self.socket.sendall(encode(message))

    def receive(self) -> list[Message] | None:
        """Wait for something to come; the messages that are complete then, or None at the end."""
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
