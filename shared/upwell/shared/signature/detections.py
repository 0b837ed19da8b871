"""Raw boxes and scores of a detector -> detections: choose, suppress what overlaps, bring back to the original picture.

A detection is six FP32 numbers: x1, y1, x2, y2 as fractions of the original picture, score, class. Slots that hold
none are zeros with class -1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from upwell.shared.signature.keys import Boxes
from upwell.shared.signature.values import Candidates, Detections, Floats, Geometry
from upwell.shared.tensors import Array

Indexes = npt.NDArray[np.intp]

FIELDS = 6
"""Numbers per detection."""


CANDIDATE_SCORE = 0.1
"""A box with a lower score is no candidate: detectors give thousands of those to any picture."""

MOST_CANDIDATES = 256
"""Candidates kept of a row, those of the highest scores."""


def detect(op: Boxes, boxes: Array, scores: Array, classes: Array | None, geometry: Geometry | None) -> Detections:
    """Boxes [rows, n, 4] and scores [rows, n, classes] (or [rows, n] with `classes` [rows, n]) -> FP32 [rows, max, 6].

    Boxes that are not finite, have no area or lie outside the picture are left out. Without a geometry the boxes
    must be fractions of the picture.
    """
    found = np.zeros((len(boxes), op.max, FIELDS), dtype=np.float32)
    found[:, :, 5] = -1
    candidates = []
    for row in range(len(boxes)):
        best, labels = _best(scores[row], None if classes is None else classes[row], op.background)
        possible = np.flatnonzero((best >= min(CANDIDATE_SCORE, op.min_score)) & (labels != op.background))
        corners = to_corners(boxes[row][possible].astype(np.float64), op.format)
        usable = np.isfinite(corners).all(axis=1) & _solid(corners)
        possible, corners = possible[usable], corners[usable]
        best, labels = best[possible], labels[possible]
        candidates.append(_candidates(corners, best, labels, op.min_score))
        shown = best >= op.min_score
        corners, best, labels = corners[shown], best[shown], labels[shown]
        kept = suppress(corners, best, labels, op.iou, op.max)
        fractions = _fractions(corners[kept], row, op.normalized, geometry)
        kept, fractions = kept[_solid(fractions)], fractions[_solid(fractions)]
        found[row, : len(kept)] = np.column_stack((fractions, best[kept], labels[kept]))
    return Detections(found, candidates)


def as_candidates(found: Array) -> list[Candidates]:
    """The candidates of detections [rows, n, 6] of which nobody knows what was suppressed: they themselves."""
    candidates = []
    for row in found.astype(np.float64):
        boxes = row[(row[:, 5] >= 0) & np.isfinite(row).all(axis=1)]
        boxes = boxes[_solid(boxes)]
        candidates.append(_candidates(boxes[:, :4], boxes[:, 4], boxes[:, 5].astype(np.int64), 0.0))
    return candidates


def _candidates(corners: Floats, scores: Array, classes: Array, min_score: float) -> Candidates:
    order = np.argsort(-scores, kind="stable")[:MOST_CANDIDATES]
    order = order[scores[order] >= CANDIDATE_SCORE]
    return Candidates(corners[order], scores[order].astype(np.float64), classes[order], min_score)


def grouped(candidates: Candidates, iou: float) -> tuple[Floats, Floats]:
    """The candidates in groups as `suppress` makes them: the best score of each group, and how well its boxes agree.

    That is the mean overlap (IoU) of its boxes with the best one, which is among them, weighted by their scores. Both
    are FP64 [groups].
    """
    boxes, scores, classes = candidates.boxes, candidates.scores, candidates.classes
    sides = np.minimum(boxes[:, None, 2:], boxes[:, 2:]) - np.maximum(boxes[:, None, :2], boxes[:, :2])
    shared = np.clip(sides, 0.0, None).prod(axis=2)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    overlaps = shared / (areas[:, None] + areas - shared)
    is_same = (overlaps > iou) & (classes[:, None] == classes)
    best: list[int] = []
    free = np.ones(len(scores), dtype=np.bool_)
    for index in range(len(scores)):  # the best first, as they stand
        if free[index]:
            best.append(index)
            free &= ~is_same[index]
    weights = is_same[best] * scores
    return scores[best], (weights * overlaps[best]).sum(axis=1) / weights.sum(axis=1)


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
