"""Hides what must not be seen, irreversibly."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from upwell.pipelines.frame import Box
from upwell.shared.tensors import Array

CELLS = 4
"""Number of cells along the longer side of a blurred box."""

_LEVELS = 16
"""Step between the levels of a cell: 16 levels per colour."""


def blur(pixels: Array, boxes: Iterable[Box], margin: float = 0.1) -> Array:
    """A copy of uint8 [height, width, 3] in which the boxes cannot be recognised; `pixels` stays unchanged.

    A blur alone is a linear filter, which can largely be undone, and mosaics of 8 × 8 to 16 × 16 cells are enough for
    a network to recognise faces (McPherson et al. 2016, arXiv 1609.00408). So each box becomes the means of at most 4
    × 4 cells, whatever its size, in steps of 16 levels. At most 16 · 3 numbers of 4 bits are left of it, and hardly
    more of many frames of it, since the steps hide small changes. Only then is it blurred, so that no cell edges draw
    the eye; the blur adds no information to those numbers.

    `margin` is what is hidden around a box on each side, as a share of its width and height. A box is extended
    outwards to whole pixels. A box with a number that is not finite hides the whole picture: nothing must be seen by
    mistake.
    """
    height, width = pixels.shape[:2]
    hidden: Array = pixels.copy()
    for box in boxes:
        if all(map(math.isfinite, box)):
            columns = _span(box[0], box[2], margin, width)
            rows = _span(box[1], box[3], margin, height)
        else:
            columns, rows = slice(0, width), slice(0, height)
        if columns.start < columns.stop and rows.start < rows.stop:
            # Computed on what is already hidden, so that overlapping boxes reveal no more together than each by
            # itself.
            hidden[rows, columns] = _mosaic(hidden[rows, columns])
    return hidden


def _span(start: float, end: float, margin: float, size: int) -> slice:
    """The pixels of a side, from fractions. Positions far off the picture are clipped to just beside it."""
    start, end = sorted(min(max(edge, -1.0), 2.0) for edge in (start, end))
    around = margin * (end - start)
    first, last = (min(max(edge * size, 0.0), float(size)) for edge in (start - around, end + around))
    return slice(math.floor(first), math.ceil(last))


def _mosaic(part: Array) -> Array:
    """The mosaic of a part of a picture, uint8 [rows, columns, 3]."""
    rows, columns = part.shape[:2]
    side = -(-max(rows, columns) // CELLS)
    row_starts, column_starts = np.arange(0, rows, side), np.arange(0, columns, side)
    sums = np.add.reduceat(np.add.reduceat(part.astype(np.uint32), row_starts, axis=0), column_starts, axis=1)
    counts = np.outer(np.diff([*row_starts, rows]), np.diff([*column_starts, columns]))
    levels = sums // counts[:, :, None] // _LEVELS * _LEVELS + _LEVELS // 2
    # Running means over constant cells are weighted sums of the cells, row by row and column by column.
    row_weights, column_weights = _weights(rows, side), _weights(columns, side)
    strips = (row_weights @ levels.reshape(len(levels), -1)).reshape(rows, -1, 3)
    blurred: Array = np.rint(column_weights @ strips).astype(np.uint8)
    return blurred


def _weights(size: int, side: int) -> Array:
    """The weight of each cell in the running mean around each of `size` pixels, [size, cells]; the end cells extend
    outwards.
    """
    cells = np.repeat(np.eye(-(-size // side)), side, axis=0)[:size]
    half = side // 2
    sums = np.cumsum(np.pad(cells, ((half + 1, half), (0, 0)), mode="edge"), axis=0)
    means: Array = (sums[2 * half + 1 :] - sums[: -2 * half - 1]) / (2 * half + 1)
    return means
