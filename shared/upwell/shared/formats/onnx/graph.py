"""Reads the graph of an ONNX file without the `onnx` package, which devices lack.

It has nodes with inputs and outputs, the bodies of control flow, and constants with dtype, shape and numbers. Field
numbers are those of `onnx.proto`. For external data see `upwell.shared.formats.onnx.file`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.file import (
    MAX_DEPTH,
    BadOnnxFile,
    Bytes,
    Contents,
    ExternalData,
    Span,
    Value,
    external_entry,
    fields,
    length_delimited,
    opened,
    varint,
)
from upwell.shared.tensors import Array

INT8, UINT8 = 3, 2
_NUMPY = {INT8: np.dtype(np.int8), UINT8: np.dtype(np.uint8)}
_STANDARD = ("", "ai.onnx")
_LENGTH = 2
_GRAPH, _METADATA, _FUNCTION = 7, 14, 25
_NODE, _INITIALIZER, _SPARSE, _INPUT, _OUTPUT, _VALUE = 1, 5, 15, 11, 12, 13
_NAME, _OPERATOR, _ATTRIBUTE = 3, 4, 5
_TEXT, _TENSOR, _BODY, _BODIES = 4, 5, 6, 11
"""Fields of ModelProto, GraphProto, NodeProto and AttributeProto."""
_LEVELS = 3
"""Levels from a graph to the body of one of its nodes: node, attribute, graph."""
_LONGEST_SETTING = 64
_LOCATIONS = {0: False, 1: True}
"""Values of `data_location`, and whether the data is external. Protobuf skips all others."""

_CLASSES = "classes"


@dataclass(frozen=True)
class OnnxNode:
    """One node. `inputs` and `outputs` are names of tensors, "" for an omitted optional one.

    `bodies` are the graphs that it runs (If, Loop, Scan).
    """

    name: str
    operator: str
    domain: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    bodies: Sequence[OnnxGraph] = ()
    settings: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_standard(self) -> bool:
        """Whether the operator belongs to ONNX itself."""
        return self.domain in _STANDARD

    @property
    def op(self) -> str:
        """The operator, after its domain unless that is ONNX's own: `com.microsoft:FusedConv`."""
        return self.operator if self.is_standard else f"{self.domain}:{self.operator}"

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads, including those that its bodies capture, each once."""
        captured = (name for body in self.bodies for name in body.captured)
        return tuple(dict.fromkeys(filter(None, (*self.inputs, *captured))))

    def with_bodies(self) -> Iterator[OnnxNode]:
        """The node and all nodes in its bodies, at any depth."""
        yield self
        for body in self.bodies:
            for node in body.nodes:
                yield from node.with_bodies()


@dataclass(frozen=True)
class Constant:
    """A tensor in the file: its dtype (number in `onnx.proto`), its shape, and the place of its numbers."""

    dtype: int
    shape: tuple[int, ...]
    raw: Span | None = None
    numbers: tuple[Value, ...] = ()
    external: ExternalData | None = None


@dataclass(frozen=True)
class OnnxGraph:
    """Nodes in order, constants by name, and the shapes (-1: variable) that the file declares.

    `constants` are the `initializers`, sparse ones included, and the results of Constant nodes. `inputs` are those
    given by callers, with their shapes; a variable dimension is its name, "" if it has none. `functions` are those of
    the file by domain and name; a body has none.
    """

    path: Path
    nodes: Sequence[OnnxNode]
    constants: Mapping[str, Constant]
    initializers: frozenset[str]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, int]
    inputs: Mapping[str, tuple[int | str, ...]]
    outputs: Sequence[str]
    functions: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """For a body: the outer tensors that it reads, at any depth, in order of use."""
        own = {*self.initializers, *self.inputs}
        found: dict[str, None] = {}
        for node in self.nodes:
            found.update(dict.fromkeys(name for name in node.reads if name not in own))
            own.update(node.outputs)
        found.update(dict.fromkeys(name for name in self.outputs if name and name not in own))
        return tuple(found)

    def integers(self, name: str) -> Array | None:
        """The numbers of an INT8 or UINT8 constant; None if it is another type or its data has no known place.

        Raises `BadOnnxFile` and `OSError` if they cannot be read.
        """
        constant = self.constants[name]
        dtype = _NUMPY.get(constant.dtype)
        if dtype is None:
            return None
        if constant.numbers:
            with opened(self.path) as data:
                numbers = [one for value in constant.numbers for one in _integers(data, value)]
            return np.array([one & 0xFF for one in numbers], np.uint8).view(dtype)
        if constant.external is not None:
            return _integers_at(*constant.external.part(self.path), dtype)
        if constant.raw is None:
            return None
        begin, end = constant.raw
        return _integers_at(self.path, begin, end - begin, dtype)


def _integers_at(path: Path, begin: int, size_bytes: int, dtype: np.dtype[Any]) -> Array:
    """Bytes of a file as an array of one-byte numbers. Memory is allocated only for bytes that exist."""
    with open_plain(path) as file:
        if begin + size_bytes > os.fstat(file.fileno()).st_size:
            raise BadOnnxFile(f"{path.name} does not have {size_bytes} bytes at {begin}")
        file.seek(begin)
        return np.fromfile(file, dtype, size_bytes)


def read_graph(path: Path) -> OnnxGraph:
    """Parse the main graph of the ONNX file at `path`. Raises `BadOnnxFile` if it is not an ONNX file, and
    `OSError`."""
    with opened(path) as data:
        parts = list(_parts(data, [(0, data.size)]))
        graphs = [span for number, span in parts if number == _GRAPH]
        functions = [
            (_text_of(data, span, 10), _text_of(data, span, 1)) for number, span in parts if number == _FUNCTION
        ]
        return _graph(path, data, graphs, 1, frozenset(functions))


def read_metadata(path: Path) -> dict[str, str]:
    """The `metadata_props` of the ONNX file at `path`, by key. Raises as `read_graph` does."""
    with opened(path) as data:
        entries = _messages(data, (0, data.size), _METADATA)
        return {_text_of(data, span, 1): _text_of(data, span, 2) for span in entries}


def read_producer(path: Path) -> str:
    """The name of the program that wrote the ONNX file at `path`, as the file says it. Raises as `read_graph`."""
    with opened(path) as data:
        return _text_of(data, (0, data.size), 2)


def read_class_names(path: Path) -> tuple[str, ...]:
    """What the classifier in the ONNX file at `path` calls its classes, in the order of its scores.

    That is `classlabels_…` of the operators of ai.onnx.ml, or the constant `classes` of skl2onnx, which chooses among
    what several of them say. Empty where there is none, and where the names are 0, 1, 2 and so on. Raises as
    `read_graph`.
    """
    found: set[tuple[str, ...]] = set()
    chosen: set[tuple[str, ...]] = set()
    with opened(path) as data:
        graphs = [span for number, span in _parts(data, [(0, data.size)]) if number == _GRAPH]
        for number, span in _parts(data, graphs):
            if number == _INITIALIZER and _text_of(data, span, 8) == _CLASSES:
                chosen.add(_names(data, span, 6, (5, 7)))
            elif number == _NODE and _text_of(data, span, 7) == "ai.onnx.ml":
                attributes = list(_messages(data, span, _ATTRIBUTE))
                named = [one for one in attributes if _text_of(data, one, 1).startswith("classlabels_")]
                found.update(_names(data, one, 9, (8,)) for one in named)
    names = chosen or found
    (only,) = names if len(names) == 1 else ((),)
    return only if only != tuple(map(str, range(len(only)))) else ()


def _names(data: Bytes, span: Span, texts: int, numbers: Sequence[int]) -> tuple[str, ...]:
    """The repeated texts of a message, or else its repeated integers as texts."""
    found = tuple(_text(data, one) for one in _messages(data, span, texts))
    values = (value for number, value, _ in fields(data, *span) if number in numbers)
    return found or tuple(str(_signed(one)) for value in values for one in _integers(data, value))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def named_apart(data: bytes) -> bytes:
    """The ONNX file `data` with a unique name for each node of its main graph that has none, or another node's.

    Raises `BadOnnxFile` if it is not an ONNX file.
    """
    graphs = [span for number, span in _parts(data, [(0, len(data))]) if number == _GRAPH]
    own = {_text_of(data, span, _NAME) for number, span in _parts(data, graphs) if number == _NODE}
    taken: set[str] = set()

    def renamed(span: Span) -> bytes:
        given, suffix = _text_of(data, span, _NAME), len(taken)
        name, stem = given, given or _text_of(data, span, _OPERATOR)
        while not name or name in taken or (name != given and name in own):
            name, suffix = f"{stem}_{suffix}", suffix + 1
        taken.add(name)
        return _with(data, span, _NAME, lambda _: b"") + _delimited(_NAME, name.encode())

    def graph(span: Span) -> bytes:
        return _with(data, span, _NODE, lambda node: _delimited(_NODE, renamed(node)))

    return _with(data, (0, len(data)), _GRAPH, lambda span: _delimited(_GRAPH, graph(span)))


def _with(data: bytes, span: Span, wanted: int, new: Callable[[Span], bytes]) -> bytes:
    """The message with each length-delimited field of number `wanted` replaced by `new`."""
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


def _graph(
    path: Path, data: Contents, spans: Sequence[Span], depth: int, functions: frozenset[tuple[str, str]] = frozenset()
) -> OnnxGraph:
    """The graph with fields in `spans`: protobuf merges a repeated message."""
    if depth > MAX_DEPTH:
        raise BadOnnxFile(f"not an ONNX file: its messages nest deeper than {MAX_DEPTH}")
    nodes: list[OnnxNode] = []
    initializers: dict[str, Constant] = {}
    constants: dict[str, Constant] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, int] = {}
    inputs: dict[str, tuple[int | str, ...]] = {}
    outputs: list[str] = []
    for number, span in _parts(data, spans):
        if number == _NODE:
            node, constant = _node(path, data, span, depth)
            nodes.append(node)
            if constant is not None and node.operator == "Constant" and node.outputs:
                constants[node.outputs[0]] = constant
        elif number in (_INITIALIZER, _SPARSE):
            name, constant = _constant(data, span) if number == _INITIALIZER else _sparse(data, span)
            initializers[name] = constant
        elif number in (_INPUT, _OUTPUT, _VALUE):
            name, dtype, shape = _declared(data, span)
            dtypes[name] = dtype
            if shape is not None:
                shapes[name] = tuple(size if isinstance(size, int) else -1 for size in shape)
            if number == _INPUT:
                inputs[name] = shape or ()
            elif number == _OUTPUT:
                outputs.append(name)
    constants |= initializers
    for name, constant in constants.items():
        shapes[name], dtypes[name] = constant.shape, constant.dtype
    given = {name: shape for name, shape in inputs.items() if name not in initializers}
    return OnnxGraph(path, nodes, constants, frozenset(initializers), shapes, dtypes, given, outputs, functions)


def _node(path: Path, data: Contents, span: Span, depth: int) -> tuple[OnnxNode, Constant | None]:
    """A node, and the tensor in one of its attributes."""
    texts: dict[int, list[str]] = {1: [], 2: [], _NAME: [""], _OPERATOR: [""], 7: [""]}
    bodies: list[OnnxGraph] = []
    settings: dict[str, bytes] = {}
    constant = None
    for number, part in _parts(data, [span]):
        if number in texts:
            texts[number].append(_text(data, part))
        elif number == _ATTRIBUTE:
            held = list(_parts(data, [part]))
            one, many, tensor = ([at for kind, at in held if kind == wanted] for wanted in (_BODY, _BODIES, _TENSOR))
            bodies += [
                _graph(path, data, spans, depth + _LEVELS) for spans in ([one] if one else []) + [[at] for at in many]
            ]
            constant = _constant(data, *tensor)[1] if tensor else constant
            short = [
                data[begin:end] for kind, (begin, end) in held if kind == _TEXT and end - begin <= _LONGEST_SETTING
            ]
            settings |= {_text_of(data, part, 1): text for text in short}
    name, operator, domain = (texts[kind][-1] for kind in (_NAME, _OPERATOR, 7))
    return OnnxNode(name, operator, domain, tuple(texts[1]), tuple(texts[2]), tuple(bodies), settings), constant


def _constant(data: Bytes, *spans: Span) -> tuple[str, Constant]:
    """Name and contents of a tensor with fields in `spans`."""
    name, dtype, raw, is_external = "", 0, None, False
    shape: list[int] = []
    numbers: list[Value] = []
    entries: list[tuple[str, str]] = []
    for number, value, _ in (one for span in spans for one in fields(data, *span)):
        if number == 1:
            shape += _integers(data, value)
        elif number == 2 and isinstance(value, int):
            dtype = value
        elif number == 5:
            numbers.append(value)
        elif number == 14 and isinstance(value, int):
            is_external = _LOCATIONS.get(value & 0xFFFF_FFFF, is_external)
        elif not isinstance(value, tuple):
            continue
        elif number == 8:
            name = _text(data, value)
        elif number == 9:
            raw = value
        elif number == 13:
            entries.append(external_entry(data, *value))
    external = ExternalData.of(entries) if is_external else None
    return name, Constant(dtype, tuple(shape), raw, tuple(numbers), external)


def _sparse(data: Bytes, span: Span) -> tuple[str, Constant]:
    """Name, dtype and dense shape of a sparse tensor; its numbers are not read."""
    parts = list(fields(data, *span))
    name, values = _constant(data, *(value for number, value, _ in parts if number == 1 and isinstance(value, tuple)))
    shape = [size for number, value, _ in parts if number == 3 for size in _integers(data, value)]
    return name, Constant(values.dtype, tuple(shape))


def _declared(data: Bytes, span: Span) -> tuple[str, int, tuple[int | str, ...] | None]:
    """Name, dtype and shape of a `ValueInfoProto`; None for an undeclared shape."""
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
    """The size of a dimension, or the name of a variable one; some exporters write -1 instead of a name."""
    for number, value, _ in fields(data, *span):
        if number == 1 and isinstance(value, int):
            return "" if value >> 63 else value
        if number == 2 and isinstance(value, tuple):
            return _text(data, value)
    return ""


def _parts(data: Bytes, spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """Number and extent of each length-delimited field of the message with fields in `spans`."""
    for span in spans:
        for number, begin, end in length_delimited(data, *span):
            yield number, (begin, end)


def _messages(data: Bytes, span: Span, wanted: int) -> Iterator[Span]:
    return (part for number, part in _parts(data, [span]) if number == wanted)


def _integers(data: Bytes, value: Value) -> list[int]:
    """The numbers of a repeated varint field, packed or not."""
    if not isinstance(value, tuple):
        return [] if value is None else [value]
    position, end = value
    found = []
    while position < end:
        number, position = varint(data, position, end)
        found.append(number)
    return found


def _text(data: Bytes, span: Span) -> str:
    try:
        return data[span[0] : span[1]].decode()
    except UnicodeDecodeError:
        raise BadOnnxFile("not an ONNX file: a name in it is not UTF-8") from None


def _text_of(data: Bytes, span: Span, wanted: int) -> str:
    """A text field of a message; of repeated fields the last counts."""
    return _text(data, (list(_messages(data, span, wanted)) or [(0, 0)])[-1])
