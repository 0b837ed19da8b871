"""What the halves give against what the whole gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from upwell.shared.tensors import Array

_COUNTED_BYTES = 4
"""Integers of so many bytes are classes and indexes, which are equal or not; smaller ones are quantized numbers."""


@dataclass(frozen=True)
class Difference:
    """Of one output over all runs. `error` is the largest of max |made − whole| / max |whole|.

    It is infinite where a shape or dtype differs, what counts or names differs at all, or one side is not finite.
    """

    name: str
    is_equal: bool
    error: float

    def holds(self, at_most: float) -> bool:
        """Whether it is bit-equal, or no further off than that."""
        return self.is_equal or self.error <= at_most


def difference(name: str, made: Sequence[Array], whole: Sequence[Array]) -> Difference:
    """Compare one output, run by run."""
    pairs = list(zip(made, whole, strict=True))
    return Difference(
        name,
        all(_is_equal(one, other) for one, other in pairs),
        max((_error(one, other) for one, other in pairs), default=0.0),
    )


def _is_equal(made: Array, whole: Array) -> bool:
    if made.dtype != whole.dtype or made.shape != whole.shape:
        return False
    return bool((made == whole).all()) if whole.dtype.hasobject else made.tobytes() == whole.tobytes()


def _error(made: Array, whole: Array) -> float:
    if _is_equal(made, whole):
        return 0.0
    if made.dtype != whole.dtype or made.shape != whole.shape or _is_counted(whole):
        return math.inf
    exact, found = whole.astype(np.float64), made.astype(np.float64)
    finite = np.isfinite(exact)
    if not np.array_equal(exact[~finite], found[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return math.inf
    off = float(np.abs(found[finite] - exact[finite]).max(initial=0.0))
    scale = float(np.abs(exact[finite]).max(initial=0.0))
    return off / scale if scale else (math.inf if off else 0.0)


def _is_counted(array: Array) -> bool:
    return (
        array.dtype.hasobject
        or array.dtype.kind == "b"
        or (array.dtype.kind in "iu" and array.dtype.itemsize >= _COUNTED_BYTES)
    )
