"""Windows of a series are those that a brute force over exact fractions finds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from upwell.pipelines.sources.windows import Windows, WindowShape
from upwell.shared.tensors import Array

MILLI = Fraction(1, 1000)


@st.composite
def series(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], WindowShape]:
    """Times in milliseconds, each later than the one before, values, and how they are cut; now and then a long gap."""
    steps = draw(st.lists(st.one_of(st.integers(1, 40), st.sampled_from([10, 10, 10, 400, 4000])), max_size=60))
    start = draw(st.sampled_from([0, 1_795_000_000_000]))
    times = [start, *(start + int(one) for one in np.cumsum(steps))]
    values = draw(
        st.lists(st.tuples(st.integers(-99, 99), st.integers(-99, 99)), min_size=len(times), max_size=len(times))
    )
    shape = WindowShape(
        draw(st.sampled_from([100.0, 50.0, 125.0, 62.5])), draw(st.integers(1, 12)), draw(st.integers(1, 15)),
        draw(st.integers(1, 60)) / 1000,
    )  # fmt: skip
    return times, values, shape


def brute_force(times: list[int], values: list[tuple[int, int]], shape: WindowShape) -> list[tuple[Fraction, Array]]:
    """End and values of each window, point by point over the whole of the grid."""
    period, gap = 1 / Fraction(shape.rate_hz), Fraction(round(shape.gap_s * 1000), 1000)
    stamps = [(time - times[0]) * MILLI for time in times]
    points: list[list[float]] = []
    while len(points) * period <= stamps[-1]:
        at = len(points) * period
        after = next(index for index, one in enumerate(stamps) if one >= at)
        if stamps[after] == at:
            points.append([float(one) for one in values[after]])
        elif stamps[after] - stamps[after - 1] > gap:
            points.append([np.nan, np.nan])
        else:
            share = (at - stamps[after - 1]) / (stamps[after] - stamps[after - 1])
            pairs = zip(values[after - 1], values[after], strict=True)
            points.append([float(one + (other - one) * share) for one, other in pairs])
    found = []
    for begin in range(0, len(points) - shape.size + 1, shape.step):
        cut = np.array(points[begin : begin + shape.size])
        if not np.isnan(cut).all():
            found.append(((begin + shape.size - 1) * period + times[0] * MILLI, cut))
    return found


# A gap that is little longer than a window, which then begins in it.
@example(([0, 8, 16, 57, 64], [(0, 0)] * 5, WindowShape(125.0, 4, 1, 0.008)))
# Samples as far apart as a gap just is not, in seconds since 1970.
@example(([1_795_000_000_000, 1_795_000_000_001, 1_795_000_000_012], [(0, 0)] * 3, WindowShape(100.0, 1, 1, 0.011)))
@given(series())
def test_windows_are_those_of_a_brute_force(made: tuple[list[int], list[tuple[int, int]], WindowShape]) -> None:
    times, values, shape = made
    windows = Windows(shape)
    found = [window for time, value in zip(times, values, strict=True) for window in windows.take(time / 1000, value)]
    expected = brute_force(times, values, shape)
    assert len(found) == len(expected)
    for window, (end_s, cut) in zip(found, expected, strict=True):
        assert abs(window.end_s - float(end_s)) < 1e-6
        assert window.missing == np.isnan(cut[:, 0]).sum()
        np.testing.assert_allclose(window.values, cut, atol=0.05 if times[0] else 1e-9)


@given(series(), st.data())
def test_what_comes_twice_or_too_late_changes_nothing(
    made: tuple[list[int], list[tuple[int, int]], WindowShape], data: st.DataObject
) -> None:
    times, values, shape = made
    once, again = Windows(shape), Windows(shape)
    span_s = shape.size / shape.rate_hz
    for time, value in zip(times, values, strict=True):
        expected = once.take(time / 1000, value)
        found = again.take(time / 1000, value)
        late_s = data.draw(st.floats(0, span_s * 0.9), label="late_s")
        found += again.take(time / 1000 - late_s, (0, 0)) if time / 1000 - late_s <= time / 1000 else []
        assert [one.end_s for one in found] == [one.end_s for one in expected]
        assert all(np.array_equal(a.values, b.values, equal_nan=True) for a, b in zip(found, expected, strict=True))


def test_a_clock_that_is_set_back_begins_a_new_grid() -> None:
    windows = Windows(WindowShape(10.0, 3, 3, 0.25))
    assert [one.end_s for index in range(5) for one in windows.take(1e6 + index / 10, [index])] == [1e6 + 0.2]
    found = [one for index in range(3) for one in windows.take(5.0 + index / 10, [index])]
    assert [(one.end_s, one.values.ravel().tolist()) for one in found] == [(5.2, [0, 1, 2])]


def test_a_gap_of_years_takes_no_time_and_no_memory() -> None:
    windows = Windows(WindowShape(1000.0, 100, 10, 0.01))
    windows.take(0.0, [1.0])
    found = windows.take(1e9 + 0.0005, [2.0])
    assert [one.missing for one in found] == [99]
