"""From the tensors of several requests to those of one run, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import Array

Tensors = Mapping[str, Array]


def merge(parts: Sequence[Tensors], names: Sequence[str], rows: int) -> Tensors:
    """The rows of all parts in their order, filled up with zeros (empty texts) to `rows` in all.

    One part that has as many rows already is passed on as it is.
    """
    missing = rows - sum(len(part[names[0]]) for part in parts)
    if len(parts) == 1 and not missing:
        return parts[0]
    return {
        name: np.concatenate([*(part[name] for part in parts), *_filling(parts[0][name], missing)]) for name in names
    }


def _filling(like: Array, rows: int) -> Sequence[Array]:
    if not rows:
        return ()
    shape = (rows, *like.shape[1:])
    return (np.full(shape, b"", object) if like.dtype == np.object_ else np.zeros(shape, like.dtype),)


def check_rows(outputs: Tensors, rows: int) -> None:
    """Raise `ModelFailed` where an output has not as many rows as went in."""
    for name, array in outputs.items():
        if array.shape[:1] != (rows,):
            found = f"{len(array)} rows" if array.ndim else "no rows"
            raise ModelFailed(f"output {name!r} has {found} for {rows}; the model needs `max_batch: 1`")


def split(outputs: Tensors, rows: Sequence[int]) -> list[dict[str, Array]]:
    """The outputs of a run for each of those who brought so many `rows`; what is behind these is cut off."""
    ends = np.cumsum([0, *rows]).tolist()
    return [{name: array[start:end] for name, array in outputs.items()} for start, end in pairwise(ends)]
