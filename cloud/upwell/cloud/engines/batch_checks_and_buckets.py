"""The batches that engines run: checks, zeros for the warm-up, and buckets.

Buckets are the numbers of rows for which an engine with exact shapes is prepared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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


def buckets_for(buckets: Sequence[int], max_batch: int) -> tuple[int, ...]:
    """The numbers of rows to prepare, ascending: those given, else 1, 4, 16, ... and `max_batch`.

    A run of n rows takes the time of the next larger bucket, so wider steps cost run time and narrower ones
    preparation.
    """
    if buckets:
        return tuple(sorted(set(buckets)))
    sizes = [1]
    while 4 * sizes[-1] < max_batch:
        sizes.append(4 * sizes[-1])
    return tuple(dict.fromkeys([*sizes, max_batch]))


def only_rows_vary(specs: Sequence[TensorSpec]) -> bool:
    """Whether only the first dimension of every tensor is dynamic, so that buckets describe all shapes."""
    return all(spec.shape and spec.shape[0] == -1 and -1 not in spec.shape[1:] for spec in specs)


def by_rows(engine: Engine, buckets: Sequence[int]) -> Engine:
    """The engine, or, if the first dimension of all tensors is fixed to the only bucket, a wrapper with dynamic rows.

    The wrapper must be run with exactly that number of rows, as `Batcher` does with this bucket.
    """
    leading = {spec.shape[0] if spec.shape else 0 for spec in (*engine.inputs, *engine.outputs)}
    return _FixedRows(engine) if leading == set(buckets) and len(buckets) == 1 else engine


class _FixedRows:
    """An engine whose fixed first dimension is presented as dynamic."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.version = engine.version
        self.device = engine.device
        self.buckets: tuple[int, ...] = (engine.inputs[0].shape[0],)
        self.inputs = tuple(map(_varying, engine.inputs))
        self.outputs = tuple(map(_varying, engine.outputs))
        self.stoppable_run = getattr(engine, "stoppable_run", None)

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """As the engine's."""
        return self._engine.run(batch)

    def warm_up(self, rows: int) -> None:
        """As the engine's."""
        self._engine.warm_up(rows)

    def close(self) -> None:
        """As the engine's."""
        self._engine.close()


def _varying(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(-1, *spec.shape[1:]))
