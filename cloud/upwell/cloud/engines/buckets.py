"""Any number of rows on what is prepared for a few: filled up with zeros, and cut in pieces where there are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.tensors import Array, TensorSpec

Run = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Runs one batch whose number of rows is one of the buckets."""


def buckets_for(buckets: Sequence[int], max_batch: int) -> tuple[int, ...]:
    """The numbers of rows to prepare, ascending: those given, else 1, 4, 16, ... and `max_batch` itself.

    A run of n rows then takes what the next larger bucket takes, so wider steps cost time and narrower ones
    preparation.
    """
    if buckets:
        return tuple(sorted(set(buckets)))
    sizes = [1]
    while 4 * sizes[-1] < max_batch:
        sizes.append(4 * sizes[-1])
    return tuple(dict.fromkeys([*sizes, max_batch]))


def run_in_buckets(batch: Mapping[str, Array], buckets: Sequence[int], run: Run) -> dict[str, Array]:
    """Run `batch`, arrays [n, ...], by runs of exactly a bucket's rows.

    Rows of zeros fill the smallest bucket that is large enough; more than the largest bucket's rows go in pieces of
    it. `run` must treat each row alone and give as many as it got. Raises `InvalidRequest` where the inputs have
    different numbers of rows, and what `run` raises.
    """
    counts = {name: len(array) for name, array in batch.items()}
    if len(set(counts.values())) != 1:
        raise InvalidRequest(f"inputs have different numbers of rows: {counts}")
    rows = next(iter(counts.values()))
    step = buckets[-1]
    if rows in buckets:
        return run(batch)
    starts = range(0, max(rows, 1), step)
    pieces = [
        _filled({name: one[start : start + step] for name, one in batch.items()}, buckets, run) for start in starts
    ]
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def only_rows_vary(specs: Sequence[TensorSpec]) -> bool:
    """Whether the first dimension of every tensor varies and no other does, so that buckets describe all shapes."""
    return all(spec.shape and spec.shape[0] == -1 and -1 not in spec.shape[1:] for spec in specs)


def _filled(batch: Mapping[str, Array], buckets: Sequence[int], run: Run) -> dict[str, Array]:
    rows = len(next(iter(batch.values())))
    bucket = next(size for size in buckets if size >= rows)
    if bucket == rows:
        return run(batch)
    full = {name: np.zeros((bucket, *array.shape[1:]), array.dtype) for name, array in batch.items()}
    for name, array in batch.items():
        full[name][:rows] = array
    return {name: array[:rows] for name, array in run(full).items()}
