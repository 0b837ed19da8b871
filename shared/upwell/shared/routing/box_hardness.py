"""How unsure a detector is of what it found in a picture, from its boxes and from what it took for possible.

A row of detections is [boxes, 6 or more]: x1, y1, x2, y2, score, class; a slot with a negative class holds no box.
Of these, with sᵢ the scores of the k boxes:

- `mean_score`: Σ sᵢ / k, 0 without any box (as in KubeEdge Sedna; the average of Brust et al. 2019, arXiv 1809.09875).
  Hard when below.
- `low_share`: the share of boxes with sᵢ below `box_score`, 0 without any box (Sedna's IBT). Hard when above.
  With keypoints their scores are counted in place of the boxes'.
- `count`: k. Hard when above: the more objects, the harder the picture (Ionescu et al. 2016, arXiv 1705.08280).

The others read the candidates: boxes before suppression and below `min_score`, from a score of 0.1 up. They are grouped
as suppression does it, a best box and those of its class that overlap it by more than 0.45; j counts the groups. The
score s of the best becomes the chance that there is an object, pⱼ, by a line from 0 over 1/2 at t to 1, where t is
`box_score`, or `min_score` where that is higher: so the boxes that an answer is judged by are those with p ≥ 1/2. Below
1/2 it is multiplied by its decay by better boxes of any class at its place (`grouped`), since most candidates there are
parts or second readings of one object. The chances are moved to σ(a logit(pⱼ) / T + b + c ln mⱼ), with a temperature T
and a bias b (Platt 1999, "Probabilistic outputs for support vector machines"), a = 1 where the box is shown and a slope
of its own where it is not (then at least to σ(logit(pⱼ) − 3), so that weak candidates keep their order where nothing
else is doubtful), and a weight c of the support mⱼ, the sum of the scores of all boxes of its class that overlap the
best one, relative to that (as the number of suppressed boxes in the logistic regression of Schubert et al. 2021,
"MetaDetect", arXiv 2010.01695). A box supports every group whose best it overlaps, so a weak one beside a strong one
has much support, and a negative c takes it for a part of that object: if each box counts for one group only, c is worth
less. Without a calibration a is 8 and b is 1.5 (T = 1, c = 0): a larger detector finds more objects than it takes away,
and these lie close below the threshold, while most weak candidates are nothing. The answer is right about a group with
the chance qⱼ: the moved chance if it shows the box, else 1 less that.

- `margin`: Π qⱼ, the chance that the answer is right if groups are independent of each other. Hard when below. Unlike
  the margin of classes it does not subtract the chance of the second best answer: with several doubtful groups that
  says little, and a calibration may find another answer likelier than the one given.
- `doubtful`: Σ (1 − qⱼ), the expected number of objects missed or found where there are none (the risk of a Bayes
  classifier, Chow 1970, summed over boxes as in Brust et al. 2019). Hard when above.
- `near`: how many groups have a moved chance from 1/4 to 3/4: those that a somewhat other picture would turn
  (uncertainty sampling, Lewis & Gale 1994). Without a calibration a is 1 and b is 0 here, since more would move half of
  these out of sight. Hard when above.
- `spread`: Σ sⱼ (1 − IoUⱼ), with IoUⱼ the mean overlap of a group's best box with the boxes of its group, weighted by
  their scores: how much they disagree about where the object is (after the tightness of Kao et al. 2018, arXiv
  1801.05124). Hard when above.

A picture without any box is hard by `mean_score`, and by the others as far as there are candidates. A box with a number
that is not finite makes its row NaN, which counts as hard whatever the threshold; so does a score of the model that is
NaN, since what it stood for is missing (`Candidates`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from upwell.shared.routing.hardness import UNMOVED, LogitFit, Measure
from upwell.shared.tensors import Array
from upwell.shared.value_classes import value_class

OF_BOXES: frozenset[Measure] = frozenset({"mean_score", "low_share", "count"})
"""Hardness measures of detections."""
OF_CANDIDATES: frozenset[Measure] = frozenset({"margin", "doubtful", "near", "spread"})
"""Hardness measures of a detector's candidates."""
OF_CHANCES: frozenset[Measure] = frozenset({"margin", "doubtful", "near"})
"""Those that need no more than the chances of its groups."""

_SCORE, _CLASS = 4, 5
_NEAR = 0.25
_TAIL = 3.0
_EXTREME = 7.0
"""The largest logit of a moved chance, so that no product underflows and no single group decides."""


@value_class
class CandidateGroups:
    """The groups of one row: the best score of each, FP64 [n], the mean overlap of its boxes with the best one, their
    support: the sum of the scores of the boxes that overlap the best one, relative to its own; and its decay in 0..1 by
    better boxes at its place (`grouped`).

    Boxes from `min_score` on count as found.
    """

    scores: Array
    overlaps: Array
    supports: Array
    decays: Array
    min_score: float


@value_class
class ObjectChances:
    """The chance of an object in each group of one row, FP64 [n] in 0..1, before any calibration, and its support,
    FP64 [n]; or of several rows, [rows, n] with NaN where there are fewer."""

    chances: Array
    supports: Array


def box_hardness(detections: Array, measure: Measure, *, box_score: float) -> tuple[float, ...]:
    """The measure for each row of `detections`, shape [rows, boxes, 6].

    Returns one float per row: in 0..1 (a number of boxes for `count`), or NaN. Raises `ValueError` if `measure` is not
    a measure of boxes.
    """
    is_box = ~(detections[:, :, _CLASS] < 0)  # so that a NaN class is not overlooked
    scores = detections[:, :, _SCORE]
    count = is_box.sum(axis=1).astype(np.float64)
    if measure == "count":
        measured = count
    elif measure == "mean_score":
        measured = np.where(is_box, scores, 0.0).sum(axis=1, dtype=np.float64) / np.maximum(count, 1.0)
    elif measure == "low_share":
        measured = (is_box & (scores < box_score)).sum(axis=1) / np.maximum(count, 1.0)
    else:
        raise ValueError(f"{measure} is not a measure of boxes; expected mean_score, low_share or count")
    measured[_broken(detections)] = np.nan
    return tuple(measured.tolist())


def candidate_hardness(
    detections: Array,
    groups: Sequence[CandidateGroups],
    measure: Measure,
    *,
    box_score: float,
    fit: LogitFit,
) -> tuple[float, ...]:
    """The measure for each row, from the groups of its candidates, their chances moved by `fit`.

    It is NaN if a box of `detections`, [rows, boxes, 6], has a NaN. Raises `KeyError` if `measure` is not a measure of
    candidates.
    """
    if measure == "spread":
        measured = [float((one.scores * (1 - one.overlaps)).sum()) for one in groups]
    else:
        measured = [chance_hardness(object_chances(one, box_score), measure, fit) for one in groups]
    return tuple(np.where(_broken(detections), np.nan, measured).tolist())


def object_chances(groups: CandidateGroups, box_score: float) -> ObjectChances:
    """The chance pⱼ of an object in each group and its support mⱼ."""
    threshold = _threshold(box_score, groups.min_score)
    scores = np.clip(groups.scores, 0.0, 1.0)
    below, above = groups.decays * scores / threshold / 2, 1 - (1 - scores) / (1 - threshold) / 2
    return ObjectChances(np.where(scores < threshold, below, above), groups.supports)


def shown_chances(chances: Array, box_score: float, min_score: float) -> Array:
    """Of the chances of all groups those of the boxes shown, by `box_score` alone: all that an answer tells of them.

    A weak box whose chance has decayed below what is shown is left out, though the answer has it.
    """
    threshold = _threshold(box_score, min_score)
    scores = np.where(chances < 0.5, 2 * threshold * chances, 1 - 2 * (1 - chances) * (1 - threshold))
    shown = scores[scores > min_score - _ROUNDED]
    ones = np.ones(len(shown))
    return object_chances(CandidateGroups(shown, ones, ones, ones, 0.0), box_score).chances


_ROUNDED = 1e-3
"""By how much a score from a chance in a log may be too low, since that is rounded."""


def _threshold(box_score: float, min_score: float) -> float:
    return min(max(box_score, min_score, 1e-6), 1 - 1e-6)


def right_chances(objects: ObjectChances, fit: LogitFit) -> Array:
    """The chance qⱼ that the answer is right about each group, FP64 as `objects.chances`."""
    chances = moved = objects.chances
    if fit != UNMOVED:
        inside = np.clip(chances, 1e-6, 1 - 1e-6)
        plain = np.log(inside / (1 - inside))
        logits = plain / fit.temperature + fit.bias
        if fit.hidden_slope != 1.0:
            steep = np.maximum(plain * (fit.hidden_slope / fit.temperature) + fit.bias, plain - _TAIL)
            logits = np.where(chances >= 0.5, logits, steep)
        logits = logits + fit.support * np.log(objects.supports)
        moved = 1 / (1 + np.exp(-np.clip(logits, -_EXTREME, _EXTREME)))
    right: Array = np.where(chances >= 0.5, moved, 1 - moved)
    return right


def chance_hardness(objects: ObjectChances, measure: Measure, fit: LogitFit) -> float:
    """The measure for one row from the chances of its groups. Raises `KeyError` if it is not one of `OF_CHANCES`."""
    return _MEASURES[measure](right_chances(objects, fit))


def _broken(detections: Array) -> npt.NDArray[np.bool_]:
    is_box = ~(detections[:, :, _CLASS] < 0)
    return np.asarray((is_box & ~np.isfinite(detections).all(axis=2)).any(axis=1))


def _margin(right: Array) -> float:
    return float(right.prod())


def _doubtful(right: Array) -> float:
    return float((1 - right).sum())


def _near(right: Array) -> float:
    return float((np.abs(right - 0.5) < _NEAR).sum())


_MEASURES: Mapping[Measure, Callable[[Array], float]] = MappingProxyType(
    {"margin": _margin, "doubtful": _doubtful, "near": _near}
)
