"""Raw boxes of a detector -> detections.

A detection begins with six FP32 numbers: x1, y1, x2, y2 as fractions of the original picture, score, class. Empty slots
are zeros with class -1. Then come, if anything, K keypoints as x, y and score, or the four corners of a rotated box,
whose bounding box the first four numbers are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from upwell.shared.signature.step_values import Candidates, Detections, Floats, Geometry
from upwell.shared.tensors import Array
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:
    from upwell.shared.signature.model_yaml import Boxes

Indexes = npt.NDArray[np.intp]

FIELDS = 6
"""Minimum numbers per detection."""
CORNERS = 8
"""Additional numbers of a rotated box."""
KEYPOINT = 3
"""Additional numbers per keypoint."""

CANDIDATE_SCORE = 0.1
"""Minimum score of a candidate: detectors give thousands of boxes with lower scores for any picture."""

MOST_CANDIDATES = 256
"""Maximum candidates per row, those with the highest scores."""

_TINY = 1e-7


@value_class
class RawBoxes:
    """The raw outputs of a detector: `boxes` [rows, n, 4], `scores` [rows, n, classes], or [rows, n] with `classes`
    [rows, n].

    `further` [rows, n, numbers] are additional numbers of each box: an angle in radians, keypoints, or the coefficients
    of the `prototypes` [rows, numbers, height, width] for its mask.
    """

    boxes: Array
    scores: Array
    classes: Array | None = None
    further: Array | None = None
    prototypes: Array | None = None


def is_detections(last: int) -> bool:
    """Whether a detection can have `last` numbers."""
    return last in (FIELDS, FIELDS + CORNERS) or (last > FIELDS and (last - FIELDS) % KEYPOINT == 0)


def has_keypoints(last: int) -> bool:
    """Whether detections with `last` numbers have keypoints."""
    return last > FIELDS and last != FIELDS + CORNERS


def further_numbers(op: Boxes) -> int:
    """Number of values of a detection beyond the first six."""
    if op.angle:
        return CORNERS
    return KEYPOINT * op.keypoints[0] if op.keypoints is not None else 0


def detect(op: Boxes, raw: RawBoxes, geometry: Geometry | None) -> tuple[Detections, Array | None]:
    """Detections FP32 [rows, max, numbers], and with prototypes the masks of each row, UINT8 [rows, height, width].

    Boxes that are not finite, have no area or lie outside the picture are left out. Without a geometry the boxes
    must be fractions of the picture.
    """
    found = np.zeros((len(raw.boxes), op.max, FIELDS + further_numbers(op)), dtype=np.float32)
    found[:, :, 5] = -1
    candidates, masks = [], []
    for row in range(len(raw.boxes)):
        best, labels = _best(raw.scores[row], None if raw.classes is None else raw.classes[row], op.background)
        possible = np.flatnonzero((best >= min(CANDIDATE_SCORE, op.min_score)) & (labels != op.background))
        further = raw.further[row][possible].astype(np.float64) if raw.further is not None else np.empty((0, 0))
        boxes = _boxes(op, raw.boxes[row][possible].astype(np.float64), further, row, geometry)
        usable = np.isfinite(boxes).all(axis=1) & _solid(boxes)
        best, labels = best[possible], labels[possible]
        has_nan = bool(np.isnan(raw.scores[row].min(initial=0.0)))
        candidates.append(
            replace(_candidates(boxes[usable], best[usable], labels[usable], op.min_score), has_nan=has_nan)
        )
        shown = np.flatnonzero(usable & (best >= op.min_score))
        kept = shown[suppress(boxes[shown], best[shown], labels[shown], op.iou, op.max)]
        placed = _placed(op, boxes[kept], further[kept] if further.size else further, row, geometry)
        inside = _solid(placed[:, :4])
        kept, placed = kept[inside], placed[inside]
        numbers = np.column_stack((placed[:, :4], best[kept], labels[kept], placed[:, 4:]))
        found[row, : len(kept)] = numbers
        if raw.prototypes is not None and geometry is not None:
            masks.append(_mask(raw.prototypes[row], further[kept], boxes[kept], row, (op.normalized, geometry)))
    return Detections(found, candidates), np.stack(masks) if masks else None


def as_candidates(found: Array) -> list[Candidates]:
    """The candidates of detections [n, 6 or more] from an unknown suppression: the detections themselves."""
    candidates = []
    for row in found.astype(np.float64):
        boxes = row[(row[:, 5] >= 0) & np.isfinite(row).all(axis=1)]
        boxes = boxes[_solid(boxes[:, :4])]
        candidates.append(_candidates(boxes[:, :4], boxes[:, 4], boxes[:, 5].astype(np.int64), 0.0))
    return candidates


def _candidates(boxes: Floats, scores: Array, classes: Array, min_score: float) -> Candidates:
    order = np.argsort(-scores, kind="stable")[:MOST_CANDIDATES]
    order = order[scores[order] >= CANDIDATE_SCORE]
    return Candidates(boxes[order], scores[order].astype(np.float64), classes[order], min_score)


def grouped(candidates: Candidates, iou: float) -> tuple[Floats, Floats, Floats, Floats]:
    """The groups of candidates that `suppress` would form: the best score of each, how well the boxes of its class that
    overlap the best one agree, how much they support it, and its decay by better boxes of any class.

    Agreement is their mean overlap (IoU) with the best one, itself included, weighted by score. Support is the sum of
    their scores, relative to the best: 1 for a single box. A box counts for every group whose best it overlaps, also
    one that scores higher than that best. The decay is the least 1 − o (1 − s / sᵢ) over boxes with scores sᵢ above the
    best one's s, o being the intersection over the smaller area: 1 where no better box shares the place, s / sᵢ inside
    one (after the linear decay of Bodla et al. 2017, "Soft-NMS", arXiv 1704.04503). All are FP64 [groups].
    """
    boxes, scores, classes = candidates.boxes, candidates.scores, candidates.classes
    overlaps = overlap(boxes[:, None], boxes)
    is_same = (overlaps > iou) & (classes[:, None] == classes)
    best: list[int] = []
    free = np.ones(len(scores), dtype=np.bool_)
    for index in range(len(scores)):  # in order, which is best first
        if free[index]:
            best.append(index)
            free &= ~is_same[index]
    weights = is_same[best] * scores
    sums = weights.sum(axis=1)
    areas = boxes[:, 2] * boxes[:, 3] if boxes.shape[1] == 5 else (boxes[:, 2:4] - boxes[:, :2]).prod(axis=1)
    one, other, common = areas[best][:, None], areas, overlaps[best]
    shares = np.minimum(common / (1 + common) * (one + other) / np.minimum(one, other), 1)
    decays = (1 - shares * (1 - np.minimum(scores[best][:, None] / scores, 1))).min(axis=1, initial=1)
    return scores[best], (weights * common).sum(axis=1) / sums, sums / scores[best], decays


def _solid(boxes: Floats) -> npt.NDArray[np.bool_]:
    """Which boxes have an area: corners [n, 4], or centre, size and angle [n, 5]."""
    if boxes.shape[1] == 5:
        return (boxes[:, 2] > 0) & (boxes[:, 3] > 0)
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def _boxes(op: Boxes, boxes: Floats, further: Floats, row: int, geometry: Geometry | None) -> Floats:
    """Corners [n, 4], or for rotated boxes centre, size and angle [n, 5] in the model's pixels."""
    if not op.angle:
        return to_corners(boxes, op.format)
    if op.normalized and geometry is not None:  # angles are undefined if width and height have different units
        boxes = boxes * np.tile(geometry.size[row], 2)
    return np.concatenate((boxes, further[:, :1]), axis=1)


def _placed(op: Boxes, boxes: Floats, further: Floats, row: int, geometry: Geometry | None) -> Floats:
    """Boxes and their further numbers in the original picture, FP64 [n, 4 + further numbers]."""
    if op.angle:
        turned = corners_of(boxes)
        turned = turned if geometry is None else geometry.points(turned, row, normalized=False)
        around = np.concatenate((turned.min(axis=1), turned.max(axis=1)), axis=1)
        return np.concatenate((np.clip(around, 0.0, 1.0), turned.reshape(-1, CORNERS)), axis=1)
    fractions = np.clip(boxes, 0.0, 1.0) if geometry is None else geometry.to_original(boxes, row, op.normalized)
    if op.keypoints is None:
        return fractions
    count, numbers = op.keypoints
    points = further.reshape(-1, count, numbers)
    places = points[:, :, :2] if geometry is None else geometry.points(points[:, :, :2], row, op.normalized)
    sure = points[:, :, 2:] if numbers == KEYPOINT else np.ones((*points.shape[:2], 1))
    found = np.nan_to_num(np.concatenate((np.clip(places, 0.0, 1.0), sure), axis=2))
    return np.concatenate((fractions, found.reshape(len(boxes), count * KEYPOINT)), axis=1)


def _mask(prototypes: Array, parts: Floats, boxes: Floats, row: int, place: tuple[bool, Geometry]) -> Array:
    """The detection of each pixel of the original, from 1 on, 0 for none: UINT8 [height, width].

    The mask of a detection is where Σ partᵢ · prototypeᵢ > 0 inside its box (Bolya et al. 2019, YOLACT, arXiv
    1904.02689). Prototypes are sampled bilinearly at the centre of each pixel; where masks overlap, the best detection
    wins.
    """
    normalized, geometry = place
    count, *shape = prototypes.shape
    grid, weights = [], []
    for axis, size in ((1, shape[0]), (0, shape[1])):
        fractions = (np.arange(size) + 0.5) / size
        pixels = fractions * geometry.original[row, axis] * geometry.scale[row, axis] + geometry.offset[row, axis]
        grid.append(pixels / geometry.size[row, axis])
        at = np.clip(grid[-1] * size - 0.5, 0, size - 1)
        low = np.minimum(at.astype(np.int64), max(size - 2, 0))
        weight = np.zeros((size, size), np.float32)
        weight[np.arange(size), low] = 1 - (at - low)
        weight[np.arange(size), np.minimum(low + 1, size - 1)] += at - low
        weights.append(weight)
    sampled = (weights[0] @ prototypes.astype(np.float32) @ weights[1].T).reshape(count, -1)
    corners = boxes if normalized else boxes / np.tile(geometry.size[row], 2)
    mask = np.zeros(tuple(shape), np.uint8)
    for number in range(len(parts) - 1, -1, -1):
        x1, y1, x2, y2 = corners[number]
        inside = ((grid[0] >= y1) & (grid[0] < y2))[:, None] & ((grid[1] >= x1) & (grid[1] < x2))
        part = (parts[number].astype(np.float32) @ sampled).reshape(mask.shape)
        mask[inside & (part > 0)] = number + 1
    return mask


def to_corners(boxes: Floats, form: str) -> Floats:
    """Boxes [n, 4] as x1, y1, x2, y2 from cxcywh, xyxy or yxyx."""
    if form == "cxcywh":
        half = boxes[:, 2:] / 2
        return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)
    return boxes[:, [1, 0, 3, 2]] if form == "yxyx" else boxes


def corners_of(turned: Floats) -> Floats:
    """The corners [n, 4, 2] of boxes [n, 5]: centre, width, height, and the angle of the width in radians."""
    cosine, sine = np.cos(turned[:, 4]), np.sin(turned[:, 4])
    along = np.stack((turned[:, 2] * cosine, turned[:, 2] * sine), axis=1) / 2
    across = np.stack((-turned[:, 3] * sine, turned[:, 3] * cosine), axis=1) / 2
    middle = turned[:, :2]
    near, far = middle - across, middle + across
    return np.stack((near - along, near + along, far + along, far - along), axis=1)


def overlap(boxes: Floats, others: Floats) -> Floats:
    """The intersection over union of boxes [..., 4] with others, broadcast: 0 where neither has an area.

    With an angle, [..., 5], it is `probiou`.
    """
    if boxes.shape[-1] == 5:
        return probiou(boxes, others)
    sides = np.minimum(boxes[..., 2:], others[..., 2:]) - np.maximum(boxes[..., :2], others[..., :2])
    shared = np.clip(sides, 0.0, None).prod(axis=-1)
    areas, of_others = ((one[..., 2] - one[..., 0]) * (one[..., 3] - one[..., 1]) for one in (boxes, others))
    union = areas + of_others - shared
    result: Floats = np.divide(shared, union, out=np.zeros_like(union), where=union > 0)
    return result


def probiou(boxes: Floats, others: Floats) -> Floats:
    """1 − H, with H the Hellinger distance of the normal distributions with the moments of two rotated boxes.

    In 0..1, and 1 for equal boxes: H² = 1 − exp(−B), with B the Bhattacharyya distance ¼ (Δμᵀ Σ⁻¹ Δμ) + ½ ln(|Σ| / (4
    √(|Σ₁| |Σ₂|))), Σ = Σ₁ + Σ₂ (Llerena et al. 2021, arXiv 2106.06072). Detectors of rotated boxes are trained and
    suppressed with it; unlike the overlap of polygons it is a single formula for all boxes.
    """
    a, b, c = _covariance(boxes)
    one_a, one_b, one_c = _covariance(others)
    x, y = boxes[..., 0] - others[..., 0], boxes[..., 1] - others[..., 1]
    a, b, c, own = a + one_a, b + one_b, c + one_c, (a * b - c * c) * (one_a * one_b - one_c * one_c)
    whole = np.maximum(a * b - c * c, _TINY**2)
    apart = (a * y * y + b * x * x - 2 * c * x * y) / whole / 4
    shape = np.log(whole / (4 * np.sqrt(np.maximum(own, _TINY**4)))) / 2
    result: Floats = 1 - np.sqrt(1 - np.exp(-np.maximum(apart + shape, 0)))
    return result


def _covariance(boxes: Floats) -> tuple[Floats, Floats, Floats]:
    """Variances of x and y and their covariance for a uniformly filled box [..., 5]: w²/12 along its width, h²/12
    across."""
    along, across = boxes[..., 2] ** 2 / 12, boxes[..., 3] ** 2 / 12
    cosine, sine = np.cos(boxes[..., 4]), np.sin(boxes[..., 4])
    return (
        along * cosine**2 + across * sine**2,
        along * sine**2 + across * cosine**2,
        (along - across) * cosine * sine,
    )


def suppress(boxes: Floats, scores: Array, classes: Array, iou: float, most: int) -> Indexes:
    """Non-maximum suppression within each class: the indexes kept, best first, at most `most`.

    Greedy (Felzenszwalb et al. 2010, "Object detection with discriminatively trained part-based models", 4.4): the best
    remaining box is kept, and boxes of its class whose overlap with it exceeds `iou` are dropped. Of equal scores the
    one with the lower index counts as better. O(kept * n) time, O(n) memory.
    """
    order = np.argsort(-scores, kind="stable")
    boxes, classes = boxes[order], classes[order]
    alive = np.ones(len(order), dtype=np.bool_)
    kept: list[int] = []
    while len(kept) < most and alive.any():
        best = int(alive.argmax())
        kept.append(best)
        alive &= (classes != classes[best]) | (overlap(boxes, boxes[best]) <= iou)
        alive[best] = False
    return order[kept]


def _best(scores: Array, classes: Array | None, background: int | None) -> tuple[Array, Array]:
    """Each box's score and class: the highest class score (NaN counts as none), or the class given by the model."""
    clean = np.where(np.isnan(scores), -np.inf, scores)
    if classes is not None:
        known = np.isfinite(classes)
        return np.where(known, clean, -np.inf), np.where(known, classes, -1).astype(np.int64)
    if background is not None:
        clean[:, background] = -np.inf
    labels = clean.argmax(axis=1)
    return np.take_along_axis(clean, labels[:, None], axis=1)[:, 0], labels
