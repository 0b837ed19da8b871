"""Where a picture's pixels went on their way to the model, to bring boxes back to the original."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Geometry:
    """One map per row: model pixel = original pixel * scale + offset, each as [x, y].

    `original` and `size` are [width, height] in pixels before and after; all arrays are FP64 [rows, 2]. The original
    is the picture as it is meant to be seen: EXIF orientation applied.
    """

    original: Floats
    size: Floats
    scale: Floats
    offset: Floats

    @classmethod
    def of(cls, sizes: list[tuple[int, int]]) -> Geometry:
        """Pictures of these (width, height), untouched."""
        original = np.array(sizes, dtype=np.float64).reshape(-1, 2)
        return cls(original, original, np.ones_like(original), np.zeros_like(original))

    def then(self, scale: Floats, offset: Floats, size: Floats) -> Geometry:
        """Followed by another map of the same form, that ends in pictures of `size`."""
        return Geometry(self.original, size, self.scale * scale, self.offset * scale + offset)

    def to_original(self, boxes: Floats, row: int, normalized: bool) -> Floats:
        """Boxes [n, 4] as x1, y1, x2, y2 in the model's picture -> fractions of the original, clipped to it.

        The model's boxes are in pixels, or in fractions of its picture where `normalized`.
        """
        corners = boxes.reshape(-1, 2, 2)
        if normalized:
            corners = corners * self.size[row]
        fractions = (corners - self.offset[row]) / self.scale[row] / self.original[row]
        clipped: Floats = np.clip(fractions, 0.0, 1.0).reshape(-1, 4)
        return clipped
