"""Pooling adjacent violators against the definition: the nearest sequence that rises, found by other means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from tests.examples import examples
from upwell.shared.partition.tier_profile import falling, rising

TIMES = st.floats(0, 10, allow_nan=False)
WEIGHTS = st.floats(0.01, 100)
SEQUENCES = st.lists(st.tuples(TIMES, WEIGHTS), min_size=1, max_size=40)


def by_definition(values: list[float], weights: list[float]) -> list[float]:
    """The min-max formula (Barlow et al. 1972): x_i = max over a <= i of min over b >= i of the mean of y[a..b]."""

    def mean(a: int, b: int) -> float:
        return float(np.average(values[a : b + 1], weights=weights[a : b + 1]))

    count = len(values)
    return [max(min(mean(a, b) for b in range(i, count)) for a in range(i + 1)) for i in range(count)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(TIMES, WEIGHTS), min_size=1, max_size=9))
def test_it_is_the_definition(sequence: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in sequence], [weight for _, weight in sequence]
    assert rising(values, weights) == pytest.approx(by_definition(values, weights), abs=1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(SEQUENCES)
def test_it_is_what_others_compute(sequence: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in sequence], [weight for _, weight in sequence]
    for ours, increasing in ((rising, True), (falling, False)):
        expected = isotonic_regression(values, weights=weights, increasing=increasing).x
        assert ours(values, weights) == pytest.approx(expected.tolist(), abs=1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(SEQUENCES)
def test_it_is_in_order_keeps_the_weighted_mean_and_changes_nothing_twice(sequence: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in sequence], [weight for _, weight in sequence]
    found = rising(values, weights)
    assert list(found) == sorted(found)
    assert np.average(found, weights=weights) == pytest.approx(np.average(values, weights=weights), abs=1e-9)
    assert rising(found, weights) == found
