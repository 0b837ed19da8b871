"""ONNX files as objects of the `onnx` package, and as planner graphs: operators of the main graph, with their bodies.

Devices, which lack the package, read files with `upwell.shared.formats.onnx`.

Weights are constants and not part of a planner graph, nor are results of operators on constants alone. An initializer
that is also listed among the inputs is a constant: callers do not give it.

Datatypes and shapes are those in the file or found by ONNX's inference. Inference gives a dimension that depends on an
open one (rows) a new name, so that its size is lost. It is therefore run again with two sets of large primes for the
open dimensions of the inputs: a result of 49 times such a prime both times is `49*rows`, an equal result both times is
a number, and anything else depends on the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.file import BadOnnxFile, external_weights
from upwell.shared.formats.onnx.graph import OnnxGraph, OnnxNode, read_graph
from upwell.shared.formats.operator_work import work_of
from upwell.shared.partition.model_graph import Graph, Node, Tensor, in_order, size_of


def load_proto(path: Path) -> onnx.ModelProto:
    """Load the model at `path` without its external weights. Raises `ConfigError`."""
    try:
        return onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise ConfigError.at(path, f"cannot read the model: {error.strerror or error}") from None
    except Exception:  # noqa: BLE001 (protobuf's errors; a pure module must not name that package)
        raise ConfigError.at(path, "not an ONNX file, or truncated") from None


def opset_of(model: onnx.ModelProto) -> int:
    """The opset version of ONNX's own operators in a model."""
    return next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)


def held_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor in a model: weights, sparse ones included, and those in attributes at any depth."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _tensors_of_attribute(attribute)
        for node in function.node:
            yield from _tensors_of_node(node)


def with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Operators, and those in their bodies, at any depth."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in _bodies(attribute):
                yield from with_bodies(body.node)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        yield from _tensors_of_attribute(attribute)


def _tensors_of_attribute(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for one in (*sparse, *attribute.sparse_tensors):
        yield from (one.values, one.indices)
    for body in _bodies(attribute):
        yield from _tensors_of_graph(body)


def _bodies(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


_DEQUANTIZE = ("DequantizeLinear", "com.microsoft:DequantizeLinear")
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators whose copies give different results, so they must not be copied."""


def read_onnx(path: Path) -> Graph:
    """Read the ONNX file at `path`; its weights may be in files beside it, which are not read.

    Raises `ConfigError`.
    """
    try:
        external_weights(path)
        graph = read_graph(path)
    except BadOnnxFile as error:
        raise ConfigError.at(path, str(error)) from None
    except OSError as error:
        raise ConfigError.at(path, f"the model file cannot be read: {error.strerror or error}") from None
    try:
        order = _in_order(graph)
    except _Invalid as error:
        raise ConfigError.at(path, f"not a valid ONNX model: {error}") from None
    return _Reader(graph, order, _tensors_of(path, order)).graph()


class _Invalid(Exception):
    """What is wrong with a model in a valid ONNX file."""


def _in_order(graph: OnnxGraph) -> list[int]:
    """The nodes by position, each after those that it reads; in the file's order if that is topological."""
    if not graph.nodes:
        raise _Invalid("it has no operators")
    given = {*graph.initializers, *graph.inputs}
    makers: dict[str, int] = {}
    for at, node in enumerate(graph.nodes):
        for name in filter(None, node.outputs):
            if name in makers or name in given:
                raise _Invalid(f"tensor {name!r} is produced twice")
            makers[name] = at
    order = in_order([_sources(node, given, makers) for node in graph.nodes])
    if len(order) < len(graph.nodes):
        raise _Invalid("its operators form a cycle")
    for name in graph.outputs:
        if name not in given and name not in makers:
            raise _Invalid(f"no operator produces its output {name!r}")
    return order


def _sources(node: OnnxNode, given: Collection[str], makers: Mapping[str, int]) -> set[int]:
    """The nodes that a node reads from."""
    read = [name for name in node.reads if name not in given]
    for name in read:
        if name not in makers:
            raise _Invalid(f"operator {node.name or node.operator!r} reads {name!r}, which nothing produces")
    return {makers[name] for name in read}


@dataclass(frozen=True)
class _Reader:
    """A file's graph, its nodes in `order` by position, and the known facts of its tensors."""

    file: OnnxGraph
    order: Sequence[int]
    known: Mapping[str, Tensor]

    def graph(self) -> Graph:
        inputs, outputs = tuple(self.file.inputs), tuple(dict.fromkeys(self.file.outputs))
        nodes = self._nodes(outputs)
        named = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*inputs, *outputs}
        tensors = {name: self.known.get(name, Tensor(name, "", None)) for name in sorted(named)}
        return Graph("onnx", nodes, tensors, inputs, outputs)

    def _nodes(self, outputs: Collection[str]) -> tuple[Node, ...]:
        weights = set(self.file.initializers)
        names = self._names()
        made = []
        for at in self.order:
            node = self.file.nodes[at]
            inputs = tuple(one for one in node.reads if one not in weights)
            results = tuple(filter(None, node.outputs))
            is_plain = (node.domain, node.operator) not in self.file.functions and not set(results) & set(outputs)
            is_constant = is_plain and not inputs and _gives_the_same(node)
            is_free = is_constant or (is_plain and node.op in _DEQUANTIZE and inputs == tuple(node.inputs[:1]))
            if is_constant:
                weights.update(results)
            shapes = ([self._one_row(one) for one in names] for names in (node.inputs, results, inputs))
            work = 0.0 if is_free else work_of(node.op, *shapes)
            made.append(Node(names[at], node.op, inputs, results, (at,), 0.0 if math.isnan(work) else work, is_free))
        return tuple(made)

    def _names(self) -> Mapping[int, str]:
        """By position: a node's own name if it is unique, else its operator and position."""
        counts = Counter(node.name for node in self.file.nodes)
        names: dict[int, str] = {}
        taken = {name for name, count in counts.items() if count == 1}
        for at in self.order:
            node = self.file.nodes[at]
            name = node.name if node.name and counts[node.name] == 1 else f"{node.operator}_{at}"
            while name != node.name and name in taken:
                name += "_"
            taken.add(name)
            names[at] = name
        return names

    def _one_row(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor for one row; None if unknown."""
        tensor = self.known.get(name)
        if tensor is None or tensor.shape is None or "" in tensor.shape:
            return None
        return tuple(size_of(dim, {}) for dim in tensor.shape)


def _gives_the_same(node: OnnxNode) -> bool:
    """Whether two copies of a node give the same results: an operator of ONNX itself that draws no random numbers."""
    return all(
        (one.is_standard or one.operator == "DequantizeLinear") and one.operator not in _RANDOM
        for one in node.with_bodies()
    )


_DATATYPES: Mapping[str, str] = {
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "FLOAT16": "FP16",
    "BFLOAT16": "BF16",
    "STRING": "BYTES",
    "UNDEFINED": "",
}
"""Maps ONNX's datatypes to OIP's where the names differ."""

_LARGE_PRIMES = (
    (10_007, 10_009, 10_037, 10_039, 10_061, 10_067, 10_069, 10_079),
    (10_091, 10_093, 10_099, 10_103, 10_111, 10_133, 10_139, 10_141),
)
_KEPT_BYTES = 1 << 12
"""Maximum size of constants whose values shape inference needs; for larger ones only the shape matters."""


def _tensors_of(path: Path, order: Sequence[int]) -> Mapping[str, Tensor]:
    """Every known tensor of the main graph, constants included, by name. Names the open dimensions of its inputs.

    `order` is a topological order of the nodes by position. Raises `ConfigError` if protobuf cannot parse the file.
    """
    model = load_proto(path)
    nodes = [model.graph.node[at] for at in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for tensor in held_tensors(model):
        _drop_numbers(tensor)
    weights = {one.name for one in (*model.graph.initializer, *(one.values for one in model.graph.sparse_initializer))}
    given = [one for one in model.graph.input if one.name not in weights]
    _name_open_dimensions(given)
    names = list(dict.fromkeys(dim.dim_param for one in given for dim in _dimensions(one) if dim.dim_param))
    seen = _seen(_inferred(model))
    if all(isinstance(dim, int) or dim in names for one in seen.values() for dim in one.shape or ()):
        return seen
    trials = [_with_numbers(model, names, primes) for primes in _LARGE_PRIMES]
    return {name: _settled(one, [trial.get(name) for trial in trials], names) for name, one in seen.items()}


def _drop_numbers(tensor: Any) -> None:
    """Remove the values of a large constant; its shape stays."""
    if tensor.ByteSize() > _KEPT_BYTES:
        for kind in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"):
            tensor.ClearField(kind)


def _dimensions(value: Any) -> Sequence[Any]:
    """The dimensions of a tensor that is declared with a shape; else none."""
    found: Sequence[Any] = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
    return found


def _name_open_dimensions(values: Iterable[Any]) -> None:
    """Name an open first dimension without a name `batch`; exporters write it as "" or negative."""
    for value in values:
        for axis, dim in enumerate(_dimensions(value)):
            if not dim.dim_param and (not dim.HasField("dim_value") or dim.dim_value < 0):
                dim.dim_param = f"{value.name}[{axis}]" if axis else "batch"


def _inferred(model: Any) -> Any:
    """The model with the results of inference; unchanged if inference fails."""
    for propagates in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(model, data_prop=propagates)
        except Exception:  # noqa: BLE001, S112 (any error from C++; a model without shapes is still a graph)
            continue
    return model


def _with_numbers(model: Any, names: Sequence[str], primes: Sequence[int]) -> Mapping[str, Tensor]:
    """The result of inference with the named dimensions set to these primes; names beyond them stay open."""
    sizes = dict(zip(names, primes, strict=False))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in _dimensions(value):
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
            elif dim.dim_param:
                dim.ClearField("dim_param")
    return _seen(_inferred(copy))


def _settled(seen: Tensor, trials: Sequence[Tensor | None], names: Sequence[str]) -> Tensor:
    if seen.shape is None:
        return seen
    dims = []
    for axis, dim in enumerate(seen.shape):
        if not isinstance(dim, int) and dim not in names:
            dim = _formula([_size_at(trial, axis) for trial in trials], names)
        dims.append(dim)
    return replace(seen, shape=tuple(dims))


def _size_at(trial: Tensor | None, axis: int) -> int:
    """The value of a dimension in a trial; 0 if it has none."""
    dim = trial.shape[axis] if trial is not None and trial.shape is not None and axis < len(trial.shape) else 0
    return dim if isinstance(dim, int) else 0


def _formula(sizes: Sequence[int], names: Sequence[str]) -> int | str:
    """The formula that fits the values of all trials: a number, or names with a factor (`49*rows`); else ""."""
    found = {_factored(size, names, primes) for size, primes in zip(sizes, _LARGE_PRIMES, strict=True)}
    return found.pop() if len(found) == 1 else ""


def _factored(size: int, names: Sequence[str], primes: Sequence[int]) -> int | str:
    if size <= 0:
        return ""
    factors = []
    for name, prime in zip(names, primes, strict=False):
        while size % prime == 0:
            factors.append(name)
            size //= prime
    if not factors:
        return size
    return "*".join([str(size), *factors] if size > 1 else factors)


def _seen(model: Any) -> Mapping[str, Tensor]:
    graph = model.graph
    found = {value.name: _declared(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    for one in graph.initializer:
        found[one.name] = Tensor(one.name, _datatype(one.data_type), tuple(one.dims))
    for one in graph.sparse_initializer:
        found[one.values.name] = Tensor(one.values.name, _datatype(one.values.data_type), tuple(one.dims))
    return found


def _declared(value: Any) -> Tensor:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Tensor(value.name, (kind or "").removesuffix("_type").upper(), None)
    tensor = value.type.tensor_type
    dims = tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return Tensor(value.name, _datatype(tensor.elem_type), dims)


def _dim(dim: Any) -> int | str:
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else str(dim.dim_param)


def _datatype(number: int) -> str:
    try:
        name: str = onnx.TensorProto.DataType.Name(number)
    except ValueError:
        return ""
    return _DATATYPES.get(name, name)
