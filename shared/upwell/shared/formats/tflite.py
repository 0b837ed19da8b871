"""Reads TFLite files without any package: the flatbuffer, checked, the model in it, and tflite-support's metadata.

Devices may have only a runtime, and tflite_runtime 2.14 follows offsets unchecked, so a truncated file loads there, and
then gives garbage or crashes the process.

The metadata is a flatbuffer of its own (schema `metadata_schema.fbs`, identifier `M001`) in the buffer named by the
entry TFLITE_METADATA.

Every table, vector and string in the schema (file identifier `TFL3`) is checked to lie within the file, except options
of operators that are not named here. Slots are those of the schema.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Data: TypeAlias = "bytes | mmap.mmap"

_SHARED_TIMES = 4
"""Limit on the bytes read, as a multiple of the file's size, since equal parts may be shared."""


class BadTfliteFile(Exception):
    """The file is not a TFLite model, or a part of it lies outside the file; the text says why, without the file."""


class Flatbuffer:
    """A file, with a limit on the total bytes read: a hostile file may let its vectors overlap."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._left = _SHARED_TIMES * len(data)
        self._vtables: dict[int, tuple[int, ...]] = {}

    def root(self) -> Table:
        """The root table."""
        return Table(self, self.follow(0))

    def number(self, position: int, layout: str) -> int:
        """The number at `position`, in a layout of `struct`."""
        if position < 0:
            raise BadTfliteFile("it is damaged: a part is outside the file")
        try:
            value: int = struct.unpack_from(layout, self._data, position)[0]
        except struct.error:
            raise BadTfliteFile("it is damaged or truncated") from None
        return value

    def follow(self, position: int) -> int:
        """The target of the offset at `position`."""
        return position + self.number(position, "<I")

    def within(self, position: int, size_bytes: int) -> None:
        """Raise `BadTfliteFile` unless these bytes are in the file."""
        if position < 0 or size_bytes < 0 or position + size_bytes > len(self._data):
            raise BadTfliteFile("it is damaged or truncated: a part is outside the file")

    def take(self, position: int, size_bytes: int) -> bytes:
        """The bytes at `position`."""
        self.within(position, size_bytes)
        self._left -= size_bytes
        if self._left < 0:
            raise BadTfliteFile("its parts together are larger than the file")
        return self._data[position : position + size_bytes]

    def vtable(self, position: int) -> tuple[int, ...]:
        """The vtable at `position`, which many tables share: its size, the tables' size, and the offset of each
        slot."""
        if position not in self._vtables:
            count = max(2, self.number(position, "<H") // 2)
            self._vtables[position] = struct.unpack(f"<{count}H", self.take(position, 2 * count))
        return self._vtables[position]


class Table:
    """A table: fields by slot in the schema, each optional."""

    def __init__(self, file: Flatbuffer, position: int) -> None:
        self._file = file
        self._position = position
        self._vtable = file.vtable(position - file.number(position, "<i"))
        file.within(position, self._vtable[1])

    def has(self, slot: int) -> bool:
        """Whether the field is present."""
        return self._field(slot) is not None

    def number(self, slot: int, layout: str) -> int:
        """A number in a layout of `struct`; 0 if absent."""
        field = self._field(slot)
        return 0 if field is None else self._file.number(field, layout)

    def table(self, slot: int) -> Table | None:
        """A table; None if absent."""
        field = self._field(slot)
        return None if field is None else Table(self._file, self._file.follow(field))

    def tables(self, slot: int) -> list[Table]:
        """A vector of tables."""
        start, count = self._vector(slot)
        offsets = struct.unpack(f"<{count}I", self._file.take(start, 4 * count))
        return [Table(self._file, start + 4 * at + offset) for at, offset in enumerate(offsets)]

    def numbers(self, slot: int) -> tuple[int, ...]:
        """A vector of 32-bit integers."""
        start, count = self._vector(slot)
        return struct.unpack(f"<{count}i", self._file.take(start, 4 * count)) if count else ()

    def raw(self, slot: int) -> bytes:
        """A vector of bytes."""
        start, count = self._vector(slot)
        return self._file.take(start, count)

    def floats(self, slot: int) -> tuple[float, ...]:
        """A vector of 32-bit floats."""
        start, count = self._vector(slot)
        return struct.unpack(f"<{count}f", self._file.take(start, 4 * count)) if count else ()

    def text(self, slot: int) -> bytes:
        """A string; empty if absent."""
        start, count = self._vector(slot)
        if self.has(slot):
            self._file.within(start, count + 1)  # it ends with a zero
        return self._file.take(start, count)

    def check(self, slot: int, item_bytes: int = 1) -> None:
        """Raise `BadTfliteFile` unless a vector of numbers lies in the file; it is not read."""
        start, count = self._vector(slot)
        if count:
            self._file.within(start, item_bytes * count)

    def _vector(self, slot: int) -> tuple[int, int]:
        """First byte and number of items."""
        field = self._field(slot)
        if field is None:
            return 0, 0
        start = self._file.follow(field)
        return start + 4, self._file.number(start, "<I")

    def _field(self, slot: int) -> int | None:
        offset = self._vtable[slot + 2] if slot + 2 < len(self._vtable) else 0
        return self._position + offset if offset else None


_ENTRY = b"TFLITE_METADATA"
_METADATA_IDENTIFIER = b"M001"
_BUFFERS, _METADATA = 4, 6
_SUBGRAPHS, _INPUTS, _OUTPUTS = 3, 2, 3
_UNITS, _FILES = 4, 6
_NORMALIZATION = 1
_LABELS = (2, 3)
"""Kinds of associated files: labels of an axis, labels of a value."""


@dataclass(frozen=True)
class TensorNote:
    """One tensor: mean and standard deviation of its normalization, and the files that name its classes."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_files: tuple[str, ...]


def read_notes(data: Data) -> tuple[Sequence[TensorNote], Sequence[TensorNote]] | None:
    """The notes on the model's inputs and outputs, None without metadata. Raises `BadTfliteFile`."""
    model = Flatbuffer(data).root()
    buffers = model.tables(_BUFFERS)
    for entry in model.tables(_METADATA):
        number = entry.number(1, "<I")
        if entry.text(0) == _ENTRY and number < len(buffers):
            return _notes(buffers[number].raw(0))
    return None


def _notes(data: bytes) -> tuple[Sequence[TensorNote], Sequence[TensorNote]]:
    if len(data) < 8 or data[4:8] != _METADATA_IDENTIFIER:
        raise BadTfliteFile("its metadata is damaged")
    subgraphs = Flatbuffer(data).root().tables(_SUBGRAPHS)
    if not subgraphs:
        return (), ()
    inputs, outputs = ([_note(one) for one in subgraphs[0].tables(slot)] for slot in (_INPUTS, _OUTPUTS))
    return inputs, outputs


def _note(table: Table) -> TensorNote:
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    for unit in table.tables(_UNITS):
        options = unit.table(1) if unit.number(0, "<B") == _NORMALIZATION else None
        if options is not None:
            mean, std = options.floats(0), options.floats(1)
    files = [one.text(0).decode(errors="replace") for one in table.tables(_FILES) if one.number(2, "<b") in _LABELS]
    return TensorNote(mean, std, tuple(files))


_IDENTIFIER = b"TFL3"
_EXTERNAL_GROUPS = 8
_CALLS: Mapping[int, tuple[int, ...]] = {16: (0,), 92: (0, 1), 93: (0, 1), 103: (0,)}
"""Type of an operator's options (CALL, IF, WHILE, CALL_ONCE) -> the slots of the subgraphs that it runs."""
_HASHTABLE, _VAR_HANDLE = 136, 142
"""Operators that create a table or variable, which their options name."""


@dataclass(frozen=True)
class TfliteTensor:
    """One tensor: its type (number in the schema), its shape, and its signature's shape, in which -1 is variable.

    `buffer` is the number of the buffer with its constant; 0 is empty. Files older than `has_rank` give a tensor of
    unknown rank the shape of a scalar.
    """

    name: str
    type: int
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    buffer: int
    is_variable: bool
    has_rank: bool


@dataclass(frozen=True)
class TfliteOperator:
    """One operator: its number in the schema, and its tensors by number in the subgraph, -1 for an omitted one.

    `subgraphs` are those that it runs; `state` names the variable or table that it creates, "" for others.
    """

    code: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    subgraphs: tuple[int, ...]
    state: str


@dataclass(frozen=True)
class TfliteSubgraph:
    """Operators in order of execution; inputs and outputs are numbers of tensors."""

    tensors: Sequence[TfliteTensor]
    operators: Sequence[TfliteOperator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_model(data: Data) -> Sequence[TfliteSubgraph]:
    """The subgraphs of a TFLite file; the first is the main one.

    Raises `BadTfliteFile` if it is not one, if a part lies outside the file or refers to something that does not exist.
    """
    if len(data) < 8 or data[4:8] != _IDENTIFIER:
        raise BadTfliteFile("it is not a TFLite file")
    model = Flatbuffer(data).root()
    codes = [_code(one) for one in model.tables(1)]
    graphs = [_subgraph(one, codes) for one in model.tables(2)]
    if not graphs:
        raise BadTfliteFile("it has no subgraph")
    for called in (at for graph in graphs for operator in graph.operators for at in operator.subgraphs):
        if not 0 <= called < len(graphs):
            raise BadTfliteFile(f"it refers to subgraph {called} but has only {len(graphs)}")
    model.check(3)
    buffers, metadata = model.tables(4), model.tables(6)
    for buffer in buffers:
        buffer.check(0)
    model.check(5, 4)
    for entry in metadata:
        entry.text(0)
    tensors = (tensor.buffer for graph in graphs for tensor in graph.tensors)
    for at in (*tensors, *(entry.number(1, "<I") for entry in metadata)):
        if at and at >= len(buffers):
            raise BadTfliteFile(f"it refers to buffer {at} but has only {len(buffers)}")
    for signature in model.tables(7):
        signature.text(2)
        for named in (*signature.tables(0), *signature.tables(1)):
            named.text(0)
    return graphs


def names_other_files(data: Data) -> bool:
    """Whether a TFLite model has weights in other files (`external_buffer_groups`), as LiteRT reads them.

    Raises `BadTfliteFile` if the file is truncated before that.
    """
    return Flatbuffer(data).root().has(_EXTERNAL_GROUPS)


def _code(table: Table) -> int:
    """The operator's number: old files have it in one field, new ones in both."""
    table.text(1)
    return max(table.number(0, "<b"), table.number(3, "<i"))


def _subgraph(table: Table, codes: Sequence[int]) -> TfliteSubgraph:
    tensors = [_tensor(one) for one in table.tables(0)]
    inputs, outputs = (_indices(table, slot, len(tensors)) for slot in (1, 2))
    table.text(4)
    return TfliteSubgraph(tensors, [_operator(one, codes, len(tensors)) for one in table.tables(3)], inputs, outputs)


def _tensor(table: Table) -> TfliteTensor:
    quantization = table.table(4)
    if quantization is not None:
        for slot, item_bytes in ((0, 4), (1, 4), (2, 4), (3, 8)):
            quantization.check(slot, item_bytes)
    return TfliteTensor(
        table.text(3).decode("utf-8", "replace"),
        table.number(1, "<b"),
        table.numbers(0),
        table.numbers(7),
        table.number(2, "<I"),
        bool(table.number(5, "<B")),
        bool(table.number(8, "<B")),
    )


def _operator(table: Table, codes: Sequence[int], tensors: int) -> TfliteOperator:
    at = table.number(0, "<I")
    if at >= len(codes):
        raise BadTfliteFile(f"it refers to operator code {at} but has only {len(codes)}")
    inputs, outputs = (_indices(table, slot, tensors) for slot in (1, 2))
    for slot, item_bytes in ((5, 1), (7, 1), (8, 4)):
        table.check(slot, item_bytes)
    kind, options = table.number(3, "<B"), table.table(4)
    if options is None:
        if kind in _CALLS or codes[at] in (_HASHTABLE, _VAR_HANDLE):
            raise BadTfliteFile("an operator has no options")
        return TfliteOperator(codes[at], inputs, outputs, (), "")
    subgraphs = tuple(options.number(slot, "<i") for slot in _CALLS.get(kind, ()))
    return TfliteOperator(codes[at], inputs, outputs, subgraphs, _state(codes[at], options))


def _state(code: int, options: Table) -> str:
    if code == _VAR_HANDLE:
        container, name = (options.text(slot).decode("utf-8", "replace") for slot in (0, 1))
        return f"variable {container}/{name}"
    return f"table {options.number(0, '<i')}" if code == _HASHTABLE else ""


def _indices(table: Table, slot: int, count: int) -> tuple[int, ...]:
    """A vector of tensor numbers below `count`."""
    found = table.numbers(slot)
    for index in found:
        if not -1 <= index < count:
            raise BadTfliteFile(f"it refers to tensor {index} but has only {count}")
    return found
