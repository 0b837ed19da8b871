"""Buckets: the numbers of rows for which an engine with exact shapes is prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from upwell.cloud.engines.base import Engine
from upwell.shared.tensors import Array, TensorSpec


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
        self.buckets: tuple[int, ...] = (engine.inputs[0].shape[0],)
        self.inputs = tuple(map(_varying, engine.inputs))
        self.outputs = tuple(map(_varying, engine.outputs))

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
