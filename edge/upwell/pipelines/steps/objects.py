"""Operations on the objects of a frame that several steps share: selection, and overlap of boxes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import numpy as np

from upwell.pipelines.frame import FoundObject
from upwell.shared.tensors import Array

LOST_S = 2.0
"""Default time for which a lost track is searched."""


def keep(
    objects: Iterable[FoundObject], labels: Collection[str] | None = None, min_score: float = 0.0
) -> tuple[FoundObject, ...]:
    """The objects with one of these labels (None: any) and at least this score. A score that is NaN never passes."""
    return tuple(found for found in objects if (labels is None or found.label in labels) and found.score >= min_score)


def has_area(found: FoundObject) -> bool:
    """Whether its box is finite and not empty, so that overlaps with it are defined."""
    x1, y1, x2, y2 = found.box
    return x1 < x2 and y1 < y2 and math.isfinite(x2 - x1) and math.isfinite(y2 - y1)


def iou(boxes: Array, others: Array) -> Array:
    """Intersection over union of each box [n, 4] with each of the others [m, 4], as [n, m]; all have an area."""
    left_top = np.maximum(boxes[:, None, :2], others[None, :, :2])
    right_bottom = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.prod(np.maximum(right_bottom - left_top, 0.0), axis=2)
    areas, other_areas = (np.prod(some[:, 2:] - some[:, :2], axis=1) for some in (boxes, others))
    union = areas[:, None] + other_areas[None, :] - shared
    shares: Array = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return shares
