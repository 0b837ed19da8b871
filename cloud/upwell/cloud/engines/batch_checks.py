"""Checks of the batches that engines run, and batches of zeros for their warm-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from upwell.cloud.engines.base import Engine
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype


def check_batch(batch: Mapping[str, Array], specs: Sequence[TensorSpec], buckets: Sequence[int] = ()) -> None:
    """Raise `InvalidRequest` unless `batch` has exactly the tensors of `specs`, with matching dtypes and shapes.

    With `buckets`, all must have the same number of rows, which is one of these.
    """
    for spec in specs:
        array = batch.get(spec.name)
        if array is None:
            raise InvalidRequest(f"input {spec.name!r} is missing")
        if array.dtype != numpy_dtype(spec.datatype):
            raise InvalidRequest(f"input {spec.name!r} is {array.dtype}, expected {spec.datatype}")
        if not shape_fits(array.shape, spec.shape):
            raise InvalidRequest(f"input {spec.name!r} has shape {list(array.shape)}, expected {list(spec.shape)}")
    if len(batch) > len(specs):
        extra = sorted(set(batch) - {spec.name for spec in specs})
        raise InvalidRequest(f"unknown input {extra[0]!r}; the inputs are {', '.join(spec.name for spec in specs)}")
    if buckets:
        _check_rows(batch, buckets)


def _check_rows(batch: Mapping[str, Array], buckets: Sequence[int]) -> None:
    rows = {name: len(array) for name, array in batch.items()}
    if len(set(rows.values())) != 1:
        raise InvalidRequest(f"inputs have different numbers of rows: {rows}")
    count = next(iter(rows.values()))
    if count not in buckets:
        raise InvalidRequest(f"a batch of {count} rows, but the model is prepared for {', '.join(map(str, buckets))}")


def shape_fits(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether a shape matches `expected` (-1: any size)."""
    if len(shape) != len(expected):
        return False
    for got, want in zip(shape, expected, strict=True):  # noqa: SIM110 (it costs a third: every request comes here)
        if want not in (-1, got):
            return False
    return True


def works_by_rows(engine: Engine) -> bool:
    """Whether the engine has inputs, and all inputs and outputs have a dynamic first dimension."""
    specs = (*engine.inputs, *engine.outputs)
    return bool(engine.inputs) and all(spec.shape and spec.shape[0] == -1 for spec in specs)


def zero_batch(specs: Sequence[TensorSpec], rows: int) -> dict[str, Array] | None:
    """Zeros for warming up a model, or None if only real data would do.

    That is the case for strings, and if a dimension other than the rows of a matrix or larger tensor is dynamic: the
    model may not run with a length of 1. Raises `ModelFailed` if they do not fit into memory.
    """
    if any(spec.datatype == "BYTES" or -1 in spec.shape[1:] or spec.shape == (-1,) for spec in specs):
        return None
    return {spec.name: zeros(spec, rows) for spec in specs}


def zeros(spec: TensorSpec, rows: int) -> Array:
    """One array of zeros, with `rows` for each dynamic size. Raises `ModelFailed` as `zero_batch` does."""
    shape = [rows if size == -1 else size for size in spec.shape]
    try:
        return np.zeros(shape, numpy_dtype(spec.datatype))
    except (MemoryError, ValueError):  # the latter if even the size overflows
        raise ModelFailed(f"input {spec.name!r} of shape {shape} does not fit into memory") from None
