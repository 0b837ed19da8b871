"""Which files an ONNX model keeps its weights in, read from the file itself without loading it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from upwell.shared.errors import ModelFailed

# Message -> field number -> message, of onnx.proto3: every way from a model to a tensor's `external_data`.
_FIELDS: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "Model": {7: "Graph", 20: "Training", 25: "Function"},
        "Training": {1: "Graph", 2: "Graph"},
        "Graph": {1: "Node", 5: "Tensor", 15: "Sparse"},
        "Function": {7: "Node", 11: "Attribute"},
        "Node": {5: "Attribute"},
        "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "Sparse", 23: "Sparse"},
        "Sparse": {1: "Tensor", 2: "Tensor"},
        "Tensor": {13: "Entry"},
        "Entry": {1: "key", 2: "value"},
    }
)
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def external_files(path: Path) -> tuple[str, ...]:
    """The relative locations that the ONNX file at `path` names for its tensors, sorted and each once.

    Walks protobuf's wire format, so that it takes neither the onnx package nor a copy of the weights.
    Raises `ModelFailed` for what is no protobuf message.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise ModelFailed(f"{path.name} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return tuple(sorted(set(_locations(data))))
            except (ValueError, IndexError):
                raise ModelFailed(f"{path.name} is not an ONNX file") from None


def _locations(data: mmap.mmap) -> Iterator[str]:
    """Depth first with a stack of our own: nesting in the file must not become recursion here."""
    todo = [("Model", 0, len(data))]
    while todo:
        message, start, end = todo.pop()
        inner = _FIELDS[message]
        entry = {}
        for number, at, stop in _length_delimited(data, start, end):
            kind = inner.get(number)
            if kind in ("key", "value"):
                entry[kind] = data[at:stop]
            elif kind is not None:
                todo.append((kind, at, stop))
        if entry.get("key") == b"location":
            yield entry.get("value", b"").decode()


def _length_delimited(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each length-delimited field of the message in `data[at:end]`."""
    while at < end:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _LENGTH:
            size, at = _varint(data, at)
            yield tag >> 3, at, at + size
            at += size
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
    if at != end:
        raise ValueError("a field reaches past its message")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for position in range(_LONGEST_VARINT):
        byte = data[at + position]
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, at + position + 1
    raise ValueError("a varint of more than ten bytes")
