"""Raw boxes and scores of a detector -> detections: choose, suppress what overlaps, bring back to the original picture.

A detection is six FP32 numbers: x1, y1, x2, y2 as fractions of the original picture, score, class. Slots that hold
none are zeros with class -1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from upwell.shared.signature.keys import Boxes
from upwell.shared.signature.values import Floats, Geometry
from upwell.shared.tensors import Array

Indexes = npt.NDArray[np.intp]

FIELDS = 6
"""Numbers per detection."""


def detect(op: Boxes, boxes: Array, scores: Array, classes: Array | None, geometry: Geometry | None) -> Array:
    """Boxes [rows, n, 4] and scores [rows, n, classes] (or [rows, n] with `classes` [rows, n]) -> FP32 [rows, max, 6].

    Boxes that are not finite, have no area or lie outside the picture are left out. Without a geometry the boxes
    must be fractions of the picture.
    """
    found = np.zeros((len(boxes), op.max, FIELDS), dtype=np.float32)
    found[:, :, 5] = -1
    for row in range(len(boxes)):
        best, labels = _best(scores[row], None if classes is None else classes[row], op.background)
        corners = to_corners(boxes[row].astype(np.float64), op.format)
        usable = (best >= op.min_score) & (labels != op.background) & np.isfinite(corners).all(axis=1) & _solid(corners)
        corners, best, labels = corners[usable], best[usable], labels[usable]
        kept = suppress(corners, best, labels, op.iou, op.max)
        fractions = _fractions(corners[kept], row, op.normalized, geometry)
        kept, fractions = kept[_solid(fractions)], fractions[_solid(fractions)]
        found[row, : len(kept)] = np.column_stack((fractions, best[kept], labels[kept]))
    return found


def _solid(corners: Floats) -> npt.NDArray[np.bool_]:
    return (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])


def _fractions(corners: Floats, row: int, normalized: bool, geometry: Geometry | None) -> Floats:
    if geometry is None:
        return np.clip(corners, 0.0, 1.0)
    return geometry.to_original(corners, row, normalized)


def to_corners(boxes: Floats, form: str) -> Floats:
    """Boxes [n, 4] as x1, y1, x2, y2 from cxcywh, xyxy or yxyx."""
    if form == "cxcywh":
        half = boxes[:, 2:] / 2
        return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)
    return boxes[:, [1, 0, 3, 2]] if form == "yxyx" else boxes


def suppress(boxes: Floats, scores: Array, classes: Array, iou: float, most: int) -> Indexes:
    """Non-maximum suppression within each class: the indexes kept, best first, at most `most`.

    Greedy (Felzenszwalb et al. 2010, "Object detection with discriminatively trained part-based models", 4.4): the
    best box left is kept, and the boxes of its class whose intersection over union with it is more than `iou` go.
    Of equal scores the one with the lower index counts as better. O(kept * n) time, O(n) memory.
    """
    order = np.argsort(-scores, kind="stable")
    boxes, classes = boxes[order], classes[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    alive = np.ones(len(order), dtype=np.bool_)
    kept: list[int] = []
    while len(kept) < most and alive.any():
        best = int(alive.argmax())
        kept.append(best)
        sides = np.minimum(boxes[:, 2:], boxes[best, 2:]) - np.maximum(boxes[:, :2], boxes[best, :2])
        overlap = np.clip(sides, 0.0, None).prod(axis=1)
        alive &= (classes != classes[best]) | (overlap <= iou * (areas + areas[best] - overlap))
        alive[best] = False
    return order[kept]


def _best(scores: Array, classes: Array | None, background: int | None) -> tuple[Array, Array]:
    """Each box's score and class: the highest class score, NaN counting as none, or what the model itself says."""
    clean = np.where(np.isnan(scores), -np.inf, scores)
    if classes is not None:
        known = np.isfinite(classes)
        return np.where(known, clean, -np.inf), np.where(known, classes, -1).astype(np.int64)
    if background is not None:
        clean[:, background] = -np.inf
    labels = clean.argmax(axis=1)
    return np.take_along_axis(clean, labels[:, None], axis=1)[:, 0], labels
