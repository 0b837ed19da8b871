"""Two bundles on the same cases: what each is worth over all requests, and whether one is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from upwell.tools.cases.labels import Label
from upwell.tools.evaluate.coco_map import CocoMatches
from upwell.tools.evaluate.estimating import Estimate, Floats, average, no_difference, share, share_up, weights_of
from upwell.tools.evaluate.running import Answers, Judged, is_right

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
    """The absolute error; without an answer as if it had said 0."""
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
    """mAP with percentile intervals of `RESAMPLES` bootstrap samples of the pictures, drawn with chances ∝ 1/π."""
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
