"""Estimates against what made the samples: synthetic links, numpy's quantiles, and runs of known length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from upwell.shared.routing.estimators import FRESH_S, RECENT, WINDOW, LatencyWindow, LinkEstimate, RunTimes

STEP_S = 0.05


def window(durations_s: Iterable[float], step_s: float = STEP_S) -> LatencyWindow:
    built = LatencyWindow()
    for index, duration_s in enumerate(durations_s):
        built = built.add(duration_s, index * step_s)
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
    assert not empty.is_known(0.0)


def test_equal_samples_give_that_sample() -> None:
    built = window([0.005] * 40)
    assert (built.p50_s, built.lately_s, built.p99_s) == (0.005, 0.005, 0.005)


def test_one_bad_moment_moves_the_slowest_percentile_only() -> None:
    built = window([0.005] * 6 + [1.0])
    assert (built.p50_s, built.lately_s, built.p99_s) == (0.005, 0.005, 1.0)


def test_a_change_is_followed_within_the_recent_samples() -> None:
    built = window([0.005] * WINDOW + [0.5] * RECENT)
    assert (built.p50_s, built.lately_s) == (0.005, 0.5)


def test_after_a_silence_old_durations_do_not_outvote_new_ones() -> None:
    slow = window([0.5] * WINDOW)
    back = slow.add(0.005, slow.last_at_s + FRESH_S + 0.001)
    assert (back.lately_s, back.p99_s) == (0.005, 0.5)
    assert back.add(0.006, back.last_at_s).add(0.007, back.last_at_s).lately_s == 0.006
    fast = window([0.005] * WINDOW)
    assert fast.add(0.5, fast.last_at_s + FRESH_S + 0.001).lately_s == 0.5
    assert slow.add(0.005, slow.last_at_s + FRESH_S).lately_s == 0.5


def test_a_window_is_known_for_a_moment() -> None:
    built = window([0.005])
    assert built.is_known(built.last_at_s + FRESH_S)
    assert not built.is_known(built.last_at_s + FRESH_S + 0.001)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    built = window([1.0] * 100 + [0.01] * WINDOW)
    assert built.p99_s == 0.01


def test_a_window_remembers_when_it_was_fed() -> None:
    assert LatencyWindow().add(1.0, 7.0).last_at_s == 7.0


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


def link(samples: Iterable[tuple[int, float]], step_s: float = STEP_S, start_s: float = 0.0) -> LinkEstimate:
    estimate = LinkEstimate()
    for index, (size_bytes, network_s) in enumerate(samples):
        estimate = estimate.add(size_bytes, network_s, start_s + index * step_s)
    return estimate


def sized(seed: int, count: int = LinkEstimate.SAMPLES) -> list[int]:
    rng = random.Random(seed)
    return [rng.choice((800, 2_000, 20_000, 80_000, 400_000)) for _ in range(count)]


LINKS = [(0.002, 125e6), (0.05, 1e6), (0.3, 2e5), (0.0, 1e6), (0.08, 1e9)]
"""Round trip in seconds and bandwidth in bytes per second."""


@pytest.mark.parametrize(("rtt_s", "bytes_per_s"), LINKS)
def test_an_exact_link_is_found_exactly(rtt_s: float, bytes_per_s: float) -> None:
    estimate = link((size, rtt_s + size / bytes_per_s) for size in sized(1))
    assert estimate.rtt_s == pytest.approx(rtt_s, abs=1e-9)
    assert estimate.inverse_bandwidth_s_per_byte == pytest.approx(1 / bytes_per_s)
    assert estimate.spread_s == pytest.approx(0, abs=1e-9)
    assert estimate.expect_s(1_000_000) == pytest.approx(rtt_s + 1e6 / bytes_per_s)


@pytest.mark.parametrize(("rtt_s", "bytes_per_s"), [(0.02, 1e6), (0.05, 1e6), (0.1, 2e5)])
@pytest.mark.parametrize("seed", range(5))
def test_a_jittering_link_is_found_about(rtt_s: float, bytes_per_s: float, seed: int) -> None:
    rng = random.Random(seed)
    estimate = link((size, rtt_s * rng.uniform(0.9, 1.3) + size / bytes_per_s) for size in sized(seed))
    for size in (1_000, 100_000, 400_000):
        true_s = rtt_s + size / bytes_per_s
        assert true_s * 0.85 <= estimate.expect_s(size) <= true_s * 1.4


@pytest.mark.parametrize("seed", range(5))
def test_a_quarter_of_outliers_does_not_mislead(seed: int) -> None:
    rng = random.Random(seed)
    sizes = sized(seed)
    odd = set(rng.sample(range(len(sizes)), len(sizes) // 4))
    estimate = link((size, 0.05 + size / 1e6 + (3.0 if index in odd else 0.0)) for index, size in enumerate(sizes))
    assert estimate.expect_s(100_000) == pytest.approx(0.15, rel=0.25)


def test_sizes_that_do_not_vary_count_as_round_trip_and_predict_themselves() -> None:
    for spread in (0, LinkEstimate.LEAST_DIFFERENCE_BYTES - 1):
        estimate = link((10_000 + spread * (index % 2), 0.2) for index in range(10))
        assert estimate.inverse_bandwidth_s_per_byte == 0.0
        assert estimate.expect_s(10_000) == pytest.approx(0.2)


def test_sizes_that_differ_enough_tell_the_bandwidth() -> None:
    estimate = link([(1_000, 0.1), (1_000 + LinkEstimate.LEAST_DIFFERENCE_BYTES, 0.2)])
    assert estimate.inverse_bandwidth_s_per_byte == pytest.approx(0.1 / LinkEstimate.LEAST_DIFFERENCE_BYTES)


def test_a_larger_message_is_never_expected_sooner() -> None:
    estimate = link([(1_000, 0.3), (100_000, 0.1), (500_000, 0.05), (1_000, 0.3)])
    assert estimate.inverse_bandwidth_s_per_byte == 0.0
    assert estimate.expect_s(10**9) >= estimate.expect_s(0) >= 0


def test_a_round_trip_is_never_negative() -> None:
    assert link([(100_000, 0.01), (200_000, 0.2), (300_000, 0.4)]).rtt_s >= 0.0


@pytest.mark.parametrize("change", [lambda s: s * 10, lambda s: s / 10], ids=["slower", "faster"])
def test_a_link_that_changes_is_learnt_anew_within_its_samples(change: Callable[[float], float]) -> None:
    sizes = sized(3)
    before = [(size, 0.05 + size / 1e6) for size in sizes]
    after = [(size, change(0.05 + size / 1e6)) for size in sizes]
    assert link(before + after).expect_s(50_000) == pytest.approx(change(0.1))


def test_most_of_the_samples_new_is_enough() -> None:
    before, after = [(10_000, 0.1)] * LinkEstimate.SAMPLES, [(10_000, 0.5)] * (LinkEstimate.SAMPLES // 2 + 1)
    assert link(before + after).rtt_s == pytest.approx(0.5)


def test_a_link_that_comes_back_after_a_silence_is_believed_at_once() -> None:
    slow = link([(10_000, 5.0)] * LinkEstimate.SAMPLES)
    back = slow.add(10_000, 0.01, slow.last_at_s + FRESH_S + 0.001)
    assert back.samples == ((10_000, 0.01),)
    assert back.expect_s(10_000) == pytest.approx(0.01)
    kept = slow.add(10_000, 0.01, slow.last_at_s + FRESH_S)
    assert len(kept.samples) == LinkEstimate.SAMPLES


def test_it_is_known_with_enough_recent_samples_only() -> None:
    empty = LinkEstimate()
    assert not empty.is_known(0.0)
    assert math.isnan(empty.expect_s(1))
    found = [link([(1_000, 0.1)] * count).is_known((count - 1) * STEP_S) for count in (1, 2, 3, 4)]
    assert found == [False, False, True, True]
    three = link([(1_000, 0.1)] * 3)
    assert three.is_known(three.last_at_s + FRESH_S)
    assert not three.is_known(three.last_at_s + FRESH_S + 0.001)


def test_it_keeps_no_more_than_its_samples() -> None:
    assert len(link([(1_000, 0.1)] * 500).samples) == LinkEstimate.SAMPLES


def test_a_clock_that_goes_back_breaks_nothing() -> None:
    estimate = link([(1_000, 0.1)] * 5, step_s=-1.0)
    assert estimate.rtt_s == pytest.approx(0.1)
