"""What an ONNX file asks of the machine: weights in files that must lie in its folder or below, and its operators.

ONNX Runtime before 1.24 reads external weights from any path that a model names, so a model from elsewhere could
carry any file of the machine into its outputs. This walks protobuf's wire format without the `onnx` package and
without a copy of the weights, and checks every such path. Time grows with the file; memory does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path, PurePath
from types import MappingProxyType

_ENTRY = "StringStringEntryProto"

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
"""Every way from a model to a tensor's `external_data`: message of `onnx.proto` -> field number -> message there."""

_CUT_SHORT = "not an ONNX file, or cut short"
_BLOCK_BYTES = 1 << 14
_MAX_DEPTH = 100  # protobuf's own limit: a runtime refuses what nests deeper
_MAX_TAG_BITS = 32
_MAX_FILE_BYTES = (1 << 31) - 1  # likewise
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
_SHOWN_CHARACTERS = 200
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MEMORY_MARK = "*/"  # ONNX Runtime's `*/_ORT_MEM_ADDR_/*` and its kin are addresses in its memory, not files


class BadOnnxFile(Exception):
    """The file is no ONNX file, or its weights are not where they must be; the text says what, without the file."""


def external_weights(path: Path) -> tuple[Path, ...]:
    """The files that hold weights of the ONNX file at `path`, by their locations as `external_locations` orders them.

    Each is resolved and was a file in the folder of `path` or below. Raises `BadOnnxFile` where a location is
    absolute, has a `..`, leads out of the folder by a link or names no file, and what `external_locations` raises.
    """
    return tuple(external_places(path).values())


def external_places(path: Path) -> Mapping[str, Path]:
    """Each of `external_locations` with its file, as in `external_weights`. Raises what that raises."""
    folder = path.parent.resolve()
    return {location: _confined(location, folder) for location in external_locations(path)}


def external_locations(path: Path) -> tuple[str, ...]:
    """Every location of external data in the ONNX file at `path`, as written there, sorted and each once.

    Raises `BadOnnxFile` for what is no ONNX file, nests too deeply or names paths beyond all measure, and `OSError`
    where the file cannot be read.
    """
    found: set[str] = set()
    with _opened(path) as data:
        for kind, begin, stop in _messages(data, 0, data.size, "ModelProto", 0):
            if kind == _ENTRY:
                found.update(_location(data, begin, stop))
            if len(found) > _MAX_LOCATIONS:
                raise BadOnnxFile(f"it names more than {_MAX_LOCATIONS} files of external weights")
    return tuple(sorted(found))


def foreign_operators(path: Path) -> tuple[str, ...]:
    """Operators that the ONNX file at `path` calls and that only a library or another program could bring, sorted.

    Each is `domain:name`. Those of ONNX, of ONNX Runtime and of the file's own functions are left out, but for
    `EPContext`: it holds or names a program that some accelerator's compiler has made, which runs as it is. Raises as
    `external_locations`.
    """
    called: set[tuple[str, str]] = set()
    own: set[tuple[str, str]] = set()
    with _opened(path) as data:
        for kind, begin, stop in _messages(data, 0, data.size, "ModelProto", 0):
            if kind == "NodeProto":
                called.add(_named(data, begin, stop, _NODE_NAME))
            elif kind == "FunctionProto":
                own.add(_named(data, begin, stop, _FUNCTION_NAME))
    foreign = {one for one in called if (one not in own and one[0] not in _KNOWN_DOMAINS) or one[1] == _COMPILED}
    return tuple(sorted(f"{domain}:{name}" for domain, name in foreign))


def _confined(location: str, folder: Path) -> Path:
    shown = repr(location if len(location) <= _SHOWN_CHARACTERS else location[:_SHOWN_CHARACTERS] + "…")
    written = PurePath(location)
    if written.anchor or ".." in written.parts or location.startswith(_MEMORY_MARK):
        raise BadOnnxFile(f"external weights {shown} are refused; expected a relative path without '..'")
    try:
        weights = (folder / location).resolve()
        if not weights.is_relative_to(folder):
            raise BadOnnxFile(f"external weights {shown} are a link that leads out of the model's folder")
        exists = weights.is_file()
    except (ValueError, OSError, RuntimeError):  # a zero byte, a name too long, links in a circle
        exists = False
    if not exists:
        raise BadOnnxFile(f"external weights {shown} are missing; expected a file in the model's folder or below")
    return weights


class _Contents:
    """The bytes of an open file, of which a block is kept at a time.

    Not a mapping of the file: reading one ends the process where the file has become shorter meanwhile.
    """

    def __init__(self, file: RawIOBase, size: int) -> None:
        self.size = size
        self._file = file
        self._start = 0
        self._block = b""

    def at(self, position: int) -> int:
        """The byte at `position`. Raises `BadOnnxFile` where there is none any more."""
        offset = position - self._start
        if not 0 <= offset < len(self._block):
            self._block, self._start, offset = self.part(position, position + _BLOCK_BYTES), position, 0
        if not self._block:
            raise BadOnnxFile(_CUT_SHORT)
        return self._block[offset]

    def part(self, begin: int, stop: int) -> bytes:
        """The bytes from `begin` to before `stop`, as far as there are any."""
        self._file.seek(begin)
        return self._file.read(stop - begin) or b""


@contextmanager
def _opened(path: Path) -> Iterator[_Contents]:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise BadOnnxFile("the file is empty")
        if size > _MAX_FILE_BYTES:  # before anything reads it whole: the end of a file made to be long may take days
            raise BadOnnxFile(f"it has {size} bytes; at most 2 GiB are read, with weights in files of their own")
        yield _Contents(file, size)


def _messages(data: _Contents, start: int, end: int, message: str, depth: int) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of every message of `MESSAGES` in the one at `data[start:end]`, at any depth."""
    if depth > _MAX_DEPTH:
        raise BadOnnxFile(f"not an ONNX file: its messages nest deeper than {_MAX_DEPTH}")
    inner = MESSAGES[message]
    for number, begin, stop in _length_delimited(data, start, end):
        kind = inner.get(number)
        if kind is None:
            continue
        yield kind, begin, stop
        if kind in MESSAGES:
            yield from _messages(data, begin, stop, kind, depth + 1)


def _named(data: _Contents, start: int, end: int, fields: tuple[int, int]) -> tuple[str, str]:
    """Domain and name of a node's operator or of a function; of repeated fields the last one counts."""
    found = dict.fromkeys(fields, "")
    for number, begin, stop in _length_delimited(data, start, end):
        if number in found:
            if stop - begin > _MAX_NAME_BYTES:
                raise BadOnnxFile(f"an operator's name is longer than {_MAX_NAME_BYTES} bytes")
            found[number] = data.part(begin, stop).decode(errors="replace")
    return found[fields[0]], found[fields[1]]


def _location(data: _Contents, start: int, end: int) -> Iterator[str]:
    """The value (field 2) of an entry whose key (field 1) is `location`; of repeated fields the last one counts."""
    key = value = (start, start)
    for number, begin, stop in _length_delimited(data, start, end):
        if number == 1:
            key = (begin, stop)
        elif number == 2:
            value = (begin, stop)
    if key[1] - key[0] != len(b"location") or data.part(*key) != b"location":
        return
    if value[1] - value[0] > _MAX_LOCATION_BYTES:
        raise BadOnnxFile(f"a path of its external weights is longer than {_MAX_LOCATION_BYTES} bytes")
    try:
        yield data.part(*value).decode()
    except UnicodeDecodeError:
        raise BadOnnxFile("not an ONNX file: a path of its external weights is not UTF-8") from None


def _length_delimited(data: _Contents, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each length-delimited field of the message in `data[start:end]`."""
    position = start
    while position < end:
        tag, position = _varint(data, position, end)
        # C++ drops what is above 32 bits: a longer tag is an unknown field here and a weight's path over there.
        if tag >> _MAX_TAG_BITS or not tag >> 3:
            raise BadOnnxFile("not an ONNX file: it has a field of an impossible number")
        wire = tag & 7
        if wire == _LENGTH:
            size, position = _varint(data, position, end)
            if position + size > end:
                raise BadOnnxFile(_CUT_SHORT)
            yield tag >> 3, position, position + size
            position += size
        elif wire == _VARINT:
            _, position = _varint(data, position, end)
        elif wire in _FIXED_BYTES:
            position += _FIXED_BYTES[wire]
        else:
            raise BadOnnxFile(f"not an ONNX file: it has a field of wire type {wire}")
    if position != end:
        raise BadOnnxFile(_CUT_SHORT)


def _varint(data: _Contents, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise BadOnnxFile(_CUT_SHORT)
        byte = data.at(position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadOnnxFile("not an ONNX file: it has a number of more than ten bytes")
