"""Whether a frame shows anything new, judged by its brightness alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from upwell.pipelines.frame import Frame
from upwell.pipelines.steps.geometry import Polygon, contains
from upwell.shared.tensors import Array

CELL_PIXELS = 8
"""Side of a cell of a small picture, in pixels."""

CELLS_ACROSS = 160
"""Cells along the longer side of a large picture."""

DIFFERENT_LEVELS = 10.0
"""Levels of brightness, of 255, by which a cell must differ."""


class ChangeDetector:
    """Lets a frame through if enough of it differs from the last frame that was let through and answered.

    It compares the mean brightness of cells of at least 8 × 8 pixels. The noise of a sensor is independent from pixel
    to pixel, so the mean of a cell has an eighth of it, and the difference of two means √2 eighths: at a standard
    deviation of 10 levels per pixel, which is a bad camera at night, that is 1.8. A cell counts as different from 10
    levels on, more than 5 standard deviations away, so noise alone makes less than one in a million differ. An object
    that differs from its background by 40 levels counts if it fills a quarter of a cell.

    It compares with the last frame let through, not with the previous one: motion too slow to be seen from frame to
    frame adds up until it is seen. The remainder at the right and at the bottom, less than a cell, is ignored.

    `above` is a share of the cells, from 0 to 1: more than this must differ. If `at_least_s` is given, a frame is let
    through that long after the last one, whatever it shows. `ignore` are polygons in fractions of the picture: a cell
    whose centre is in one of them neither differs nor counts.
    """

    def __init__(self, above: float, at_least_s: float | None, ignore: Sequence[Polygon] = ()) -> None:
        self._above, self._at_least_s, self._ignore = above, at_least_s, ignore
        self._shape: tuple[int, ...] = ()
        self._looked_at = np.zeros((0, 0), np.bool_)
        self._last, self._last_s = np.zeros((0, 0)), 0.0
        self._former: tuple[tuple[int, ...], Array, Array, float] = (), self._looked_at, self._last, 0.0

    def is_changed(self, frame: Frame) -> bool:
        """Whether to let the frame through: the first one, one of another size, one that differs, or one that
        is due.
        """
        means = _means(frame.luma)
        former = self._shape, self._looked_at, self._last, self._last_s
        if frame.luma.shape != self._shape:
            self._shape, self._looked_at = frame.luma.shape, self._mask(frame.luma.shape, means.shape)
        elif not self._differs(means) and not self._is_due(frame.at_s):
            return False
        self._former, self._last, self._last_s = former, means, frame.at_s
        return True

    def forget(self) -> None:
        """The last frame let through was not answered: compare with the one let through before it again."""
        self._shape, self._looked_at, self._last, self._last_s = self._former

    def _differs(self, means: Array) -> bool:
        different = (np.abs(means - self._last) >= DIFFERENT_LEVELS) & self._looked_at
        return int(different.sum()) > self._above * int(self._looked_at.sum())

    def _is_due(self, at_s: float) -> bool:
        return self._at_least_s is not None and at_s - self._last_s >= self._at_least_s

    def _mask(self, shape: tuple[int, ...], cells: tuple[int, ...]) -> Array:
        """Which cells [rows, columns] are compared."""
        side = _cell_pixels(shape)
        mask = np.ones(cells, np.bool_)
        if self._ignore:
            for row, column in np.ndindex(mask.shape):
                middle = ((column + 0.5) * side / shape[1], (row + 0.5) * side / shape[0])
                mask[row, column] = not any(contains(polygon, middle) for polygon in self._ignore)
        return mask


def _cell_pixels(shape: tuple[int, ...]) -> int:
    return min(*shape, max(CELL_PIXELS, -(-max(shape) // CELLS_ACROSS)))


def _means(luma: Array) -> Array:
    """Mean brightness of the cells, float32 [rows, columns], of a picture uint8 [height, width]."""
    side = _cell_pixels(luma.shape)
    rows, columns = luma.shape[0] // side, luma.shape[1] // side
    strips = luma[: rows * side, : columns * side].reshape(rows, side, columns * side).sum(axis=1, dtype=np.uint32)
    sums: Array = strips.reshape(rows, columns, side).sum(axis=2)
    return sums.astype(np.float32) / side**2
