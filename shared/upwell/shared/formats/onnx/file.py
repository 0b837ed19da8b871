"""An ONNX file: opened, walked without a protobuf package, and its external weights and operators checked.

All readers of ONNX files use this module, so that what one of them has checked is what another reads.

ONNX Runtime before 1.24 reads external weights from any path that a model names, so an untrusted model could copy any
file of the machine into its outputs. This walks protobuf's wire format without the `onnx` package and without copying
weights, and checks every such path. Time grows with the file; memory does not.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePath
from typing import TypeAlias, overload

from upwell.shared.files import LeadsOut, Unconfined, open_plain, plain_file
from upwell.shared.value_classes import value_class

_CUT_SHORT = "not an ONNX file, or truncated"
_BLOCK_BYTES = 1 << 14
_MAX_TAG_BITS = 32
_MAX_FILE_BYTES = (1 << 31) - 1  # likewise
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class BadOnnxFile(Exception):
    """The file is not an ONNX file, or its weights are not where they must be; the text says why, without the file."""


class Contents:
    """The bytes of an open file, read and kept block by block.

    Not a memory map: reading one kills the process if the file has become shorter meanwhile.
    """

    def __init__(self, file: BufferedReader, size: int) -> None:
        self.size = size
        self._file = file
        self._start = 0
        self._block = b""

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> bytes: ...
    def __getitem__(self, at: int | slice) -> int | bytes:
        """A byte, or the existing part of a slice. Raises `BadOnnxFile` for a byte that is gone."""
        if isinstance(at, slice):
            self._file.seek(at.start)
            return self._file.read(at.stop - at.start)
        offset = at - self._start
        if not 0 <= offset < len(self._block):
            self._block, self._start, offset = self[at : at + _BLOCK_BYTES], at, 0
        if not self._block:
            raise BadOnnxFile(_CUT_SHORT)
        return self._block[offset]


Bytes: TypeAlias = "Contents | mmap.mmap | bytes"

Span: TypeAlias = "tuple[int, int]"
"""The start and end of a part of the file."""

Value: TypeAlias = "int | Span | None"
"""The number of a varint, the span of a length-delimited field, or None for a field of fixed width."""


@contextmanager
def opened(path: Path) -> Iterator[Contents]:
    """Open the ONNX file at `path`. Raises `BadOnnxFile` if it is empty or too large, and `OSError`."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise BadOnnxFile("the file is empty")
        if size > _MAX_FILE_BYTES:  # before anything reads it whole: a sparse file of huge size would take days
            raise BadOnnxFile(
                f"it has {size} bytes; expected at most 2 GiB; larger models keep their weights in separate files"
            )
        yield Contents(file, size)


def length_delimited(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each length-delimited field of the message in `data[start:end]`."""
    for number, value, _ in fields(data, start, end):
        if isinstance(value, tuple):
            yield number, *value


def fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, Value, Span]]:
    """Number, value and extent (with the tag) of each field of the message in `data[start:end]`.

    Raises `BadOnnxFile` if it is not a protobuf message.
    """
    position = start
    while position < end:
        begin = position
        value: Value = None
        tag, position = varint(data, position, end)
        # C++ drops bits above 32: a longer tag would be an unknown field here, but a weight's path there.
        if tag >> _MAX_TAG_BITS or not tag >> 3:
            raise BadOnnxFile("not an ONNX file: it has an invalid field number")
        wire = tag & 7
        if wire == _VARINT:
            value, position = varint(data, position, end)
        elif wire == _LENGTH:
            size, position = varint(data, position, end)
            value = position, position + size
            position += size
        elif wire in _FIXED_BYTES:
            position += _FIXED_BYTES[wire]
        else:
            raise BadOnnxFile(f"not an ONNX file: it has a field of wire type {wire}")
        if position > end:
            raise BadOnnxFile(_CUT_SHORT)
        yield tag >> 3, value, (begin, position)


def varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, and its end. Raises `BadOnnxFile`."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise BadOnnxFile(_CUT_SHORT)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadOnnxFile("not an ONNX file: it has a number of more than ten bytes")


_ENTRY = "StringStringEntryProto"
LOCATION = "location"
"""The key of the entry that names the file of a tensor's external data."""

MESSAGES: Mapping[str, Mapping[int, str]] = {
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


@value_class
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
