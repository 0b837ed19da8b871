"""Times made monotone, on cases with known answers; against brute force in tests/property."""

from __future__ import annotations

import pytest

from upwell.shared.partition.tier_profile import Spread, certainty, falling, rising


def test_what_is_in_order_stays() -> None:
    assert rising([0.0, 1.0, 1.0, 4.0], [1, 2, 3, 4]) == (0.0, 1.0, 1.0, 4.0)
    assert falling([4.0, 1.0, 1.0, 0.0], [1, 2, 3, 4]) == (4.0, 1.0, 1.0, 0.0)


def test_neighbours_in_the_wrong_order_become_their_weighted_mean() -> None:
    assert rising([0.0, 4.0, 1.0, 5.0], [1, 1, 2, 1]) == (0.0, 2.0, 2.0, 5.0)
    assert falling([5.0, 1.0, 4.0, 0.0], [1, 2, 1, 1]) == (5.0, 2.0, 2.0, 0.0)


def test_a_mean_that_undercuts_what_was_before_takes_it_in_as_well() -> None:
    assert rising([3.0, 5.0, 1.0], [1, 1, 1]) == (3.0, 3.0, 3.0)
    assert rising([], []) == ()


def test_the_surer_measurement_moves_less() -> None:
    sure = Spread(median_s=0.010, p10_s=0.0099, p90_s=0.0101, runs=30)
    vague = Spread(median_s=0.008, p10_s=0.006, p90_s=0.012, runs=30)
    first, second = rising([sure.median_s, vague.median_s], [certainty(sure), certainty(vague)])
    assert first == second == pytest.approx(0.010, rel=0.01)


def test_more_runs_are_surer_and_no_timing_is_certain() -> None:
    one = Spread(median_s=0.01, p10_s=0.01, p90_s=0.01, runs=1)
    assert certainty(one) == pytest.approx(1 / (0.005 * 0.01) ** 2)
    assert certainty(one.model_copy(update={"runs": 4})) == pytest.approx(4 * certainty(one))
    assert certainty(Spread(median_s=0, p10_s=0, p90_s=0, runs=1)) < float("inf")
