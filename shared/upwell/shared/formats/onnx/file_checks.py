"""External weight files and operators of an ONNX file, checked before a runtime opens it.

ONNX Runtime before 1.24 reads external weights from any path that a model names, so an untrusted model could copy any
file of the machine into its outputs. This walks protobuf's wire format without the `onnx` package and without copying
weights, and checks every such path. Time grows with the file; memory does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType

from upwell.shared.files import LeadsOut, Unconfined, plain_file
from upwell.shared.formats.onnx.protobuf_reader import BadOnnxFile, Bytes, fields, length_delimited, opened

_ENTRY = "StringStringEntryProto"
LOCATION = "location"
"""The key of the entry that names the file of a tensor's external data."""

MESSAGES: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
        "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
        "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
        "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
        "NodeProto": {5: "AttributeProto"},
        "AttributeProto": {
            5: "TensorProto",
            6: "GraphProto",
            10: "TensorProto",
            11: "GraphProto",
            22: "SparseTensorProto",
            23: "SparseTensorProto",
        },
        "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
        "TensorProto": {13: _ENTRY},
    }
)
"""The paths from a model to a tensor's `external_data`: message of `onnx.proto` -> field number -> message there."""

MAX_DEPTH = 100  # protobuf's own limit: runtimes refuse deeper nesting
_MAX_LOCATIONS = 10_000
_MAX_LOCATION_BYTES = 4096
_MAX_NAME_BYTES = 1000
_NODE_NAME = (7, 4)
_FUNCTION_NAME = (10, 1)
"""Fields of `onnx.proto` with the domain and the name of an operator, in NodeProto and in FunctionProto."""
_KNOWN_DOMAINS = (
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft",
    "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc",
)  # fmt: skip
_COMPILED = "EPContext"
_PROGRAM_KEYS = (b"ep_cache_context", b"embed_mode")
"""Attributes of an EPContext node: the compiled program or its file, and whether it is embedded (1, the default)."""
_ATTRIBUTE = 5
_NAME, _INTEGER, _TEXT = 1, 3, 4
"""Fields of NodeProto and AttributeProto."""
_SHOWN_CHARACTERS = 200
_MEMORY_MARK = "*/"  # ONNX Runtime's `*/_ORT_MEM_ADDR_/*` and similar are addresses in its memory, not files


@dataclass(frozen=True)
class ExternalData:
    """The place of a tensor's numbers outside the model's file, as in its entries; "" if an entry is missing.

    Of several entries with one key the last counts, as for the `onnx` package.
    """

    location: str = ""
    offset: str = ""
    length: str = ""

    @classmethod
    def of(cls, entries: Iterable[tuple[str, str]]) -> ExternalData:
        """From the keys and values of the entries, in file order."""
        said = dict(entries)
        return cls(*(said.get(key, "") for key in (LOCATION, "offset", "length")))

    def part(self, path: Path) -> tuple[Path, int, int]:
        """File, first byte and size in bytes of the numbers of a tensor in the ONNX file at `path`.

        Raises `BadOnnxFile` if they are missing, or not in a file in the folder of `path` or below, and `OSError`.
        """
        file = external_file(path, self.location)
        try:
            begin = int(self.offset or 0)
            there_bytes = file.stat().st_size - begin
            size_bytes = int(self.length or there_bytes)
        except ValueError:
            raise BadOnnxFile(f"its offset or length in {file.name} is not a number") from None
        if begin < 0 or not 0 <= size_bytes <= there_bytes:
            raise BadOnnxFile(f"{file.name} has {begin + there_bytes} bytes; expected {size_bytes} at offset {begin}")
        return file, begin, size_bytes


def external_weights(path: Path) -> tuple[Path, ...]:
    """The weight files of the ONNX file at `path`, by location in the order of `external_locations`.

    Each path is resolved, and was a file in the folder of `path` or below. Raises `BadOnnxFile` for a location that is
    absolute, has a `..`, leads out of the folder by a link or names no file, and errors of `external_locations`.
    """
    return tuple(external_places(path).values())


def external_places(path: Path) -> Mapping[str, Path]:
    """Each of `external_locations` with its file, as in `external_weights`, whose errors it raises."""
    return {location: external_file(path, location) for location in external_locations(path)}


def external_locations(path: Path) -> tuple[str, ...]:
    """Every location that the ONNX file at `path` names for weights or compiled programs, unchanged, unique and sorted.

    Raises `BadOnnxFile` if it is not an ONNX file, is nested too deeply or has too many or too long locations, and
    `OSError` if the file cannot be read.
    """
    found: set[str] = set()
    with opened(path) as data:
        for kind, begin, stop in _messages(data, 0, data.size, "ModelProto", 0):
            if kind == _ENTRY:
                key, value = external_entry(data, begin, stop)
                found.update([value] if key == LOCATION else [])
            elif kind == "NodeProto":
                found.update(_program_file(data, begin, stop))
            if len(found) > _MAX_LOCATIONS:
                raise BadOnnxFile(f"it names more than {_MAX_LOCATIONS} files of external weights")
    return tuple(sorted(found))


def foreign_operators(path: Path) -> tuple[str, ...]:
    """The operators in the ONNX file at `path` that need a custom library or a compiled program, sorted.

    Each is `domain:name`. Operators of ONNX, of ONNX Runtime and of the file's own functions are left out, except
    `EPContext`: it holds or names a program compiled for an accelerator, which runs as it is. Raises as
    `external_locations` does.
    """
    called: set[tuple[str, str]] = set()
    own: set[tuple[str, str]] = set()
    with opened(path) as data:
        for kind, begin, stop in _messages(data, 0, data.size, "ModelProto", 0):
            if kind == "NodeProto":
                called.add(_named(data, begin, stop, _NODE_NAME))
            elif kind == "FunctionProto":
                own.add(_named(data, begin, stop, _FUNCTION_NAME))
    foreign = {one for one in called if (one not in own and one[0] not in _KNOWN_DOMAINS) or one[1] == _COMPILED}
    return tuple(sorted(f"{domain}:{name}" for domain, name in foreign))


def external_file(path: Path, location: str) -> Path:
    """The file at a location of the ONNX file at `path`. Raises `BadOnnxFile` as `external_weights` does."""
    shown = repr(location if len(location) <= _SHOWN_CHARACTERS else location[:_SHOWN_CHARACTERS] + "…")
    written = PurePath(location)
    if written.anchor or ".." in written.parts or location.startswith(_MEMORY_MARK):
        raise BadOnnxFile(f"external weights {shown} are refused; expected a relative path without '..'")
    try:
        return plain_file(path.parent, location)
    except LeadsOut:
        raise BadOnnxFile(f"external weights {shown} are a link to outside the model's folder") from None
    except Unconfined:
        expected = "expected a file in the model's folder or below"
        raise BadOnnxFile(f"external weights {shown} are missing; {expected}") from None


def _messages(data: Bytes, start: int, end: int, message: str, depth: int) -> Iterator[tuple[str, int, int]]:
    """Type, start and end of every message of `MESSAGES` in the one at `data[start:end]`, at any depth."""
    if depth > MAX_DEPTH:
        raise BadOnnxFile(f"not an ONNX file: its messages nest deeper than {MAX_DEPTH}")
    inner = MESSAGES[message]
    for number, begin, stop in length_delimited(data, start, end):
        kind = inner.get(number)
        if kind is None:
            continue
        yield kind, begin, stop
        if kind in MESSAGES:
            yield from _messages(data, begin, stop, kind, depth + 1)


def _named(data: Bytes, start: int, end: int, numbers: tuple[int, int]) -> tuple[str, str]:
    """Domain and name of a node's operator or of a function; of repeated fields the last counts."""
    found = dict.fromkeys(numbers, "")
    for number, begin, stop in length_delimited(data, start, end):
        if number in found:
            if stop - begin > _MAX_NAME_BYTES:
                raise BadOnnxFile(f"an operator's name is longer than {_MAX_NAME_BYTES} bytes")
            found[number] = data[begin:stop].decode(errors="replace")
    return found[numbers[0]], found[numbers[1]]


def _program_file(data: Bytes, start: int, end: int) -> list[str]:
    """The file named by a node with a compiled program, unless the node contains the program."""
    if _named(data, start, end, _NODE_NAME)[1] != _COMPILED:
        return []
    where, is_embedded = "", True
    for number, begin, stop in length_delimited(data, start, end):
        if number == _ATTRIBUTE:
            values = {at: value for at, value, _ in fields(data, begin, stop)}
            name, text, flag = (values.get(at) for at in (_NAME, _TEXT, _INTEGER))
            is_program, is_flag = (isinstance(name, tuple) and data[slice(*name)] == key for key in _PROGRAM_KEYS)
            if is_flag:
                is_embedded = flag == 1
            elif is_program and isinstance(text, tuple):
                where = "" if text[1] - text[0] > _MAX_LOCATION_BYTES else data[slice(*text)].decode(errors="replace")
    return [where] if where and not is_embedded else []


def external_entry(data: Bytes, start: int, end: int) -> tuple[str, str]:
    """Key and value of an entry of a tensor's `external_data`, as protobuf reads it: of repeated fields the last
    counts.

    Of several entries with one key the last counts too, but every location is checked. A key or value that is longer
    than any path is read as "". Raises `BadOnnxFile` for a location that is too long or not UTF-8.
    """
    spans = {1: (start, start), 2: (start, start)}
    for number, begin, stop in length_delimited(data, start, end):
        if number in spans:
            spans[number] = (begin, stop)
    key, value = (data[begin:stop] if stop - begin <= _MAX_LOCATION_BYTES else None for begin, stop in spans.values())
    if key == LOCATION.encode() and value is None:
        raise BadOnnxFile(f"a path of its external weights is longer than {_MAX_LOCATION_BYTES} bytes")
    try:
        return (key or b"").decode(errors="replace"), (value or b"").decode()
    except UnicodeDecodeError:
        if key == LOCATION.encode():
            raise BadOnnxFile("not an ONNX file: a path of its external weights is not UTF-8") from None
        return (key or b"").decode(errors="replace"), ""
