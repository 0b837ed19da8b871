"""Compares two bundles on the same cases: the quality of each over all requests, and whether one is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from upwell.tools.cases.case_labels import Label
from upwell.tools.evaluate.evaluation_run import Answers, Judged, is_right
from upwell.tools.evaluate.weighted_means import Estimate, Floats, average, no_difference, share, share_up, weights_of

RESAMPLES = 200


def compare(
    a: Answers, b: Answers, cases: Sequence[Judged], names: dict[str, int], group: str, max_risk: float
) -> dict[str, Any]:
    """The comparison as one document: `quality` of each and their `difference` (B − A), by class and by `group`.

    Higher is better throughout: accuracy for classes, COCO's mAP for boxes, and minus the mean absolute error for
    numbers. `share_up` is the share that would go up at the same risk, for classes.
    """
    inclusion = weights_of([case.facts.inclusion for case in cases])
    truth = cases[0].truth
    document: dict[str, Any] = {
        "cases": len(cases),
        "a": {"bundle": a.name, "digest": a.digest},
        "b": {"bundle": b.name, "digest": b.digest},
    }
    if truth.boxes is not None:
        return {**document, **_boxes(a, b, cases, inclusion, names)}
    if truth.label is not None:
        sides = [
            np.array([is_right(said, case.truth) for said, case in zip(one.labels, cases, strict=True)], np.float64)
            for one in (a, b)
        ]
        found = _means("accuracy", sides, inclusion, share)
        cloud_right = np.array([case.cloud is None or is_right(case.cloud, case.truth) for case in cases])
        for key, one, right in (("a", a, sides[0]), ("b", b, sides[1])):
            risky = (right == 0) & cloud_right
            document[key]["share_up"] = share_up(np.array(one.hardness), risky.astype(np.float64), inclusion, max_risk)
        document["max_risk"] = max_risk
    else:
        sides = [
            -np.array([_error(said, case.truth) for said, case in zip(one.labels, cases, strict=True)])
            for one in (a, b)
        ]
        found = _means("negative mean absolute error", sides, inclusion, average)
    kinds: dict[str, Callable[[Judged], str]] = {"groups": lambda case: case.facts.tags.get(group, "")} if group else {}
    if truth.label is not None:
        kinds["classes"] = lambda case: case.truth.label or ""
    return {
        **document,
        **found,
        **{kind: _parts(of, sides, cases, inclusion, found["measure"]) for kind, of in kinds.items()},
    }


def _error(said: Label | None, truth: Label) -> float:
    """The absolute error; a missing answer counts as 0."""
    return abs((said.value if said is not None and said.value is not None else 0.0) - (truth.value or 0.0))


def _means(
    measure: str, sides: Sequence[Floats], inclusion: Floats, estimate: Callable[[Floats, Floats], Estimate]
) -> dict[str, Any]:
    difference = sides[1] - sides[0]
    return {
        "measure": measure,
        "quality": [_shown(estimate(side, inclusion)) for side in sides],
        "difference": {**_shown(average(difference, inclusion)), "p": no_difference(difference, inclusion)},
    }


def _parts(
    of: Callable[[Judged], str], sides: Sequence[Floats], cases: Sequence[Judged], inclusion: Floats, measure: str
) -> dict[str, Any]:
    estimate = share if measure == "accuracy" else average
    keys = np.array([of(case) for case in cases], dtype=object)
    return {
        key: [_shown(estimate(side[keys == key], inclusion[keys == key])) for side in sides]
        for key in sorted(set(keys.tolist()))
    }


def _boxes(a: Answers, b: Answers, cases: Sequence[Judged], inclusion: Floats, names: dict[str, int]) -> dict[str, Any]:
    """mAP with percentile intervals from `RESAMPLES` bootstrap samples of the pictures, drawn with probabilities ∝
    1/π.
    """
    truth = [
        np.array([[*box.box, names.setdefault(box.label, len(names))] for box in case.truth.boxes or ()]).reshape(-1, 5)
        for case in cases
    ]
    matches = [CocoMatches(one.boxes, truth) for one in (a, b)]
    rng, chances = np.random.default_rng(0), (1 / inclusion) / (1 / inclusion).sum()
    picked = [rng.choice(len(cases), len(cases), p=chances).tolist() for _ in range(RESAMPLES)]
    samples = np.array([[one.mean_average_precision(sample) for sample in picked] for one in matches])
    is_even = bool((inclusion == inclusion[0]).all())
    means = [
        one.mean_average_precision() if is_even else float(np.nanmean(row))
        for one, row in zip(matches, samples, strict=True)
    ]
    differences = samples[1] - samples[0]
    beyond = min(float((differences <= 0).mean()), float((differences >= 0).mean()))
    return {
        "measure": "mAP",
        "quality": [_shown(_spread(*one, len(cases))) for one in zip(means, samples, strict=True)],
        "difference": {
            **_shown(_spread(means[1] - means[0], differences, len(cases))),
            "p": min(1.0, 2 * max(beyond, 1 / RESAMPLES)),
        },
    }  # fmt: skip


def _spread(mean: float, samples: Floats, n: int) -> Estimate:
    known = samples[np.isfinite(samples)]
    low, high = np.quantile(known, [0.025, 0.975]).tolist() if len(known) else (-math.inf, math.inf)
    return Estimate(mean, min(low, mean), max(high, mean), n)


def _shown(estimate: Estimate) -> dict[str, float | None]:
    values: Mapping[str, float] = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "n": estimate.n}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


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
    return _Matches(boxes[:, 4], _hits(_overlaps(boxes[:, :4], true)), len(true))


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


def _overlaps(ours: Floats, theirs: Floats) -> Floats:
    """Intersection over union [n, m] of each pair of boxes."""
    sides = np.minimum(ours[:, None, 2:], theirs[None, :, 2:]) - np.maximum(ours[:, None, :2], theirs[None, :, :2])
    shared = np.clip(sides, 0.0, None).prod(axis=2)
    areas = (ours[:, 2:] - ours[:, :2]).prod(axis=1)[:, None] + (theirs[:, 2:] - theirs[:, :2]).prod(axis=1)[None]
    union = areas - shared
    result: Floats = shared / np.where(union > 0, union, 1.0)
    return result
