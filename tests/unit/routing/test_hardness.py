"""Each measure against its formula, written here in plain Python."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from upwell.shared.routing.hardness import RISING, Measure, hardness, is_hard

MEASURES: tuple[Measure, ...] = ("max_prob", "margin", "entropy")


def max_prob(p: Sequence[float]) -> float:
    return max(p)


def margin(p: Sequence[float]) -> float:
    first, second, *_ = sorted(p, reverse=True)
    return first - second


def entropy(p: Sequence[float]) -> float:
    return -sum(q * math.log(q) for q in p if q > 0) / math.log(len(p))


FORMULAS: dict[Measure, Callable[[Sequence[float]], float]] = {
    "max_prob": max_prob,
    "margin": margin,
    "entropy": entropy,
}


def softmax(logits: Sequence[float]) -> list[float]:
    exponentials = [math.exp(x - max(logits)) for x in logits]
    return [e / sum(exponentials) for e in exponentials]


PROBABILITIES = (
    (0.5, 0.3, 0.2),
    (0.2, 0.5, 0.3),
    (1.0, 0.0, 0.0),
    (0.0, 0.0, 1.0),
    (1 / 3, 1 / 3, 1 / 3),
    (0.5, 0.5, 0.0),
    (1e-300, 1.0 - 1e-12, 1e-12),
)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("row", PROBABILITIES)
def test_a_measure_of_probabilities_is_its_formula(measure: Measure, row: Sequence[float]) -> None:
    (value,) = hardness(np.array([row]), measure, logits=False)
    assert value == pytest.approx(FORMULAS[measure](row), abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    "row", [(0.0, 0.0), (3.0, 1.0, -2.0), (-1e4, 0.0, 1.0), (1e4, 1e4, 0.0), (700.0, -700.0, 699.0)]
)
def test_a_measure_of_logits_is_its_formula_after_softmax(measure: Measure, row: Sequence[float]) -> None:
    (value,) = hardness(np.array([row]), measure, logits=True)
    assert value == pytest.approx(FORMULAS[measure](softmax(row)), abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_rows_are_measured_one_by_one_and_in_order(measure: Measure) -> None:
    values = hardness(np.array(PROBABILITIES), measure, logits=False)
    assert values == pytest.approx([FORMULAS[measure](row) for row in PROBABILITIES], abs=1e-12)
    assert all(type(value) is float for value in values)


def test_one_certain_class_has_no_entropy_and_equal_classes_have_all_of_it() -> None:
    for classes in (2, 3, 7, 1000):
        certain = np.eye(1, classes)
        equal = np.full((1, classes), 1 / classes)
        assert hardness(certain, "entropy", logits=False) == (0.0,)
        assert hardness(equal, "entropy", logits=False)[0] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("p", "expected"), [(0.5, (0.5, 0.0, 1.0)), (1.0, (1.0, 1.0, 0.0)), (0.0, (1.0, 1.0, 0.0))])
def test_a_single_score_is_yes_against_no(p: float, expected: tuple[float, float, float]) -> None:
    found = [hardness(np.array([[p]]), measure, logits=False)[0] for measure in MEASURES]
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("logit", [0.0, 0.5, -0.5, 4.0, -4.0, 40.0])
@pytest.mark.parametrize("measure", MEASURES)
def test_a_single_logit_is_yes_against_no_too(measure: Measure, logit: float) -> None:
    yes = 1 / (1 + math.exp(-logit))
    (value,) = hardness(np.array([[logit]]), measure, logits=True)
    assert value == pytest.approx(FORMULAS[measure]((yes, 1 - yes)), abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("measure", MEASURES)
def test_a_score_that_is_not_finite_makes_its_row_nan_and_no_other(measure: Measure, logits: bool, bad: float) -> None:
    scores = np.array([[0.7, 0.2, 0.1], [0.7, bad, 0.1], [0.7, 0.2, 0.1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second, third = hardness(scores, measure, logits=logits)
    assert math.isnan(second)
    assert first == third
    assert math.isfinite(first)


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("measure", MEASURES)
def test_nothing_to_measure_is_nan_for_each_row(measure: Measure, logits: bool) -> None:
    assert hardness(np.zeros((0, 3)), measure, logits=logits) == ()
    for shape in [(2, 0), (2, 0, 5), (2, 5, 0)]:
        values = hardness(np.zeros(shape), measure, logits=logits)
        assert len(values) == 2
        assert all(math.isnan(value) for value in values)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_row_of_several_positions_is_as_hard_as_its_hardest(measure: Measure) -> None:
    easy, middle, hard = (0.98, 0.01, 0.01), (0.6, 0.3, 0.1), (0.4, 0.35, 0.25)
    values = hardness(np.array([[easy, hard], [easy, easy], [middle, easy]]), measure, logits=False)
    assert values == pytest.approx([FORMULAS[measure](row) for row in (hard, easy, middle)])


@pytest.mark.parametrize("measure", MEASURES)
def test_one_position_that_is_not_finite_makes_its_row_nan(measure: Measure) -> None:
    easy, broken = (0.98, 0.02), (math.nan, 0.02)
    values = hardness(np.array([[easy, broken], [broken, easy], [easy, easy]]), measure, logits=False)
    assert [math.isnan(value) for value in values] == [True, True, False]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.int8, np.uint8])
def test_any_number_type_is_measured_and_left_as_it_was(dtype: npt.DTypeLike) -> None:
    scores = np.array([[3, 1, 0], [1, 1, 1]]).astype(dtype)
    before = scores.copy()
    values = hardness(scores, "margin", logits=True)
    assert values == pytest.approx([margin(softmax((3, 1, 0))), 0.0], abs=1e-6)
    np.testing.assert_array_equal(scores, before)


def test_scores_out_of_memory_order_are_measured_alike() -> None:
    scores = np.random.default_rng(0).dirichlet(np.ones(4), 6).reshape(2, 3, 4)
    turned = np.asfortranarray(scores)
    assert hardness(turned, "margin", logits=False) == hardness(scores, "margin", logits=False)


HARD = [
    ("margin", 0.35, 0.35, False),
    ("margin", math.nextafter(0.35, 0), 0.35, True),
    ("max_prob", 0.9, 0.9, False),
    ("max_prob", 0.89, 0.9, True),
    ("entropy", 0.5, 0.5, False),
    ("entropy", math.nextafter(0.5, 1), 0.5, True),
    ("entropy", 0.49, 0.5, False),
    ("margin", 0.0, 0.0, False),  # a threshold of zero: nothing is below it
    ("margin", 1.0, 1.0, False),
    ("entropy", 0.0, 0.0, False),
    ("entropy", 1e-12, 0.0, True),
]


@pytest.mark.parametrize(("measure", "value", "threshold", "hard"), HARD)
def test_hard_is_beyond_the_threshold_and_not_on_it(
    measure: Measure, value: float, threshold: float, hard: bool
) -> None:
    assert is_hard(value, measure, threshold) is hard


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("measure", MEASURES)
def test_nan_is_hard_whatever_the_threshold(measure: Measure, threshold: float) -> None:
    assert is_hard(math.nan, measure, threshold)


def test_the_measures_that_rise_are_those_that_grow_with_doubt() -> None:
    sure, unsure = np.array([[0.9, 0.1]]), np.array([[0.6, 0.4]])
    for measure in MEASURES:
        grows = hardness(unsure, measure, logits=False) > hardness(sure, measure, logits=False)
        assert grows is (measure in RISING)
