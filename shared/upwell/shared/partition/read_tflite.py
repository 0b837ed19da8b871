"""Reads TFLite files as planner graphs: the operators of the first subgraph, in the file's order of execution.

Subgraphs run by control flow are inside their operators. Weights are constants and not part of the graph, nor are
results of operators on constants alone. Variables that only one operator uses (the state of an LSTM) belong to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path

from ai_edge_litert import schema_py_generated as schema

from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.operator_work import work_of
from upwell.shared.formats.tflite import BadTfliteFile, TfliteOperator, TfliteSubgraph, read_model
from upwell.shared.partition.model_graph import Graph, Node, Tensor

OPERATORS = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}

_DATATYPES = {value: name for name, value in vars(schema.TensorType).items() if isinstance(value, int)} | {
    schema.TensorType.FLOAT16: "FP16",
    schema.TensorType.FLOAT32: "FP32",
    schema.TensorType.FLOAT64: "FP64",
    schema.TensorType.BFLOAT16: "BF16",
    schema.TensorType.STRING: "BYTES",
}
_NOT_COPIED = frozenset(
    {"CALL", "CALL_ONCE", "CUSTOM", "DELEGATE", "HASHTABLE", "IF", "MULTINOMIAL", "RANDOM_STANDARD_NORMAL"}
    | {"RANDOM_UNIFORM", "READ_VARIABLE", "VAR_HANDLE", "WHILE"}
)
"""Operators whose copies may give different results; so may StableHLO's, some of which call functions or draw random
numbers."""

_DATA_DEPENDENT = frozenset({"CUSTOM", "RANGE", "UNIQUE", "WHERE", "WHILE"})
"""Operators whose number of output rows depends on more than the number of input rows."""


def read_tflite(path: Path) -> Graph:
    """Read the .tflite file at `path`. Tensors have the names from `tensor_names`.

    Raises `ConfigError`.
    """
    try:
        with open_plain(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return _Reader(read_model(data)).graph()
    except OSError as error:
        raise ConfigError.at(path, f"the model file cannot be read: {error.strerror or error}") from None
    except (BadTfliteFile, ValueError) as error:
        raise ConfigError.at(path, f"not a valid TFLite model: {error}") from None


def tensor_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of a subgraph's tensors, by index: as in the file if unique, else `name#index`.

    So a tensor without a name is `#index`, and a tensor's index is the position of its name.
    """
    texts = list(names)
    counts = Counter(texts)
    own = {text for text, count in counts.items() if count == 1 and text}
    found: dict[str, None] = {}
    for index, text in enumerate(texts):
        name = text if text in own else f"{text}#{index}"
        while name != text and (name in own or name in found):
            name += "#"
        found[name] = None
    return tuple(found)


class _Reader:
    """Converts the subgraphs of a file to the graph of the first."""

    def __init__(self, subgraphs: Sequence[TfliteSubgraph]) -> None:
        self._main = main = subgraphs[0]
        if -1 in (*main.inputs, *main.outputs):
            raise BadTfliteFile("it names tensor -1 as its input or output")
        self._subgraphs = subgraphs
        self._names = tensor_names(tensor.name for tensor in main.tensors)
        self._shapes = [tuple(map(abs, tensor.shape)) for tensor in main.tensors]
        openings = [axis for index in main.inputs for axis in self._openings(index)]
        self._rows_vary, self._others_vary = 0 in openings, any(openings)
        self._unknown: set[int] = set()

    def graph(self) -> Graph:
        """The complete graph."""
        main, names = self._main, self._names
        nodes = self._nodes()
        named = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        named |= {names[index] for index in (*main.inputs, *main.outputs)}
        tensors = {name: self._tensor(index) for index, name in enumerate(names) if name in named}
        inputs, outputs = (tuple(names[index] for index in dict.fromkeys(side)) for side in (main.inputs, main.outputs))
        return Graph("tflite", nodes, tensors, inputs, outputs)

    def _nodes(self) -> tuple[Node, ...]:
        main = self._main
        if not main.operators:
            raise BadTfliteFile("it has no operators")
        there = set(main.inputs)
        constants = set(range(len(main.tensors))) - there - {index for one in main.operators for index in one.outputs}
        nodes = []
        for at, (one, bond) in enumerate(zip(main.operators, bonds(self._subgraphs), strict=True)):
            op = OPERATORS.get(one.code, "CUSTOM")
            inputs = tuple(dict.fromkeys(index for index in one.inputs if index >= 0 and index not in constants))
            self._check(f"operator {at} ({op})", one, inputs, there)
            there.update(one.outputs)
            is_constant = not inputs and not bond and op not in _NOT_COPIED and not op.startswith("STABLEHLO_")
            is_free = (is_constant or op == "DEQUANTIZE") and not set(one.outputs).intersection(main.outputs)
            if is_free and is_constant:
                constants.update(one.outputs)
            if op in _DATA_DEPENDENT or self._unknown.intersection(inputs):
                self._unknown.update(one.outputs)
            work = 0.0 if is_free else work_of(op, *map(self._one_row, (one.inputs, one.outputs, inputs)))
            work = 0.0 if math.isnan(work) else work
            reads, makes = (tuple(self._names[index] for index in side) for side in (inputs, one.outputs))
            nodes.append(Node(f"{op}_{at}", op, reads, makes, (at,), work, is_free, bond))
        return tuple(nodes)

    def _check(self, name: str, operator: TfliteOperator, inputs: Iterable[int], there: set[int]) -> None:
        for index in inputs:
            if index not in there:
                raise BadTfliteFile(f"{name} reads {self._names[index]!r} before it is produced")
        for index in operator.outputs:
            if index < 0 or index in there:
                raise BadTfliteFile(f"{name} produces a tensor that already exists")

    def _one_row(self, indices: Iterable[int]) -> list[tuple[int, ...] | None]:
        return [self._shapes[index] if index >= 0 else None for index in indices]

    def _openings(self, index: int) -> list[int]:
        """The variable axes: those below zero in the signature, or in the shape if the signature has another rank."""
        tensor = self._main.tensors[index]
        sizes = tensor.signature if len(tensor.signature) == len(tensor.shape) else tensor.shape
        return [axis for axis, size in enumerate(sizes) if size < 0]

    def _tensor(self, index: int) -> Tensor:
        """A tensor; its shape is None if unknown, or if something else than the number of rows varies."""
        tensor, name = self._main.tensors[index], self._names[index]
        datatype, dims = _DATATYPES.get(tensor.type, ""), list[int | str](self._shapes[index])
        if not dims and not tensor.has_rank:
            return Tensor(name, datatype, None)  # a scalar or unknown: older files do not tell
        for axis in self._openings(index):
            rows = self._shapes[index][axis]
            if index in self._main.inputs:
                dims[axis] = f"{name}[{axis}]" if axis else "batch"
            elif index in self._unknown or not self._rows_vary or (axis and self._others_vary):
                return Tensor(name, datatype, None)
            else:
                dims[axis] = f"{rows}*batch" if rows > 1 else "batch"
        return Tensor(name, datatype, tuple(dims))


def bonds(subgraphs: Sequence[TfliteSubgraph]) -> list[str]:
    """By operator of the first subgraph: a name shared by all that share state, directly or through others.

    "" for operators without state. Shared state is: variables and tables named by operators of any subgraph that is
    run, handles of them, and tensors that are variables.
    """
    main = subgraphs[0]
    handles = (schema.TensorType.RESOURCE,)
    shared = {at for at, one in enumerate(main.tensors) if one.is_variable or one.type in handles}
    inside = [
        ({one.state for one in graph.operators} - {""}, {at for one in graph.operators for at in one.subgraphs})
        for graph in subgraphs
    ]
    keys = [
        _states(inside, one) | {f"tensor {at}" for at in (*one.inputs, *one.outputs) if at in shared}
        for one in main.operators
    ]
    first: dict[str, str] = {}

    def root(key: str) -> str:
        while first.setdefault(key, key) != key:
            key = first[key]
        return key

    for own in keys:
        for key in own:
            first[root(key)] = root(min(own))
    return [root(min(own)) if own else "" for own in keys]


def _states(inside: Sequence[tuple[set[str], set[int]]], operator: TfliteOperator) -> set[str]:
    """The variables and tables of an operator, and of all subgraphs that it runs."""
    found = {operator.state} - {""}
    waiting, been = list(operator.subgraphs), set(operator.subgraphs)
    while waiting:
        states, calls = inside[waiting.pop()]
        found |= states
        waiting += calls - been
        been |= calls
    return found
