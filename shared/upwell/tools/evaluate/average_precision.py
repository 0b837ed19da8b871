"""COCO's mean average precision of a detector's boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from upwell.shared.signature.detections import overlap

Floats = npt.NDArray[np.float64]

IOUS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
_MOST = 100


@dataclass(frozen=True)
class _Matches:
    """The matches of one class in one picture: the scores [n] of the boxes found, best first, whether each is a hit
    at each IoU [10, n], and the number of true boxes.
    """

    scores: Floats
    hits: npt.NDArray[np.bool_]
    positives: int


class CocoMatches:
    """The boxes of pictures matched to the true ones, for COCO's mean average precision (bbox, all areas).

    The expensive part is done once, for any sample of them.

    `found` has per picture boxes [n, 6] (x1, y1, x2, y2, score, class), `truth` [m, 5] (x1, y1, x2, y2, class).
    """

    def __init__(self, found: Sequence[Floats], truth: Sequence[Floats]) -> None:
        classes = sorted({int(one) for boxes in truth for one in boxes[:, 4]})
        self._classes = [[_match(*one, name) for one in zip(found, truth, strict=True)] for name in classes]

    def mean_average_precision(self, pictures: Sequence[int] | None = None) -> float:
        """The mean over occurring classes and IoU 0.50, 0.55, …, 0.95 of average precision; NaN without any true box.

        Over all pictures, or over these, each counted as often as it is named. For each class the boxes are taken by
        falling score; each matches the free true box with the largest overlap of at least the IoU. Precision is made
        non-increasing from the right and read at 101 recalls (Lin et al. 2014; as pycocotools 2.0 computes it).
        """
        values = []
        for matches in self._classes:
            chosen = matches if pictures is None else [matches[index] for index in pictures]
            positives = sum(one.positives for one in chosen)
            if positives:
                values.append(_average_precision(chosen, positives))
        return float(np.mean(values)) if values else float("nan")


def _match(ours: Floats, theirs: Floats, name: int) -> _Matches:
    true = theirs[theirs[:, 4] == name][:, :4]
    boxes = ours[ours[:, 5] == name]
    boxes = boxes[np.argsort(-boxes[:, 4], kind="mergesort")][:_MOST]
    return _Matches(boxes[:, 4], _hits(overlap(boxes[:, None, :4], true[None])), len(true))


def _average_precision(matches: Sequence[_Matches], positives: int) -> float:
    order = np.argsort(-np.concatenate([one.scores for one in matches]), kind="mergesort")
    values = []
    for row in np.concatenate([one.hits for one in matches], axis=1)[:, order]:
        true_positives = np.cumsum(row)
        recall = true_positives / positives
        precision = true_positives / np.arange(1, len(row) + 1)
        precision = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)  # beyond the last recall there is none
        values.append(precision[np.searchsorted(recall, _RECALLS, side="left")].mean())
    return float(np.mean(values))


def _hits(overlaps: Floats) -> npt.NDArray[np.bool_]:
    """Which boxes [n] of one picture, best score first, match a true one, at each IoU: [10, n]."""
    found = np.zeros((len(IOUS), len(overlaps)), dtype=np.bool_)
    for level, iou in enumerate(IOUS):
        free = np.ones(overlaps.shape[1], dtype=np.bool_)
        for box, row in enumerate(overlaps):
            best, match = min(iou, 1 - 1e-10), -1
            for other in np.flatnonzero(free):
                if row[other] >= best:  # ties go to the last one, as in pycocotools
                    best, match = row[other], int(other)
            if match >= 0:
                free[match] = False
                found[level, box] = True
    return found
