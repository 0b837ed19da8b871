"""Reads the contents of a TFLite file without any package, since devices may have only a runtime.

Every table, vector and string in the schema (file identifier `TFL3`) is checked to lie within the file, except options
of operators that are not named here. Slots are those of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from upwell.shared.formats.tflite.flatbuffer import BadTfliteFile, Data, Flatbuffer, Table

_IDENTIFIER = b"TFL3"
_EXTERNAL_GROUPS = 8
_CALLS: Mapping[int, tuple[int, ...]] = MappingProxyType({16: (0,), 92: (0, 1), 93: (0, 1), 103: (0,)})
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
    for buffer in model.tables(4):
        buffer.check(0)
    model.check(5, 4)
    for metadata in model.tables(6):
        metadata.text(0)
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
