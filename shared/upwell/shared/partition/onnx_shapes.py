"""Datatype and shape of every tensor of an ONNX model, as far as the file says or ONNX's inference finds out.

Inference gives a dimension that depends on an open one (rows) a made-up name, so that its size is lost. It is therefore
asked again with two sets of large primes for the open dimensions of the inputs: what comes out as 49 times such a prime
both times is `49*rows`, what comes out the same both times is a number, and what does neither depends on the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import onnx

from upwell.shared.partition.graph import Tensor
from upwell.shared.partition.onnx_proto import held_tensors, load_proto

_DATATYPES: Mapping[str, str] = MappingProxyType(
    {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16", "BFLOAT16": "BF16", "STRING": "BYTES", "UNDEFINED": ""}
)
"""ONNX's name -> OIP's, where they differ."""

_LARGE_PRIMES = (
    (10_007, 10_009, 10_037, 10_039, 10_061, 10_067, 10_069, 10_079),
    (10_091, 10_093, 10_099, 10_103, 10_111, 10_133, 10_139, 10_141),
)
_KEPT_BYTES = 1 << 12
"""Constants of this size or less may say what a shape is; of larger ones inference needs their own shape alone."""

_Dims: TypeAlias = "tuple[int | str, ...] | None"


@dataclass(frozen=True)
class _Seen:
    """A tensor as inference sees it; an open dimension may have any name, also none."""

    datatype: str
    dims: _Dims


def tensors_of(path: Path, order: Sequence[int]) -> Mapping[str, Tensor]:
    """Every tensor of the main graph that is known, constants too, by name. Names the open dimensions of its inputs.

    `order` is a topological one of the nodes by position. Raises `ConfigError` where protobuf cannot read the file.
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
    if all(isinstance(dim, int) or dim in names for one in seen.values() for dim in one.dims or ()):
        return {name: Tensor(name, one.datatype, one.dims) for name, one in seen.items()}
    trials = [_with_numbers(model, names, primes) for primes in _LARGE_PRIMES]
    return {name: _settled(name, one, [trial.get(name) for trial in trials], names) for name, one in seen.items()}


def _drop_numbers(tensor: Any) -> None:
    """Take the numbers out of a large constant; its shape stays."""
    if tensor.ByteSize() > _KEPT_BYTES:
        for kind in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"):
            tensor.ClearField(kind)


def _dimensions(value: Any) -> Sequence[Any]:
    """Of a tensor that is declared with a shape; none otherwise."""
    found: Sequence[Any] = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
    return found


def _name_open_dimensions(values: Iterable[Any]) -> None:
    """The first dimension is `batch` where it is open without a name; exporters write it empty or negative."""
    for value in values:
        for axis, dim in enumerate(_dimensions(value)):
            if not dim.dim_param and (not dim.HasField("dim_value") or dim.dim_value < 0):
                dim.dim_param = f"{value.name}[{axis}]" if axis else "batch"


def _inferred(model: Any) -> Any:
    """The model with what inference adds; as it is where that fails."""
    for propagates in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(model, data_prop=propagates)
        except Exception:  # noqa: BLE001, S112 (what C++ gives it; a model without shapes is still a graph)
            continue
    return model


def _with_numbers(model: Any, names: Sequence[str], primes: Sequence[int]) -> Mapping[str, _Seen]:
    """What inference sees where the named dimensions are these primes; of more names the others stay open."""
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


def _settled(name: str, seen: _Seen, trials: Sequence[_Seen | None], names: Sequence[str]) -> Tensor:
    if seen.dims is None or all(isinstance(dim, int) or dim in names for dim in seen.dims):
        return Tensor(name, seen.datatype, seen.dims)
    dims = []
    for axis, dim in enumerate(seen.dims):
        if not isinstance(dim, int) and dim not in names:
            dim = _formula([_size_at(trial, axis) for trial in trials], names)
        dims.append(dim)
    return Tensor(name, seen.datatype, None if "" in dims else tuple(dims))


def _size_at(trial: _Seen | None, axis: int) -> int:
    """The number that a trial gave for a dimension; 0 where it gave none."""
    dim = trial.dims[axis] if trial is not None and trial.dims is not None and axis < len(trial.dims) else 0
    return dim if isinstance(dim, int) else 0


def _formula(sizes: Sequence[int], names: Sequence[str]) -> int | str:
    """What the numbers of all trials agree on: a number, or names and their factor (`49*rows`); else empty."""
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


def _seen(model: Any) -> Mapping[str, _Seen]:
    graph = model.graph
    found = {value.name: _declared(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    for one in graph.initializer:
        found[one.name] = _Seen(_datatype(one.data_type), tuple(one.dims))
    for one in graph.sparse_initializer:
        found[one.values.name] = _Seen(_datatype(one.values.data_type), tuple(one.dims))
    return found


def _declared(value: Any) -> _Seen:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return _Seen((kind or "").removesuffix("_type").upper(), None)
    tensor = value.type.tensor_type
    dims = tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return _Seen(_datatype(tensor.elem_type), dims)


def _dim(dim: Any) -> int | str:
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else str(dim.dim_param)


def _datatype(number: int) -> str:
    try:
        name: str = onnx.TensorProto.DataType.Name(number)
    except ValueError:
        return ""
    return _DATATYPES.get(name, name)
