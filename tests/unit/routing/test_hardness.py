"""Each measure against its formula, written here in plain Python."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from upwell.shared.routing.hardness import FLOOR, RISING, Measure, as_logits, hardness, is_hard

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


def energy(z: Sequence[float], temperature: float) -> float:
    return -temperature * math.log(sum(math.exp(x / temperature) for x in z))


def logit_norm(z: Sequence[float]) -> float:
    mean = sum(z) / len(z)
    return float((max(z) - mean) / sum(abs(x - mean) ** 5 for x in z) ** 0.2)


LOGITS = ((3.0, 1.0, -2.0), (0.1, 0.2, 0.3, 0.15), (-5.0, -5.5, 7.25), (30.0, -30.0, 29.0))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.7])
@pytest.mark.parametrize("row", LOGITS)
def test_energy_and_logit_norm_are_their_formulas(row: Sequence[float], temperature: float) -> None:
    (found,) = hardness(np.array([row]), "energy", logits=True, temperature=temperature)
    assert found == pytest.approx(energy(row, temperature), rel=1e-12)
    (found,) = hardness(np.array([row]), "logit_norm", logits=True, temperature=temperature)
    assert found == pytest.approx(logit_norm(row), rel=1e-12)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 1.5, 20.0])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("row", LOGITS)
def test_a_temperature_divides_the_logits_also_those_of_probabilities(
    row: Sequence[float], measure: Measure, temperature: float
) -> None:
    expected = FORMULAS[measure](softmax([z / temperature for z in row]))
    (of_logits,) = hardness(np.array([row]), measure, logits=True, temperature=temperature)
    (of_probabilities,) = hardness(np.array([softmax(row)]), measure, logits=False, temperature=temperature)
    assert of_logits == pytest.approx(expected, abs=1e-12)
    assert of_probabilities == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 1e3, 1e300])
@pytest.mark.parametrize("measure", MEASURES)
def test_no_temperature_overflows(measure: Measure, temperature: float) -> None:
    rows = np.array([[1e38, -1e38, 0.0], [1e-30, 0.0, -1e-30]])
    values = hardness(rows, measure, logits=True, temperature=temperature)
    assert all(0.0 <= value <= 1.0 + 1e-12 for value in values)


def test_logit_norm_knows_no_scale_and_no_shift() -> None:
    row = np.array([[3.0, 1.0, -2.0, 0.5]])
    (found,) = hardness(row, "logit_norm", logits=True)
    for changed in (row * 1e-30, row * 1e30, row + 100, 7 * row - 3):
        assert hardness(changed, "logit_norm", logits=True)[0] == pytest.approx(found, rel=1e-9)


def test_equal_logits_have_no_direction_to_blow_up() -> None:
    rows = np.array([[0.1] * 7, [1e30] * 7, [0.0] * 7, [-3.3] * 7])
    assert hardness(rows, "logit_norm", logits=True) == (0.0,) * 4


def test_logit_norm_of_a_certain_class_is_near_its_largest_value() -> None:
    (certain,) = hardness(np.eye(1, 10), "logit_norm", logits=False)  # with p = 0 nine times
    assert 0.999 < certain <= 1.0


@pytest.mark.parametrize("scores", [[[0.3, 0.7]], [[0.7]]])
def test_what_says_nothing_is_nan(scores: list[list[float]]) -> None:
    for logits in (False, True):
        assert math.isnan(hardness(np.array(scores), "logit_norm", logits=logits)[0])
    assert math.isnan(hardness(np.array(scores), "energy", logits=False)[0])
    assert math.isnan(hardness(np.array([[0.2, 0.3, 0.5]]), "energy", logits=False)[0])


def test_energy_of_a_single_logit_is_the_same_for_yes_and_no() -> None:
    values = hardness(np.array([[0.0], [4.0], [-4.0]]), "energy", logits=True)
    assert values == pytest.approx([-math.log(2), *[-math.log(math.exp(2) + math.exp(-2))] * 2])
    assert values[0] > values[1]


@pytest.mark.parametrize("bad", [-0.5, 1.5, 12.0, -0.02])
@pytest.mark.parametrize("measure", [*MEASURES, "logit_norm"])
def test_what_is_no_probability_is_nan(measure: Measure, bad: float) -> None:
    first, second = hardness(np.array([[0.1, bad, 0.3], [0.1, 0.6, 0.3]]), measure, logits=False)
    assert math.isnan(first)
    assert math.isfinite(second)


@pytest.mark.parametrize("measure", MEASURES)
def test_probabilities_that_lost_a_step_in_quantization_count_as_what_they_add_up_to(measure: Measure) -> None:
    rounded = np.array([[180, 50, 20, 0]]) / 256
    assert hardness(rounded, measure, logits=False)[0] == pytest.approx(FORMULAS[measure]([0.72, 0.2, 0.08, 0.0]))
    below_zero = np.array([[1.0, -1 / 256, 0.0]])
    assert hardness(below_zero, measure, logits=False)[0] == FORMULAS[measure]([1.0, 0.0, 0.0])


@pytest.mark.parametrize("measure", MEASURES)
def test_probabilities_that_are_all_zero_are_hard(measure: Measure) -> None:
    assert is_hard(hardness(np.zeros((1, 4)), measure, logits=False)[0], measure, 0.5)


def test_as_logits_are_logarithms_with_a_floor_and_no_before_yes() -> None:
    found = as_logits(np.array([[0.25, 0.75, 0.0], [math.nan, 0.5, 0.5]], np.float32), logits=False)
    assert found[0].tolist() == pytest.approx([math.log(0.25), math.log(0.75), math.log(FLOOR)])
    assert np.isnan(found[1]).all()
    assert as_logits(np.array([[3.0, -math.inf], [2.0, 1.0]]), logits=True)[1].tolist() == [2.0, 1.0]
    assert as_logits(np.array([[3.0]]), logits=True).tolist() == [[-1.5, 1.5]]
    assert softmax(as_logits(np.array([[0.8]]), logits=False)[0].tolist()) == pytest.approx([0.2, 0.8])


def test_a_measure_of_something_else_is_no_measure_of_scores() -> None:
    with pytest.raises(KeyError, match="mean_score"):
        hardness(np.array([[0.5, 0.5]]), "mean_score", logits=False)


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
@pytest.mark.parametrize("measure", [*MEASURES, "logit_norm"])
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
    ("energy", -3.0, -2.0, False),
    ("energy", -1.0, -2.0, True),
    ("logit_norm", 0.4, 0.5, True),
    ("mean_score", 0.4, 0.5, True),
    ("low_share", 0.4, 0.5, False),
    ("count", 11.0, 10.0, True),
    ("output", 0.1, 0.0, True),
    ("function", 0.1, 0.2, False),
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
    sure, unsure = np.array([[4.0, 0.5, 0.0]]), np.array([[1.0, 0.9, 0.0]])
    measures: tuple[Measure, ...] = (*MEASURES, "energy", "logit_norm")
    for measure in measures:
        grows = hardness(unsure, measure, logits=True) > hardness(sure, measure, logits=True)
        assert grows is (measure in RISING)


def test_the_page_says_of_each_measure_which_side_is_hard() -> None:
    page = (Path(__file__).parents[3] / "docs" / "calibration.md").read_text(encoding="utf-8")
    rows = {row[0].strip("` "): row for row in (line.strip("|").split("|") for line in page.splitlines())}
    for measure in get_args(Measure):
        if measure in ("output", "function"):
            assert f"`{{measure: {measure}, " in page
            assert "above" in page.partition(f"`{{measure: {measure}, ")[2].partition("}`")[0]
        else:
            assert [word for word in ("above", "below") if f"`{word}`" in "|".join(rows[measure])] == [
                "above" if measure in RISING else "below"
            ]
