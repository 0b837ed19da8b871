"""TFLite as a graph: the operators of the first subgraph, in the file's order, which is that of execution.

Subgraphs that control flow runs are inside their operators. Weights are constants and no part of the graph, and so is
whatever an operator computes from constants alone. Variables that only one operator has (the state of an LSTM) are its
own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ai_edge_litert import schema_py_generated as schema

from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph import Graph, Node, Tensor
from upwell.shared.partition.tflite_file import BadTfliteFile, Operator, Subgraph, bonds, read_main
from upwell.shared.partition.work import work_of

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
"""Two copies of these may give two results of the same inputs. So may StableHLO's, some of which call or draw."""

_DATA_DEPENDENT = frozenset({"CUSTOM", "RANGE", "UNIQUE", "WHERE", "WHILE"})
"""How many rows these give depends on more than how many they are given."""


def read_tflite(path: Path) -> Graph:
    """The graph of the .tflite file at `path`. Tensors have the names that `tensor_names` gives them.

    Raises `ConfigError`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError.at(path, f"the model file cannot be read: {error.strerror or error}") from None
    try:
        return _Reader(read_main(data)).graph()
    except BadTfliteFile as error:
        raise ConfigError.at(path, f"not a valid TFLite model: {error}") from None
    except Exception:  # noqa: BLE001 (flatbuffers raises whatever a wrong offset leads to)
        raise ConfigError.at(path, "not a TFLite model, or cut short") from None


def tensor_names(names: Iterable[bytes | None]) -> tuple[str, ...]:
    """The names of a subgraph's tensors, by index: as in the file where one has a name to itself, else `name#index`.

    So a tensor without a name is `#index`, and the index of a tensor is that of its name among these.
    """
    texts = [(name or b"").decode("utf-8", "replace") for name in names]
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
    """A subgraph on its way to a graph."""

    def __init__(self, main: Subgraph) -> None:
        self._main = main
        self._names = tensor_names(tensor.Name() for tensor in main.tensors)
        openings = [axis for index in main.inputs for axis in self._openings(index)]
        self._rows_vary, self._others_vary = 0 in openings, any(openings)
        self._unknown: set[int] = set()

    def graph(self) -> Graph:
        """All of it."""
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
        for at, (one, bond) in enumerate(zip(main.operators, bonds(main), strict=True)):
            inputs = tuple(dict.fromkeys(index for index in one.inputs if index >= 0 and index not in constants))
            self._check(at, one, inputs, there)
            there.update(one.outputs)
            is_constant = not inputs and not bond and one.op not in _NOT_COPIED and not one.op.startswith("STABLEHLO_")
            is_free = (is_constant or one.op == "DEQUANTIZE") and not set(one.outputs).intersection(main.outputs)
            if is_free and is_constant:
                constants.update(one.outputs)
            if one.op in _DATA_DEPENDENT or self._unknown.intersection(inputs):
                self._unknown.update(one.outputs)
            work = 0.0 if is_free else work_of(one.op, *map(self._shapes, (one.inputs, one.outputs, inputs)))
            reads, makes = (tuple(self._names[index] for index in side) for side in (inputs, one.outputs))
            nodes.append(Node(f"{one.op}_{at}", one.op, reads, makes, (at,), work, is_free, bond))
        return tuple(nodes)

    def _check(self, at: int, operator: Operator, inputs: Iterable[int], there: set[int]) -> None:
        for index in inputs:
            if index not in there:
                raise BadTfliteFile(f"operator {at} ({operator.op}) reads {self._names[index]!r} before it is made")
        for index in operator.outputs:
            if index < 0 or index in there:
                raise BadTfliteFile(f"operator {at} ({operator.op}) makes a tensor that is there already")

    def _shapes(self, indices: Iterable[int]) -> list[tuple[int, ...] | None]:
        """For one row."""
        return [self._main.shapes[index] if index >= 0 else None for index in indices]

    def _openings(self, index: int) -> list[int]:
        """The axes that vary."""
        return [axis for axis, size in enumerate(self._main.signatures[index]) if size < 0]

    def _tensor(self, index: int) -> Tensor:
        """Its shape is None where the file does not say, or where what varies is not how many rows there are."""
        tensor, name = self._main.tensors[index], self._names[index]
        datatype, dims = _DATATYPES.get(tensor.Type(), ""), list[int | str](self._main.shapes[index])
        if not dims and not tensor.HasRank():
            return Tensor(name, datatype, None)  # a scalar or anything: older files do not tell which
        for axis in self._openings(index):
            rows = self._main.shapes[index][axis]
            if index in self._main.inputs:
                dims[axis] = f"{name}[{axis}]" if axis else "batch"
            elif index in self._unknown or not self._rows_vary or (axis and self._others_vary):
                return Tensor(name, datatype, None)
            else:
                dims[axis] = f"{rows}*batch" if rows > 1 else "batch"
        return Tensor(name, datatype, tuple(dims))
