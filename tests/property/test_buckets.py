"""The token bucket against its definition: what has come in by an instant, less what was taken, never above `most`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.routing.estimators.token_bucket import Refill, TokenBucket

# Sums of quarters are exact in floating point, so that nothing here is about rounding.
quarters = st.integers(0, 400).map(lambda count: count / 4)
events = st.lists(st.tuples(quarters, st.integers(0, 60)), max_size=30)


def level(per_s: int, most: int, taken: list[tuple[Fraction, int]], at: Fraction) -> Fraction:
    """By definition: the least, over all instants s, of `most` and what came in since s, less what was taken since."""
    floors = [Fraction(most)]
    for index, (start, _) in enumerate(taken):
        since = taken[index:]
        floors.append(most + per_s * (at - start) - sum(amount for _, amount in since))
    started = Fraction(most) + per_s * at - sum(amount for _, amount in taken)
    return min([*floors, started])


@given(st.integers(1, 50), st.integers(1, 50), events, quarters)
def test_the_level_is_what_came_in_less_what_was_taken(
    per_s: int, most: int, steps: list[tuple[float, int]], rest: float
) -> None:
    refill, bucket = Refill(per_s, most), TokenBucket().refilled(Refill(per_s, most), 100.0)
    now, taken = Fraction(0), list[tuple[Fraction, int]]()
    for wait, amount in [*steps, (rest, 0)]:
        now += Fraction(wait)
        bucket = bucket.refilled(refill, 100.0 + float(now))
        assert bucket.level == pytest.approx(float(level(per_s, most, taken, now)), abs=1e-6)
        bucket = bucket.take(amount)
        taken.append((now, amount))


@given(st.integers(1, 50), st.integers(1, 20), st.lists(quarters, min_size=1, max_size=60))
def test_over_any_span_no_more_passes_than_the_bucket_and_its_refill(per_s: int, most: int, waits: list[float]) -> None:
    refill, bucket = Refill(per_s, most), TokenBucket()
    now, passed = 0.0, list[float]()
    for wait in waits:
        now += wait / 100
        bucket = bucket.refilled(refill, now)
        if bucket.wait_s(1.0, refill) == 0:
            bucket = bucket.take()
            passed.append(now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= most + per_s * (passed[last] - passed[first]) + 1e-9


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 500), quarters)
def test_who_waits_as_told_is_let_in(per_s: int, most: int, taken: int, least: float) -> None:
    refill = Refill(per_s, most)
    bucket = TokenBucket().refilled(refill, 0.0).take(taken)
    wanted = min(least, most)
    wait_s = bucket.wait_s(wanted, refill)
    assert wait_s == 0 or bucket.refilled(refill, wait_s * 0.5).wait_s(wanted, refill) > 0
    assert bucket.refilled(refill, wait_s).wait_s(wanted, refill) < 1e-9


def test_a_clock_that_steps_back_gives_nothing() -> None:
    refill = Refill(1.0, 10.0)
    bucket = TokenBucket().refilled(refill, 100.0).take(10.0)
    assert bucket.refilled(refill, 50.0) == bucket
    assert bucket.refilled(refill, 50.0).wait_s(1.0, refill) == 1.0
    assert bucket.refilled(refill, 100.5).wait_s(1.0, refill) == 0.5


def test_what_is_given_stays_below_what_it_may_hold() -> None:
    assert TokenBucket(0.0).give(0.5, 10.0).give(100.0, 10.0).level == 10.0
