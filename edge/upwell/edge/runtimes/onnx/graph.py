"""The main graph of an ONNX file, read without the `onnx` package, which devices do not have.

Only what placement and saturation need: nodes with their inputs and outputs, and constants with their dtype, shape and
numbers. Field numbers are those of `onnx.proto`. Subgraphs of control flow are not read.
What external data is and where it lies, `upwell.shared.formats.onnx.files` says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.bytes import Bytes, Contents, Span, Value, fields, opened, varint
from upwell.shared.formats.onnx.files import LOCATION, external_entry, external_file
from upwell.shared.tensors import Array

INT8, UINT8 = 3, 2
_NUMPY = {INT8: np.dtype(np.int8), UINT8: np.dtype(np.uint8)}
_LENGTH = 2
_GRAPH, _NODE, _NAME, _INPUT = 7, 1, 3, 11
_LOCATIONS = {0: False, 1: True}
"""Values of `data_location`, and whether they say that the data is external. Protobuf skips any other."""


@dataclass(frozen=True)
class OnnxNode:
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
class OnnxGraph:
    """Nodes in their order, constants by name, and shapes (-1 varies) of the tensors that the file gives them for.

    `inputs` are those that a caller gives, with their shapes, in which a dimension that varies has its name, empty
    where it has none.
    """

    path: Path
    nodes: Sequence[OnnxNode]
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
            return self._external(constant.external, dtype)
        if constant.raw is None:
            return None
        begin, end = constant.raw
        return _part(self.path, begin, end - begin, dtype)

    def _external(self, entries: Mapping[str, str], dtype: np.dtype[Any]) -> Array:
        """Numbers that lie in another file. Raises `BadOnnxFile`, `OSError` and `ValueError`."""
        weights = external_file(self.path, entries.get(LOCATION, ""))
        length = entries.get("length")
        return _part(weights, int(entries.get("offset") or 0), int(length) if length else None, dtype)


def _part(path: Path, begin: int, size_bytes: int | None, dtype: np.dtype[Any]) -> Array:
    """Bytes of a file as numbers of one byte. No memory is taken for what is only promised."""
    with open_plain(path) as file:
        there_bytes = os.fstat(file.fileno()).st_size - begin
        wanted_bytes = there_bytes if size_bytes is None else size_bytes
        if begin < 0 or not 0 <= wanted_bytes <= there_bytes:
            raise ValueError(f"{path} does not hold {wanted_bytes} bytes at {begin}")
        file.seek(begin)
        return np.fromfile(file, dtype, wanted_bytes)


def read_graph(path: Path) -> OnnxGraph:
    """The main graph of the ONNX file at `path`. Raises `BadOnnxFile` for what is no ONNX file, and `OSError`."""
    with opened(path) as data:
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

    def renamed(span: Span) -> bytes:
        node = _node(data, span)
        name, turn = node.name, len(taken)
        while not name or name in taken or (name != node.name and name in own):
            name, turn = f"{node.name or node.operator}_{turn}", turn + 1
        taken.add(name)
        return _with(data, span, _NAME, lambda _: b"") + _delimited(_NAME, name.encode())

    def graph(span: Span) -> bytes:
        return _with(data, span, _NODE, lambda node: _delimited(_NODE, renamed(node)))

    return _with(data, (0, len(data)), _GRAPH, lambda span: _delimited(_GRAPH, graph(span)))


def _with(data: bytes, span: Span, wanted: int, new: Callable[[Span], bytes]) -> bytes:
    """The message with `new` in place of each length-delimited field of number `wanted`."""
    parts = []
    for number, value, (begin, end) in fields(data, *span):
        parts.append(new(value) if number == wanted and isinstance(value, tuple) else data[begin:end])
    return b"".join(parts)


def _delimited(number: int, content: bytes) -> bytes:
    size, encoded = len(content), bytearray([number << 3 | _LENGTH])
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(encoded) + bytes([size]) + content


def _graph(path: Path, data: Contents) -> OnnxGraph:
    nodes: list[OnnxNode] = []
    constants: dict[str, Constant] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, int] = {}
    inputs: dict[str, tuple[int | str, ...]] = {}
    for begin, end in _messages(data, (0, data.size), _GRAPH):
        for number, value, _ in fields(data, begin, end):
            if not isinstance(value, tuple):
                continue
            if number == _NODE:
                nodes.append(_node(data, value))
                if nodes[-1].operator == "Constant" and nodes[-1].outputs:
                    for attribute in _messages(data, value, 5):
                        tensor = tuple(_messages(data, attribute, 5))  # the parts of one, by protobuf's rules
                        if tensor:
                            constants[nodes[-1].outputs[0]] = _constant(data, *tensor)[1]
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
    return OnnxGraph(path, nodes, constants, shapes, dtypes, given)


def _node(data: Bytes, span: Span) -> OnnxNode:
    texts: dict[int, list[str]] = {1: [], 2: [], 3: [""], 4: [""], 7: [""]}
    for number, value, _ in fields(data, *span):
        if number in texts and isinstance(value, tuple):
            texts[number].append(_text(data, value))
    return OnnxNode(texts[3][-1], texts[4][-1], texts[7][-1], tuple(texts[1]), tuple(texts[2]))


def _constant(data: Bytes, *spans: Span) -> tuple[str, Constant]:
    """Name and contents of a tensor, whose fields lie in `spans`."""
    name, dtype, raw, is_external = "", 0, None, False
    shape: list[int] = []
    numbers: list[int] = []
    external: dict[str, str] = {}
    for number, value, _ in (one for span in spans for one in fields(data, *span)):
        if number == 1:
            shape += _integers(data, value)
        elif number == 2 and isinstance(value, int):
            dtype = value
        elif number == 5:
            numbers += _integers(data, value)
        elif number == 14 and isinstance(value, int):
            is_external = _LOCATIONS.get(value & 0xFFFF_FFFF, is_external)
        elif not isinstance(value, tuple):
            continue
        elif number == 8:
            name = _text(data, value)
        elif number == 9:
            raw = value
        elif number == 13:
            key, entry = external_entry(data, *value)
            external[key] = entry
    return name, Constant(dtype, tuple(shape), raw, tuple(numbers), external if is_external else {})


def _declared(data: Bytes, span: Span) -> tuple[str, int, tuple[int | str, ...] | None]:
    """Name, dtype and shape of a `ValueInfoProto`; None for a shape that it does not tell."""
    name, dtype, shape = "", 0, None
    for number, value, _ in fields(data, *span):
        if number == 1 and isinstance(value, tuple):
            name = _text(data, value)
        elif number == 2 and isinstance(value, tuple):
            for tensor in _messages(data, value, 1):
                dtype = next((one for at, one, _ in fields(data, *tensor) if at == 1 and isinstance(one, int)), 0)
                for shape_span in _messages(data, tensor, 2):
                    shape = tuple(_size(data, one) for one in _messages(data, shape_span, 1))
    return name, dtype, shape


def _size(data: Bytes, span: Span) -> int | str:
    """The size of a dimension, or the name of one that varies; some exporters write -1 for one without a name."""
    for number, value, _ in fields(data, *span):
        if number == 1 and isinstance(value, int):
            return "" if value >> 63 else value
        if number == 2 and isinstance(value, tuple):
            return _text(data, value)
    return ""


def _messages(data: Bytes, span: Span, wanted: int) -> Iterator[Span]:
    for number, value, _ in fields(data, *span):
        if number == wanted and isinstance(value, tuple):
            yield value


def _integers(data: Bytes, value: Value) -> list[int]:
    """The numbers of a repeated varint field, one by one or packed."""
    if not isinstance(value, tuple):
        return [] if value is None else [value]
    position, end = value
    found = []
    while position < end:
        number, position = varint(data, position, end)
        found.append(number)
    return found


def _text(data: Bytes, span: Span) -> str:
    return data[span[0] : span[1]].decode("utf-8", "replace")
