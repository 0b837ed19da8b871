"""Numbers of rows that an engine is prepared for, where it is made for exact shapes."""

from __future__ import annotations

from collections.abc import Sequence

from upwell.shared.tensors import TensorSpec


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


def only_rows_vary(specs: Sequence[TensorSpec]) -> bool:
    """Whether the first dimension of every tensor varies and no other does, so that buckets describe all shapes."""
    return all(spec.shape and spec.shape[0] == -1 and -1 not in spec.shape[1:] for spec in specs)
