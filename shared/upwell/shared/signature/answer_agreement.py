"""The rows of an answer: as a class with its probability, boxes or numbers; and whether they are right.

An answer is held against a label or against what the cloud says:

- Scores: the class is the one with the highest score (a single score from 1/2, as a logit from 0, is the second of
  two). With a label the class must be that one. Without labels it must be the cloud's; with several score vectors per
  row, at every position.
- Detections: both sides found the same objects, or one those of the labels. The boxes that score at least `box_score`
  on either side must pair off one to one, each pair of one class and with an intersection over union of at least 0.5
  (as PASCAL VOC counts a hit; Everingham et al. 2010). Pairs are made greedily, the cloud's best boxes first.
- Segments: over the pixels that both saw, the intersection over union of each class that either names is 0.75 in the
  mean (the measure of PASCAL VOC's segmentation, at COCO's stricter threshold of the two).

A score or box that is no finite number is never right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.signature.detections import overlap
from upwell.shared.signature.signature import LogicalOutput, OutputKind, Signature
from upwell.shared.tensors import Array


def label_of(number: int, labels: Sequence[str]) -> str:
    """The name of a class; its number if it has none."""
    return labels[number] if 0 <= number < len(labels) else str(number)


def best_class(values: Array, kind: OutputKind) -> tuple[int, float] | None:
    """The class with the highest probability, and that probability; None if a score is not finite.

    Logits become probabilities by softmax. A single score is that of the second of two classes, by the sigmoid if it is
    a logit.
    """
    values = values.astype(np.float64).ravel()
    if not values.size or not np.isfinite(values).all():
        return None
    if values.size == 1:
        share = float(values[0]) if kind == "probabilities" else 1 / (1 + math.exp(-np.clip(values[0], -700, 700)))
        return (1, share) if share >= 0.5 else (0, 1 - share)
    if kind == "logits":
        values = np.exp(values - values.max())
        values = values / values.sum()
    best = int(values.argmax())
    return best, float(values[best])


def found_boxes(values: Array) -> Array:
    """The detections [n, 6 or more] of a row, without empty slots and those that are not finite."""
    boxes = values.astype(np.float64).reshape(-1, values.shape[-1])
    found: Array = boxes[np.isfinite(boxes).all(axis=1) & (boxes[:, 5] >= 0)]
    return found


IOU = 0.5
"""Minimum intersection over union of two boxes of the same object."""

PIXELS_IOU = 0.75
"""Minimum mean intersection over union of the classes of two equal segmentations."""

_SCORE, _CLASS = 4, 5
_UNSEEN = 255


class Judge:
    """Judges the answers to one row of one model. Raises `ConfigError` for a model whose answers cannot be judged.

    `with_labels`: they are compared with a class per row.
    """

    def __init__(self, signature: Signature, *, box_score: float, with_labels: bool) -> None:
        kinds = {one.kind: one for one in reversed(signature.outputs)}
        scores = signature.scores
        output = scores or kinds.get("detections") or kinds.get("segments")
        if output is None:
            given = ", ".join(f"{one.name!r} ({one.kind})" for one in signature.outputs)
            raise ConfigError.at(
                None,
                f"correctness needs an output of probabilities, logits, detections or segments; this model gives "
                f"{given}, which cannot be compared",
            )
        if with_labels and (scores is None or _vectors(output, signature.has_rows) != 1):
            raise ConfigError.at(
                None, f"a label is one class per item, but {output.name!r} is more than that; leave it out to take the "
                "cloud's answers as correct", "--labels",
            )  # fmt: skip
        self.output = output
        self._has_rows = signature.has_rows
        self._box_score = box_score

    @property
    def classes(self) -> int:
        """The number of classes that a label may name, 0 if unknown."""
        if self.output.kind in ("detections", "segments"):
            return len(self.output.labels)
        last = self.output.spec.shape[-1]
        return 2 if last == 1 else max(last, 0)

    def is_label(self, outputs: Mapping[str, Array], label: int) -> bool:
        """Whether the answer names this class."""
        classes = self._classes_of(outputs)
        return classes is not None and bool((classes == label).all())

    def has_found(self, outputs: Mapping[str, Array], objects: Array) -> bool:
        """Whether the answer has detections of exactly these objects, FP64 [n, 6]."""
        return same_objects(self._row(outputs), objects, self._box_score)

    def agrees(self, edge: Mapping[str, Array], cloud: Mapping[str, Array]) -> bool:
        """Whether the edge answer agrees with the cloud's."""
        if self.output.kind == "detections":
            return same_objects(self._row(edge), self._row(cloud), self._box_score)
        if self.output.kind == "segments":
            return same_pixels(self._row(edge)[:, 0], self._row(cloud)[:, 0])
        ours, theirs = self._classes_of(edge), self._classes_of(cloud)
        return ours is not None and theirs is not None and np.array_equal(ours, theirs)

    def answer(self, outputs: Mapping[str, Array]) -> bytes:
        """The edge answer as bytes, equal for equal answers: its classes, or those of its boxes."""
        if self.output.kind == "detections":
            sure = _sure_boxes(self._row(outputs), self._box_score)
            return b"" if sure is None else np.sort(sure[:, _CLASS]).tobytes()
        if self.output.kind == "segments":
            return np.unique(self._row(outputs)[:, 0]).tobytes()
        classes = self._classes_of(outputs)
        return b"" if classes is None else classes.tobytes()

    def _row(self, outputs: Mapping[str, Array]) -> Array:
        array = outputs[self.output.name]
        row: Array = (array[0] if self._has_rows else array).astype(np.float64)
        return row.reshape(-1, row.shape[-1])

    def _classes_of(self, outputs: Mapping[str, Array]) -> Array | None:
        """The class at each position, None if a score is not finite."""
        values = self._row(outputs)
        if values.size == 0 or not np.isfinite(values).all():
            return None
        if values.shape[1] == 1:
            return (values[:, 0] >= (0.0 if self.output.kind == "logits" else 0.5)).astype(np.int64)
        best: Array = values.argmax(axis=1)
        return best


def same_objects(edge: Array, cloud: Array, box_score: float) -> bool:
    """Whether two sets of boxes [n, 6] show the same objects, by the rule at the top."""
    ours, theirs = (_sure_boxes(boxes, box_score) for boxes in (edge, cloud))
    if ours is None or theirs is None or len(ours) != len(theirs):
        return False
    return len(matched_boxes(ours, theirs)) == len(theirs)


def same_pixels(edge: Array, cloud: Array) -> bool:
    """Whether two sets of classes [pixels] show the same, by the rule at the top."""
    if edge.shape != cloud.shape:
        return False
    both = (edge != _UNSEEN) & (cloud != _UNSEEN)
    edge, cloud = edge[both], cloud[both]
    named = np.union1d(edge, cloud)
    shares = [((edge == one) & (cloud == one)).sum() / ((edge == one) | (cloud == one)).sum() for one in named]
    return bool(shares) and float(np.mean(shares)) >= PIXELS_IOU


def matched_boxes(ours: Array, theirs: Array) -> list[tuple[int, int]]:
    """The pairs of indexes of the boxes [n, 6] and [m, 6] that match by the rule at the top."""
    pairs = []
    free = np.ones(len(ours), dtype=np.bool_)
    for index in np.argsort(-theirs[:, _SCORE], kind="stable").tolist() if len(ours) else ():
        box = theirs[index]
        overlaps = np.where(free & (ours[:, _CLASS] == box[_CLASS]), overlap(ours[:, :4], box[:4]), -1.0)
        best = int(overlaps.argmax())
        if overlaps[best] >= IOU:
            free[best] = False
            pairs.append((best, index))
    return pairs


def _sure_boxes(boxes: Array, box_score: float) -> Array | None:
    is_box = ~(boxes[:, _CLASS] < 0)
    if not np.isfinite(boxes[is_box]).all():
        return None
    sure: Array = boxes[is_box & (boxes[:, _SCORE] >= box_score)]
    return sure


def _vectors(output: LogicalOutput, has_rows: bool) -> int:
    """The number of score vectors per row; -1 if variable."""
    count = 1
    for size in output.spec.shape[1 if has_rows else 0 : -1]:
        count = -1 if size < 0 else count * size
    return count
