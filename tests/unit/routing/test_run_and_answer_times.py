"""Times of runs against numpy's quantiles, and of answers against brute force."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.routing.estimators.run_and_answer_times import (
    FRESH_S,
    RECENT,
    WINDOW,
    AnswerTimes,
    LatencyWindow,
    RunTimes,
)

STEP_S = 0.05


def window(durations_s: Iterable[float], step_s: float = STEP_S) -> LatencyWindow:
    built = LatencyWindow()
    for index, duration_s in enumerate(durations_s):
        built = built.add_all([(duration_s, index * step_s)])
    return built


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 10, 11, 12, 63, 64, 65, 200])
def test_quantiles_are_ranks_of_the_last_samples(count: int) -> None:
    durations = np.random.default_rng(count).exponential(0.01, count)
    built = window(durations.tolist())
    last = durations[-WINDOW:]
    assert len(built.samples_s) == min(count, WINDOW)
    assert built.p50_s == np.quantile(last, 0.5, method="lower")
    assert built.p99_s == np.quantile(last, 0.99, method="higher")
    assert built.lately_s == np.quantile(last[-RECENT:], 0.5, method="lower")


def test_an_empty_window_knows_nothing() -> None:
    empty = LatencyWindow()
    assert math.isnan(empty.p50_s + empty.lately_s + empty.p99_s)


def test_equal_samples_give_that_sample() -> None:
    built = window([0.005] * 40)
    assert (built.p50_s, built.lately_s, built.p99_s) == (0.005, 0.005, 0.005)


def test_one_bad_moment_moves_the_slowest_percentile_only() -> None:
    built = window([0.005] * 6 + [1.0])
    assert (built.p50_s, built.lately_s, built.p99_s) == (0.005, 0.005, 1.0)


def test_a_change_is_followed_within_the_recent_samples() -> None:
    built = window([0.005] * WINDOW + [0.5] * RECENT)
    assert (built.p50_s, built.lately_s) == (0.005, 0.5)


SLOW_S, FAST_S = 0.5, 0.005


def after_silence(former: LatencyWindow, duration_s: float, more_s: float = 1e-6) -> LatencyWindow:
    return former.add_all([(duration_s, former.last_at_s + FRESH_S + duration_s + more_s)])


def test_after_a_silence_old_durations_do_not_outvote_a_faster_one() -> None:
    slow = window([SLOW_S] * WINDOW)
    back = after_silence(slow, FAST_S)
    assert (back.lately_s, back.p99_s) == (FAST_S, SLOW_S)
    assert back.add_all([(0.006, back.last_at_s), (0.007, back.last_at_s)]).lately_s == 0.006
    assert after_silence(slow, FAST_S, more_s=-1e-6).lately_s == SLOW_S


def test_after_a_silence_the_second_slower_duration_outvotes_the_old_ones() -> None:
    once = after_silence(window([FAST_S] * WINDOW), SLOW_S)
    assert once.lately_s == FAST_S
    assert once.add_all([(SLOW_S, once.last_at_s + SLOW_S)]).lately_s == SLOW_S
    assert after_silence(once, SLOW_S).lately_s == SLOW_S


def test_a_stalled_run_is_no_silence() -> None:
    busy = window([SLOW_S] * 2 + [FAST_S] * 2)
    stalled_s = 2 * FRESH_S
    assert busy.add_all([(stalled_s, busy.last_at_s + stalled_s)]).recent == 5


@given(
    st.lists(st.tuples(st.floats(0.001, 0.002), st.floats(0.0, 2 * FRESH_S)), min_size=2, max_size=2 * RECENT),
    st.integers(min_value=0),
    st.floats(0.1, 1e4),
)
def test_one_outlier_never_makes_the_device_look_slow(
    runs: list[tuple[float, float]], place: int, outlier_s: float
) -> None:
    built, now_s = LatencyWindow(), 0.0
    for index, (duration_s, waited_s) in enumerate(runs):
        took_s = outlier_s if index == place % len(runs) else duration_s
        now_s += waited_s + took_s
        built = built.add_all([(took_s, now_s)])
        assert built.lately_s <= 0.002 or index == 0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    built = window([1.0] * 100 + [0.01] * WINDOW)
    assert built.p99_s == 0.01


def test_a_window_remembers_when_it_was_fed() -> None:
    assert LatencyWindow().add_all([(1.0, 7.0)]).last_at_s == 7.0


BUCKETS = [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1000, 1024)]


@pytest.mark.parametrize(("rows", "bucket"), BUCKETS)
def test_runs_of_about_the_same_size_share_a_window(rows: int, bucket: int) -> None:
    times = RunTimes().add(rows, 0.1, 0.0)
    assert list(times.windows) == [bucket]
    found = times.expect(bucket)
    assert found is not None
    assert found.p50_s == 0.1


def test_without_a_run_nothing_is_expected() -> None:
    assert RunTimes().expect(1) is None


def test_more_rows_than_ever_seen_are_expected_to_take_as_much_longer_and_fewer_no_less() -> None:
    times = RunTimes().add(4, 0.04, 5.0)
    more, fewer = times.expect(16), times.expect(1)
    assert more is not None
    assert fewer is not None
    assert (more.p50_s, more.lately_s, more.p99_s, more.last_at_s) == pytest.approx((0.16, 0.16, 0.16, 5.0))
    assert (fewer.p50_s, fewer.lately_s, fewer.p99_s) == (0.04, 0.04, 0.04)
    assert (more.guess, fewer.guess) == (4, 4), "0.04 and 0.01 s at least"
    assert times.add(16, 0.05, 5.0).expect(16).guess == 1  # type: ignore[union-attr]


def test_the_nearest_size_speaks_for_one_that_was_never_seen() -> None:
    times = RunTimes().add(1, 0.01, 0.0).add(64, 0.2, 0.0)
    found = times.expect(32)
    assert found is not None
    assert found.p50_s == 0.2
    found = times.expect(4)
    assert found is not None
    assert found.p50_s == pytest.approx(0.04)


def test_adding_a_run_leaves_the_former_value_as_it_was() -> None:
    before = RunTimes().add(1, 0.01, 0.0)
    before.add(1, 9.0, 1.0).add(8, 9.0, 2.0)
    assert before == RunTimes().add(1, 0.01, 0.0)


@pytest.mark.parametrize("count", [20, 21, 100, 511, 512, 513, 1500])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.95, 0.99, 1.0])
def test_answer_times_are_ranks_of_the_last_of_them(count: int, share: float) -> None:
    durations = np.random.default_rng(count).exponential(0.05, count).round(3).tolist()
    times = AnswerTimes()
    for duration_s in durations:
        times = times.add(duration_s)
    last = sorted(durations[-AnswerTimes.WINDOW :])
    assert times.quantile_s(share) == last[math.ceil(share * len(last)) - 1]
    assert len(times.samples_s) == len(times.ordered_s) == len(last)


def test_too_few_answers_have_no_quantile() -> None:
    times = AnswerTimes()
    for _ in range(AnswerTimes.ENOUGH - 1):
        times = times.add(0.1)
    assert times.quantile_s(0.95) == math.inf
    assert times.add(0.1).quantile_s(0.95) == 0.1


def test_three_stalls_in_a_hundred_do_not_become_the_p95() -> None:
    rng, hidden = random.Random(0), 0
    for _ in range(200):
        times = AnswerTimes()
        for _ in range(AnswerTimes.WINDOW):
            times = times.add(0.5 if rng.random() < 0.03 else 0.02)
        hidden += times.quantile_s(0.95) == 0.02
    assert hidden >= 190


def test_only_who_waited_longest_says_that_an_answer_took_longer() -> None:
    times = AnswerTimes().add(0.1).add(0.2)
    assert times.outlasted(0.15) is times
    assert times.outlasted(0.3).ordered_s == (0.1, 0.2, 0.3)
    assert AnswerTimes().outlasted(1.0) == AnswerTimes()
