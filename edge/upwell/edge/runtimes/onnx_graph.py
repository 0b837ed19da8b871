"""The main graph of an ONNX file, read without the `onnx` package, which devices do not have.

Only what placement and saturation need: nodes with their inputs and outputs, and constants with their dtype, shape and
numbers. Field numbers are those of `onnx.proto`. Subgraphs of control flow are not read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from upwell.shared.onnx_files import BadOnnxFile
from upwell.shared.tensors import Array

INT8, UINT8 = 3, 2
_NUMPY = {INT8: np.dtype(np.int8), UINT8: np.dtype(np.uint8)}
_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_GRAPH, _NODE, _NAME, _INPUT = 7, 1, 3, 11
_EXTERNAL = 1

Bytes: TypeAlias = "mmap.mmap | bytes"

Value: TypeAlias = "int | tuple[int, int]"
"""A varint's number, or where the bytes of a length-delimited field begin and end."""


@dataclass(frozen=True)
class Node:
    """One node. `inputs` and `outputs` are names of tensors, empty where an optional one is left out."""

    name: str
    operator: str
    domain: str
    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True)
class Constant:
    """An initializer: its dtype by number of `onnx.proto`, its shape, and where its bytes are."""

    dtype: int
    shape: tuple[int, ...]
    raw: tuple[int, int] | None = None
    numbers: tuple[int, ...] = ()
    external: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Nodes in their order, constants by name, and shapes (-1 varies) of the tensors that the file gives them for.

    `inputs` are those that a caller gives, with their shapes, in which a dimension that varies has its name, empty
    where it has none.
    """

    path: Path
    nodes: Sequence[Node]
    constants: Mapping[str, Constant]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, int]
    inputs: Mapping[str, tuple[int | str, ...]]

    def integers(self, name: str) -> Array | None:
        """The numbers of an INT8 or UINT8 constant; None where they are not where they should be."""
        constant = self.constants[name]
        dtype = _NUMPY.get(constant.dtype)
        if dtype is None:
            return None
        if constant.numbers:
            return np.array([number - (1 << 64) if number >> 63 else number for number in constant.numbers], dtype)
        if constant.external:
            begin = int(constant.external.get("offset", 0))
            size = int(constant.external.get("length", -1))
            weights = self.path.parent / constant.external.get("location", "")
            return np.fromfile(weights, dtype, size, offset=begin)
        if constant.raw is None:
            return None
        begin, end = constant.raw
        return np.fromfile(self.path, dtype, end - begin, offset=begin)


def read_graph(path: Path) -> Graph:
    """The main graph of the ONNX file at `path`.

    Raises `BadOnnxFile` for what is no ONNX file, and `OSError` where it cannot be read. External weights are taken to
    be confined (`upwell.shared.onnx_files.external_weights`).
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise BadOnnxFile("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _graph(path, data)


def named_apart(data: bytes) -> bytes:
    """The ONNX file `data` with a name for each node of its main graph that has none, or one that another has.

    Raises `BadOnnxFile` for what is no ONNX file.
    """
    own = {
        _node(data, node).name
        for graph in _messages(data, (0, len(data)), _GRAPH)
        for node in _messages(data, graph, _NODE)
    }
    taken: set[str] = set()

    def renamed(span: tuple[int, int]) -> bytes:
        node = _node(data, span)
        name, turn = node.name, len(taken)
        while not name or name in taken or (name != node.name and name in own):
            name, turn = f"{node.name or node.operator}_{turn}", turn + 1
        taken.add(name)
        return _with(data, span, _NAME, lambda _: b"") + _delimited(_NAME, name.encode())

    def graph(span: tuple[int, int]) -> bytes:
        return _with(data, span, _NODE, lambda node: _delimited(_NODE, renamed(node)))

    return _with(data, (0, len(data)), _GRAPH, lambda span: _delimited(_GRAPH, graph(span)))


def _with(data: bytes, span: tuple[int, int], wanted: int, new: Callable[[tuple[int, int]], bytes]) -> bytes:
    """The message with `new` in place of each length-delimited field of number `wanted`."""
    parts = []
    for number, value, (begin, end) in _raw_fields(data, *span):
        parts.append(new(value) if number == wanted and isinstance(value, tuple) else data[begin:end])
    return b"".join(parts)


def _delimited(number: int, content: bytes) -> bytes:
    size, encoded = len(content), bytearray([number << 3 | _LENGTH])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(encoded) + bytes([size]) + content


def _graph(path: Path, data: Bytes) -> Graph:
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, int] = {}
    inputs: dict[str, tuple[int | str, ...]] = {}
    for begin, end in _messages(data, (0, len(data)), _GRAPH):
        for number, value in _fields(data, begin, end):
            if isinstance(value, int):
                continue
            if number == _NODE:
                nodes.append(_node(data, value))
                if nodes[-1].operator == "Constant" and nodes[-1].outputs:
                    for attribute in _messages(data, value, 5):
                        for tensor in _messages(data, attribute, 5):
                            constants[nodes[-1].outputs[0]] = _constant(data, tensor)[1]
            elif number == 5:
                name, constant = _constant(data, value)
                constants[name] = constant
            elif number in (_INPUT, 12, 13):
                name, dtype, shape = _declared(data, value)
                dtypes[name] = dtype
                if shape is not None:
                    shapes[name] = tuple(size if isinstance(size, int) else -1 for size in shape)
                if number == _INPUT:
                    inputs[name] = shape or ()
    for name, constant in constants.items():
        shapes[name], dtypes[name] = constant.shape, constant.dtype
    given = {name: shape for name, shape in inputs.items() if name not in constants}
    return Graph(path, nodes, constants, shapes, dtypes, given)


def _node(data: Bytes, span: tuple[int, int]) -> Node:
    texts: dict[int, list[str]] = {1: [], 2: [], 3: [""], 4: [""], 7: [""]}
    for number, value in _fields(data, *span):
        if number in texts and not isinstance(value, int):
            texts[number].append(_text(data, value))
    return Node(texts[3][-1], texts[4][-1], texts[7][-1], tuple(texts[1]), tuple(texts[2]))


def _constant(data: Bytes, span: tuple[int, int]) -> tuple[str, Constant]:
    name, dtype, raw, is_external = "", 0, None, False
    shape: list[int] = []
    numbers: list[int] = []
    external: dict[str, str] = {}
    for number, value in _fields(data, *span):
        if number == 1:
            shape += _integers(data, value)
        elif number == 2 and isinstance(value, int):
            dtype = value
        elif number == 5:
            numbers += _integers(data, value)
        elif number == 14 and isinstance(value, int):
            is_external = value == _EXTERNAL
        elif isinstance(value, int):
            continue
        elif number == 8:
            name = _text(data, value)
        elif number == 9:
            raw = value
        elif number == 13:
            key, entry = (next((_text(data, one) for one in _messages(data, value, part)), "") for part in (1, 2))
            external[key] = entry
    return name, Constant(dtype, tuple(shape), raw, tuple(numbers), external if is_external else {})


def _declared(data: Bytes, span: tuple[int, int]) -> tuple[str, int, tuple[int | str, ...] | None]:
    """Name, dtype and shape of a `ValueInfoProto`; None for a shape that it does not tell."""
    name, dtype, shape = "", 0, None
    for number, value in _fields(data, *span):
        if number == 1 and not isinstance(value, int):
            name = _text(data, value)
        elif number == 2 and not isinstance(value, int):
            for tensor in _messages(data, value, 1):
                dtype = next((one for at, one in _fields(data, *tensor) if at == 1 and isinstance(one, int)), 0)
                for shape_span in _messages(data, tensor, 2):
                    shape = tuple(_size(data, one) for one in _messages(data, shape_span, 1))
    return name, dtype, shape


def _size(data: Bytes, span: tuple[int, int]) -> int | str:
    """The size of a dimension, or the name of one that varies; some exporters write -1 for one without a name."""
    for number, value in _fields(data, *span):
        if number == 1 and isinstance(value, int):
            return "" if value >> 63 else value
        if number == 2 and not isinstance(value, int):
            return _text(data, value)
    return ""


def _messages(data: Bytes, span: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    for number, value in _fields(data, *span):
        if number == wanted and not isinstance(value, int):
            yield value


def _integers(data: Bytes, value: Value) -> list[int]:
    """The numbers of a repeated varint field, one by one or packed."""
    if isinstance(value, int):
        return [value]
    position, end = value
    found = []
    while position < end:
        number, position = _varint(data, position, end)
        found.append(number)
    return found


def _text(data: Bytes, span: tuple[int, int]) -> str:
    return data[slice(*span)].decode("utf-8", "replace")


def _fields(data: Bytes, position: int, end: int) -> Iterator[tuple[int, Value]]:
    for number, value, _ in _raw_fields(data, position, end):
        if value is not None:
            yield number, value


def _raw_fields(data: Bytes, position: int, end: int) -> Iterator[tuple[int, Value | None, tuple[int, int]]]:
    """Number, value (None for one of fixed width) and whole extent, tag included, of each field."""
    while position < end:
        begin = position
        value: Value | None = None
        tag, position = _varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position, end)
        elif wire == _LENGTH:
            size, position = _varint(data, position, end)
            value = position, position + size
            position += size
        elif wire in _FIXED_BYTES:
            position += _FIXED_BYTES[wire]
        else:
            raise BadOnnxFile(f"not an ONNX file: it has a field of wire type {wire}")
        if position > end:
            raise BadOnnxFile("not an ONNX file, or cut short")
        yield number, value, (begin, position)


def _varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadOnnxFile("not an ONNX file, or cut short")
