"""The inputs that a model is measured on: random ones, or those that the user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.partition.model_graph import Graph, Tensor
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

_SEED = 1
_SMALL_BYTES = 2


def inputs_of(
    graph: Graph, names: Mapping[str, str], rows: int, given: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, int]]:
    """An array for each input of the model by its tensor's name, and the sizes of the open dimensions by theirs.

    `names` are those under which the runtime takes the tensors; `given` uses either. Missing inputs are generated,
    the same every time: the first open dimension is the batch. Raises `ConfigError` for arrays that do not fit, and
    for another open dimension without a size.
    """
    unknown = sorted(set(given) - set(names) - set(names.values()))
    if unknown:
        raise _refused(f"the model has no input {unknown[0]!r}; its inputs are {', '.join(map(repr, names.values()))}")
    sizes: dict[str, int] = {}
    arrays: dict[str, Array] = {}
    for name in graph.inputs:
        array = given.get(names[name], given.get(name))
        if array is not None:
            arrays[name] = _fitted(array, graph.tensors[name], rows, sizes)
    chance = np.random.default_rng(_SEED)
    for name in graph.inputs:
        if name not in arrays:
            arrays[name] = _made_up_for(graph.tensors[name], rows, sizes, chance)
    return arrays, sizes


def runtime_names(specs: tuple[TensorSpec, ...], tensors: tuple[str, ...]) -> dict[str, str]:
    """By tensor name, the name under which a runtime takes or gives it: the same, or else matched by position."""
    own = [spec.name for spec in specs]
    if set(own) == set(tensors):
        return {name: name for name in tensors}
    if len(own) != len(tensors):
        wanted = f"{len(tensors)} ({', '.join(map(repr, tensors))})"
        raise ConfigError.at(None, f"the runtime has {len(own)} tensors ({', '.join(map(repr, own))}), not {wanted}")
    return dict(zip(tensors, own, strict=True))


def _fitted(array: Array, tensor: Tensor, rows: int, sizes: dict[str, int]) -> Array:
    """The array for this input, with no more rows than requested; fixes open dimensions."""
    wanted, shape = numpy_dtype(tensor.datatype), tensor.shape
    if array.dtype != wanted:
        raise _refused(f"array {tensor.name!r} is {array.dtype}; the input takes {wanted}")
    if shape is None:
        return array
    if shape and isinstance(shape[0], str) and array.ndim:
        if len(array) < rows:
            raise _refused(f"array {tensor.name!r} has {len(array)} rows, but --rows is {rows}")
        array = array[:rows]
    fits = len(shape) == array.ndim
    for dim, size in zip(shape, array.shape, strict=False):
        fits = fits and size == (sizes.setdefault(dim, size) if isinstance(dim, str) else dim)
    if not fits:
        raise _refused(f"array {tensor.name!r} is {list(array.shape)}; the input takes {list(shape)}")
    return np.asarray(array, order="C")  # a scalar stays one


def _made_up_for(tensor: Tensor, rows: int, sizes: dict[str, int], chance: np.random.Generator) -> Array:
    dtype: np.dtype[Any] = numpy_dtype(tensor.datatype)
    if tensor.shape is None or dtype.hasobject:
        raise _refused(f"no values can be generated for input {tensor.name!r} ({tensor.datatype}); pass them")
    return synthetic_array([_size(tensor, place, rows, sizes) for place in range(len(tensor.shape))], dtype, chance)


def synthetic_array(shape: Sequence[int], dtype: np.dtype[Any], chance: np.random.Generator) -> Array:
    """Floats from 0 to 1; 8 and 16 bits over their whole range; wider integers as indexes 0 and 1."""
    if dtype.kind in "iu" and dtype.itemsize <= _SMALL_BYTES:
        limits = np.iinfo(dtype)
        return chance.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return (chance.integers(0, 2, shape) if dtype.kind in "iub" else chance.random(shape)).astype(dtype)


def _size(tensor: Tensor, place: int, rows: int, sizes: dict[str, int]) -> int:
    dim = (tensor.shape or ())[place]
    if not isinstance(dim, str):
        return dim
    if place == 0:
        sizes.setdefault(dim, rows)
    if dim not in sizes:
        raise _refused(f"dimension {dim!r} of input {tensor.name!r} is open; pass an array of the usual size")
    return sizes[dim]


def _refused(what: str) -> ConfigError:
    return ConfigError.at(None, what, "--inputs")
