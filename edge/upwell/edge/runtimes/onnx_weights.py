"""Where an ONNX model keeps its weights: in the file, or in files that must lie beside it.

ONNX Runtime before 1.24 reads external weights from any path that a model names, so a model from elsewhere could
carry any file of the device into its outputs. This walks the protobuf wire format of the file (field numbers of
`onnx.proto`), without the `onnx` package, and checks every such path.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from upwell.shared.errors import ConfigError

Fields: TypeAlias = "dict[int, Fields]"

_ENTRY: Fields = {}
_TENSOR: Fields = {13: _ENTRY}
_SPARSE: Fields = {1: _TENSOR, 2: _TENSOR}
_NODE: Fields = {}
_GRAPH: Fields = {1: _NODE, 5: _TENSOR, 15: _SPARSE}
_ATTRIBUTE: Fields = {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE}
_NODE[5] = _ATTRIBUTE
_FUNCTION: Fields = {7: _NODE, 11: _ATTRIBUTE}
MODEL: Fields = {7: _GRAPH, 25: _FUNCTION}
"""For each message that leads to external weights: field number -> message there."""

_MAX_DEPTH = 100
_FIXED_BYTES = {1: 8, 5: 4}


class Unreadable(Exception):
    """The file is no protobuf message, or is cut short."""


def check_weights(path: Path) -> None:
    """Raise `ConfigError` unless all external weights of the model are files in its directory or below."""
    directory = path.parent.resolve()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            locations = sorted(set(_locations(data, 0, len(data), MODEL, 0)))
        except Unreadable as error:
            raise ConfigError.at(path, f"the model file cannot be read: {error}") from None
    for location in locations:
        if not _is_beside(location, directory):
            problem = f"weights in {location!r} are refused: they must be a file beside the model"
            raise ConfigError.at(path, problem)


def _is_beside(location: str, directory: Path) -> bool:
    try:
        weights = (directory / location).resolve()
        return weights.is_relative_to(directory) and weights.is_file()
    except (ValueError, OSError, RuntimeError):  # a zero byte, a name too long, links in a circle
        return False


def _locations(data: mmap.mmap, start: int, end: int, fields: Mapping[int, Fields], depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise Unreadable("its messages nest too deeply")
    for field, begin, stop in _submessages(data, start, end):
        inner = fields.get(field)
        if inner is _ENTRY:
            yield from _location(data, begin, stop)
        elif inner is not None:
            yield from _locations(data, begin, stop, inner, depth + 1)


def _location(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    """The value of a key-value entry (fields 1 and 2) whose key is `location`."""
    texts = {field: data[begin:stop] for field, begin, stop in _submessages(data, start, end)}
    if texts.get(1) == b"location":
        try:
            yield texts.get(2, b"").decode()
        except UnicodeDecodeError:
            raise Unreadable("a path in it is no text") from None


def _submessages(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Field number, start and end of each length-delimited field between `start` and `end`."""
    position = start
    while position < end:
        tag, position = _varint(data, position, end)
        kind = tag & 7
        if kind == 2:
            size, position = _varint(data, position, end)
            if position + size > end:
                raise Unreadable("it is no ONNX model, or is cut short")
            yield tag >> 3, position, position + size
            position += size
        elif kind == 0:
            _, position = _varint(data, position, end)
        elif kind in _FIXED_BYTES:
            position += _FIXED_BYTES[kind]
        else:
            raise Unreadable("it is no ONNX model")
    if position != end:
        raise Unreadable("it is no ONNX model, or is cut short")


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise Unreadable("it is no ONNX model, or is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise Unreadable("it is no ONNX model")
