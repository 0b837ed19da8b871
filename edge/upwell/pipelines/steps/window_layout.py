"""Fits a window of a series into the tensor that a model takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from upwell.shared.tensors import Array


def laid_out(window: Array, shape: Sequence[int]) -> Array:
    """The window [size, fields] as a tensor of this shape without its batch dimension, in which -1 takes any number.

    Unchanged, or with the fields first, or flattened point by point; dimensions of 1 may stand anywhere. Raises
    `ValueError` if none of these fits.
    """
    for turned in (window, window.T, window.reshape(-1)):
        wanted = _filled(shape, turned.shape)
        if wanted is not None:
            return turned.reshape(wanted)
    size, fields = window.shape
    raise ValueError(
        f"takes {_written(shape)}, but a window is {_written((size, fields))}; expected that, "
        f"{_written((fields, size))} or {_written((math.prod(window.shape),))}"
    )


def _filled(shape: Sequence[int], given: Sequence[int]) -> tuple[int, ...] | None:
    """The shape with a number for each -1; None if the window does not fit."""
    if len(shape) == len(given):
        return tuple(given) if all(one in (-1, size) for one, size in zip(shape, given, strict=True)) else None
    sizes = [size for size in given if size != 1]
    left = iter(sizes)
    filled = tuple(one if one == 1 else next(left, 1) for one in shape)
    return (
        filled if all(one in (-1, size) for one, size in zip(shape, filled, strict=True)) and not list(left) else None
    )


def _written(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
