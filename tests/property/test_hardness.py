"""Hardness for any scores: in range, indifferent to order and to company, and NaN only where there is a reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.examples import examples
from upwell.shared.routing.box_hardness import box_hardness
from upwell.shared.routing.hardness import RISING, Measure, as_logits, hardness, is_hard
from upwell.shared.tensors import Array

BOUNDED: tuple[Measure, ...] = ("max_prob", "margin", "entropy", "logit_norm")
OF_SCORES: tuple[Measure, ...] = (*BOUNDED, "energy")
OF_BOXES: tuple[Measure, ...] = ("mean_score", "low_share", "count")
temperatures = st.floats(1e-3, 1e3)


def scores(elements: st.SearchStrategy[float], width: int = 64) -> st.SearchStrategy[Array]:
    """Arrays [rows, classes]."""
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8)
    dtype: Any = np.float64 if width == 64 else np.float32
    return hnp.arrays(dtype, shapes, elements=elements)


finite_logits = scores(st.floats(-1e30, 1e30))
any_floats = scores(st.floats(allow_nan=True, allow_infinity=True, width=32), 32)


@settings(max_examples=examples(200), deadline=None)
@given(finite_logits, st.sampled_from(BOUNDED), temperatures)
def test_finite_logits_measure_within_bounds(values: Array, measure: Measure, temperature: float) -> None:
    found = hardness(values, measure, logits=True, temperature=temperature)
    assert len(found) == len(values)
    says_nothing = measure == "logit_norm" and values.shape[1] < 3
    for value in found:
        assert math.isnan(value) if says_nothing else -1e-9 <= value <= 1 + 1e-9


@settings(max_examples=examples(200), deadline=None)
@given(any_floats, st.sampled_from(OF_SCORES), st.booleans(), temperatures)
def test_anything_at_all_gives_one_number_per_row_and_no_exception(
    values: Array, measure: Measure, logits: bool, temperature: float
) -> None:
    before = values.copy()
    found = hardness(values, measure, logits=logits, temperature=temperature)
    np.testing.assert_array_equal(values, before)
    assert [type(value) for value in found] == [float] * len(values)
    for row, value in zip(values, found, strict=True):
        if not np.isfinite(row).all():
            assert math.isnan(value)
        assert not math.isinf(value)


@settings(max_examples=examples(150), deadline=None)
@given(any_floats, st.sampled_from(OF_SCORES), st.booleans())
def test_a_row_measures_alike_alone_and_among_others(values: Array, measure: Measure, logits: bool) -> None:
    together = hardness(values, measure, logits=logits)
    alone = [hardness(row[None], measure, logits=logits)[0] for row in values]
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-12)


@settings(max_examples=examples(150), deadline=None)
@given(scores(st.floats(-50, 50)), st.sampled_from(OF_SCORES), st.randoms(use_true_random=False), temperatures)
def test_the_order_of_the_classes_does_not_matter(
    values: Array, measure: Measure, random: Any, temperature: float
) -> None:
    order = list(range(values.shape[1]))
    random.shuffle(order)
    first = hardness(values, measure, logits=True, temperature=temperature)
    second = hardness(values[:, order], measure, logits=True, temperature=temperature)
    np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-9)


@settings(max_examples=examples(150), deadline=None)
@given(scores(st.floats(-20, 20)), st.sampled_from(("max_prob", "margin", "entropy")), st.floats(0.2, 5))
def test_logits_and_their_probabilities_measure_alike(values: Array, measure: Measure, temperature: float) -> None:
    logits = as_logits(values, logits=True)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    of_logits = hardness(logits, measure, logits=True, temperature=temperature)
    of_probabilities = hardness(probabilities, measure, logits=False, temperature=temperature)
    np.testing.assert_allclose(of_logits, of_probabilities, atol=1e-9)


@settings(max_examples=examples(150), deadline=None)
@given(scores(st.floats(-20, 20)), st.sampled_from(("max_prob", "margin", "entropy")), temperatures, temperatures)
def test_a_higher_temperature_never_makes_a_row_easier(values: Array, measure: Measure, one: float, two: float) -> None:
    cool = np.array(hardness(values, measure, logits=True, temperature=min(one, two)))
    warm = np.array(hardness(values, measure, logits=True, temperature=max(one, two)))
    assert (warm >= cool - 1e-9 if measure in RISING else warm <= cool + 1e-9).all()


boxes = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 4), st.integers(0, 6), st.just(6)),
    elements=st.one_of(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.floats(allow_nan=True, width=32)),
)


@settings(max_examples=examples(200), deadline=None)
@given(boxes, st.floats(0, 1))
def test_boxes_are_counted_as_one_by_one(rows: Array, box_score: float) -> None:
    found = {measure: box_hardness(rows, measure, box_score=box_score) for measure in OF_BOXES}
    for index, row in enumerate(rows):
        real = [box for box in row.astype(np.float64) if not box[5] < 0]
        if not all(np.isfinite(box).all() for box in real):
            assert all(math.isnan(values[index]) for values in found.values())
            continue
        number = len(real)
        low = sum(float(box[4]) < np.float32(box_score) for box in real)
        assert found["count"][index] == number
        assert found["low_share"][index] == (low / number if number else 0.0)
        mean = sum(float(box[4]) for box in real) / number if number else 0.0
        assert math.isclose(found["mean_score"][index], mean, rel_tol=1e-9, abs_tol=1e-12)


@given(st.floats(allow_nan=True), st.sampled_from((*OF_SCORES, *OF_BOXES)), st.floats(allow_nan=False))
def test_hard_is_strictly_beyond_the_threshold_or_nan(value: float, measure: Measure, threshold: float) -> None:
    beyond = value > threshold if measure in RISING else value < threshold
    assert is_hard(value, measure, threshold) is (beyond or math.isnan(value))
