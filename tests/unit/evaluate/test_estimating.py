"""Estimates from audits: their intervals hold the truth, a mean of mined cases does not; mAP is COCO's."""

from __future__ import annotations

import contextlib
import io
import math

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from upwell.tools.evaluate.average_precision import CocoMatches, Floats
from upwell.tools.evaluate.bundle_comparison import average, no_difference, paired, share, share_up, weights_of


def audits(seed: int) -> tuple[float, Floats, Floats, Floats]:
    """20,000 requests of which the hard tenth goes up: the true accuracy, what is right and π of those that chance
    chose (1 % of all, 4 % more of those kept), and what is right of the mined: the hard ones."""
    rng = np.random.default_rng(seed)
    hardness = rng.random(20_000)
    right = (rng.random(20_000) > 0.02 + 0.5 * hardness**6).astype(np.float64)
    is_hard = hardness > 0.9
    inclusion = np.where(is_hard, 0.01, 1 - 0.99 * 0.96)
    chosen = rng.random(20_000) < inclusion
    return float(right.mean()), right[chosen], inclusion[chosen], right[is_hard]


def test_the_interval_holds_the_truth_in_190_of_200_simulated_audits_and_the_mined_mean_does_not() -> None:
    held = naive = 0
    for seed in range(200):
        truth, right, inclusion, mined = audits(seed)
        estimate = share(right, inclusion)
        held += estimate.low <= truth <= estimate.high
        plain = share(mined, np.ones(len(mined)))
        naive += plain.low <= truth <= plain.high
    assert held >= 190
    assert naive == 0


def test_with_equal_chances_the_estimate_is_the_plain_one() -> None:
    right = np.array([1.0] * 90 + [0.0] * 10)
    found = share(right, np.full(100, 0.01))
    assert found.mean == pytest.approx(0.9)
    assert [found.low, found.high] == pytest.approx([0.824, 0.951], abs=1e-3)  # Clopper and Pearson
    assert share(np.ones(50), np.full(50, 0.5)).low == pytest.approx(0.929, abs=1e-3)
    nothing = share(np.array([]), np.array([]))
    assert math.isnan(nothing.mean)
    assert (nothing.low, nothing.high) == (0.0, 1.0)


def test_a_mean_of_numbers_is_weighted_by_how_many_each_stands_for() -> None:
    found = average(np.array([0.0, 0.0, 3.0]), np.array([0.5, 0.5, 0.1]))
    assert found.mean == pytest.approx(30 / 14)
    assert found.low < found.mean < found.high
    assert average(np.array([1.0]), np.array([1.0])).high == math.inf


def test_few_cases_without_a_difference_do_not_prove_that_there_is_none() -> None:
    for n, low in ((2, -0.8), (100, -0.0274), (400, -0.0070)):
        found = paired(np.zeros(n), np.full(n, 0.1))
        assert (found.mean, found.n, found.high) == (0.0, n, -found.low)
        assert found.low == pytest.approx(low, rel=0.02)
    assert math.isnan(paired(np.array([]), np.array([])).mean)
    for difference in (-1.0, 0.0, 1.0):
        found = paired(np.array([difference]), np.array([0.1]))
        assert -1.0 <= found.low <= found.mean <= found.high <= 1.0


def test_the_interval_of_a_difference_holds_it_in_95_of_100_comparisons() -> None:
    rng, held = np.random.default_rng(3), 0
    for _ in range(400):
        both, inclusion = rng.random(150), rng.choice([0.05, 0.2], 150)
        differences = np.where(both < 0.02, 1.0, np.where(both > 0.97, -1.0, 0.0))
        found = paired(differences, inclusion)
        held += found.low <= -0.01 <= found.high
    assert held >= 370  # fewer in less than one run of a thousand at 95 %


def test_the_paired_test_keeps_its_level_and_finds_a_difference() -> None:
    rng = np.random.default_rng(1)
    inclusion = rng.choice([0.01, 0.05, 0.5], 60)
    under = [no_difference(rng.choice([-1.0, 0.0, 1.0], 60), inclusion, seed) for seed in range(200)]
    assert sum(p <= 0.05 for p in under) <= 18  # 10 on average; more than 18 in less than 1 % of runs
    assert no_difference(np.array([1.0] * 20 + [0.0] * 40), inclusion) < 0.01
    assert no_difference(np.zeros(60), inclusion) == 1.0


def test_the_share_that_goes_up_is_the_least_that_meets_the_risk() -> None:
    hardness, risky = np.array([0.1, 0.2, 0.3, 0.4, 0.4]), np.array([0.0, 1.0, 0.0, 0.0, 1.0])
    assert share_up(hardness, risky, np.ones(5), 0.2) == pytest.approx(0.4)
    assert share_up(hardness, risky, np.ones(5), 0.0) == pytest.approx(0.8)
    assert share_up(hardness, risky, np.ones(5), 1.0) == 0.0


@pytest.mark.parametrize("wrong", [0.0, 1.1, -0.5, math.nan])
def test_a_probability_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        weights_of([0.5, wrong])


def pictures(seed: int) -> tuple[list[Floats], list[Floats]]:
    """Found and true boxes of some pictures; found ones lie about the true ones, or anywhere."""
    rng = np.random.default_rng(seed)
    found, truth = [], []
    for _ in range(rng.integers(1, 15)):
        corners = rng.random((rng.integers(0, 8), 2)) * 0.7
        true = np.concatenate([corners, corners + 0.05 + 0.25 * rng.random(corners.shape)], axis=1)
        near = np.sort((true + rng.normal(0, 0.02, true.shape)).reshape(-1, 2, 2), axis=1).reshape(-1, 4)
        far = rng.random((rng.integers(0, 5), 2)) * 0.5
        boxes = np.concatenate([near, np.concatenate([far, far + 0.2], axis=1)])
        scores = rng.random(len(boxes)) if seed % 3 else rng.choice([0.25, 0.5, 0.75], len(boxes))
        classes = np.concatenate([rng.integers(0, 3, len(true)), rng.integers(0, 3, len(far))])
        truth.append(np.column_stack([true, classes[: len(true)]]))
        said = np.where(rng.random(len(boxes)) < 0.1, rng.integers(0, 3, len(boxes)), classes)
        found.append(np.column_stack([boxes, scores, said]))
    return found, truth


def by_pycocotools(found: list[Floats], truth: list[Floats]) -> float:
    """The first of COCO's twelve numbers. A unit is a thousand pixels, as areas of less than a pixel are none to it."""

    def rows(boxes: Floats) -> list[list[float]]:
        sides = boxes[:, :4] * 1000
        found: list[list[float]] = np.column_stack([sides[:, :2], sides[:, 2:] - sides[:, :2]]).tolist()
        return found

    images = [{"id": n, "width": 1000, "height": 1000} for n in range(1, len(truth) + 1)]
    annotations = [
        {"image_id": n, "category_id": int(one[4]) + 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for n, boxes in enumerate(truth, 1)
        for one, box in zip(boxes, rows(boxes), strict=True)
    ]
    results = [
        {"image_id": n, "category_id": int(one[5]) + 1, "bbox": box, "score": float(one[4])}
        for n, boxes in enumerate(found, 1)
        for one, box in zip(boxes, rows(boxes), strict=True)
    ]
    if not annotations or not results:
        return math.nan
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "info": {}, "images": images, "categories": [{"id": n, "name": str(n)} for n in (1, 2, 3)],
            "annotations": [{**one, "id": n} for n, one in enumerate(annotations, 1)],
        }  # fmt: skip
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_map_is_what_pycocotools_says(count: int) -> None:
    compared = 0
    for seed in range(count):
        found, truth = pictures(seed)
        theirs = by_pycocotools(found, truth)
        if not math.isnan(theirs):
            assert CocoMatches(found, truth).mean_average_precision() == pytest.approx(theirs, abs=1e-9), seed
            compared += 1
    assert compared > count * 0.8


def test_map_of_a_sample_is_that_of_its_pictures() -> None:
    found, truth = pictures(5)
    matches = CocoMatches(found, truth)
    assert matches.mean_average_precision(range(len(truth))) == matches.mean_average_precision()
    twice = CocoMatches([found[0], *found], [truth[0], *truth]).mean_average_precision()
    assert matches.mean_average_precision([0, *range(len(truth))]) == pytest.approx(twice)
    assert math.isnan(CocoMatches([np.zeros((0, 6))], [np.zeros((0, 5))]).mean_average_precision())
