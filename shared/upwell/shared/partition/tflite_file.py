"""What a .tflite file holds, read without trusting it: vectors within the file's measure, indices that exist.

Also which operators share state: variables and tables that operators of any subgraph name or pass on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from ai_edge_litert import schema_py_generated as schema

_T = TypeVar("_T")
_IDENTIFIER = b"TFL3"
_OPS = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
_OPTIONS = schema.BuiltinOptions
_CALLS: Mapping[int, tuple[Any, tuple[str, ...]]] = MappingProxyType(
    {
        _OPTIONS.CallOnceOptions: (schema.CallOnceOptions, ("InitSubgraphIndex",)),
        _OPTIONS.CallOptions: (schema.CallOptions, ("Subgraph",)),
        _OPTIONS.IfOptions: (schema.IfOptions, ("ThenSubgraphIndex", "ElseSubgraphIndex")),
        _OPTIONS.WhileOptions: (schema.WhileOptions, ("CondSubgraphIndex", "BodySubgraphIndex")),
    }
)
"""By the kind of an operator's options: what they are, and where they say which subgraphs it runs."""


class BadTfliteFile(Exception):
    """What is wrong with the file; the text does not name it."""


@dataclass(frozen=True)
class Operator:
    """An operator: its name in the schema, and tensors of its subgraph by index, absent optional ones as -1.

    `state` names the variables and tables that it makes, or that operators make in the subgraphs it runs.
    """

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    state: frozenset[str]


@dataclass(frozen=True)
class Subgraph:
    """Tensors as the schema has them, with their shapes; operators in order; inputs and outputs by index.

    A dimension below zero varies; `shapes` tell its size for one row, `signatures` that it varies.
    """

    tensors: Sequence[Any]
    shapes: Sequence[tuple[int, ...]]
    signatures: Sequence[tuple[int, ...]]
    operators: Sequence[Operator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_main(data: bytes) -> Subgraph:
    """The first subgraph of a file. Raises `BadTfliteFile`, and for a damaged file whatever flatbuffers raises."""
    if data[4:8] != _IDENTIFIER:
        raise BadTfliteFile("it does not begin as one")
    file = _File(data)
    if not file.graphs:
        raise BadTfliteFile("it has no subgraph")
    graph = file.graphs[0]
    tensors = file.all(graph.Tensors, graph.TensorsLength())
    shapes = [file.numbers(one.Shape, one.ShapeLength()) for one in tensors]
    signatures = [file.numbers(one.ShapeSignature, one.ShapeSignatureLength()) for one in tensors]
    inputs, outputs = (
        file.indices(get, length, len(tensors))
        for get, length in ((graph.Inputs, graph.InputsLength()), (graph.Outputs, graph.OutputsLength()))
    )
    if -1 in (*inputs, *outputs):
        raise BadTfliteFile("it names tensor -1 as its input or output")
    return Subgraph(
        tensors,
        [tuple(map(abs, shape)) for shape in shapes],
        [made if len(made) == len(shape) else shape for made, shape in zip(signatures, shapes, strict=True)],
        file.operators(graph, len(tensors)),
        inputs,
        outputs,
    )


class _File:
    """A file, of whose vectors no more elements are read than it has bytes: a hostile one can let them overlap."""

    def __init__(self, data: bytes) -> None:
        self._left = len(data)
        model = schema.Model.GetRootAs(data, 0)
        codes = self.all(model.OperatorCodes, model.OperatorCodesLength())
        # Old files have the code in one field and new ones in both.
        self._ops = [_OPS.get(max(one.BuiltinCode(), one.DeprecatedBuiltinCode()), "CUSTOM") for one in codes]
        self.graphs = self.all(model.Subgraphs, model.SubgraphsLength())
        self._named_inside: dict[int, tuple[set[str], set[int]]] = {}

    def all(self, get: Callable[[int], _T], length: int) -> list[_T]:
        """The elements of a vector."""
        self._left -= length
        if self._left < 0:
            raise BadTfliteFile("its parts are larger than itself")
        return [get(at) for at in range(length)]

    def numbers(self, get: Callable[[int], int], length: int) -> tuple[int, ...]:
        """A vector of integers."""
        return tuple(map(int, self.all(get, length)))

    def indices(self, get: Callable[[int], int], length: int, count: int) -> tuple[int, ...]:
        """A vector of indices of tensors, of which there are `count`."""
        found = self.numbers(get, length)
        for index in found:
            if not -1 <= index < count:
                raise BadTfliteFile(f"it names tensor {index}, and has {count}")
        return found

    def operators(self, graph: Any, count: int) -> list[Operator]:
        """Those of a subgraph that has `count` tensors."""
        found = []
        for one in self.all(graph.Operators, graph.OperatorsLength()):
            inputs = self.indices(one.Inputs, one.InputsLength(), count)
            outputs = self.indices(one.Outputs, one.OutputsLength(), count)
            found.append(Operator(self._op(one), inputs, outputs, self._state(one)))
        return found

    def _op(self, operator: Any) -> str:
        at: int = operator.OpcodeIndex()
        if at >= len(self._ops):
            raise BadTfliteFile(f"it names operator code {at}, and has {len(self._ops)}")
        op: str = self._ops[at]
        return op

    def _state(self, operator: Any) -> frozenset[str]:
        """The variables and tables of an operator, and of all subgraphs that it leads to."""
        found, calls = self._named(operator)
        waiting, been = list(calls), set(calls)
        while waiting:
            states, calls = self._inside(waiting.pop())
            found |= states
            waiting += calls - been
            been |= calls
        return frozenset(found)

    def _inside(self, at: int) -> tuple[set[str], set[int]]:
        """What all operators of a subgraph name."""
        if not 0 <= at < len(self.graphs):
            raise BadTfliteFile(f"it names subgraph {at}, and has {len(self.graphs)}")
        if at not in self._named_inside:
            graph = self.graphs[at]
            states, calls = self._named_inside[at] = set[str](), set[int]()
            for one in self.all(graph.Operators, graph.OperatorsLength()):
                own_states, own_calls = self._named(one)
                states |= own_states
                calls |= own_calls
        return self._named_inside[at]

    def _named(self, operator: Any) -> tuple[set[str], set[int]]:
        """The variable or table that an operator makes, and the subgraphs that it runs."""
        op = self._op(operator)
        if op == "VAR_HANDLE":
            variable = _options(operator, schema.VarHandleOptions)
            return {f"variable {_text(variable.Container())}/{_text(variable.SharedName())}"}, set()
        if op == "HASHTABLE":
            return {f"table {_options(operator, schema.HashtableOptions).TableId()}"}, set()
        kind, names = _CALLS.get(operator.BuiltinOptionsType(), (None, ()))
        return set(), {int(getattr(_options(operator, kind), name)()) for name in names}


def _options(operator: Any, kind: Any) -> Any:
    table = operator.BuiltinOptions()
    if table is None:
        raise BadTfliteFile("an operator has no options")
    options = kind()
    options.Init(table.Bytes, table.Pos)
    return options


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")


def bonds(graph: Subgraph) -> list[str]:
    """By operator: a name that is the same for all that share state, directly or by others; empty for those without.

    Shared are what `Operator.state` names, handles of variables and tables, and tensors that are variables.
    """
    handles = (schema.TensorType.RESOURCE,)
    shared = {at for at, one in enumerate(graph.tensors) if one.IsVariable() or one.Type() in handles}
    keys = [
        one.state | {f"tensor {at}" for at in (*one.inputs, *one.outputs) if at in shared} for one in graph.operators
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
