"""The estimate of a run's time."""

from collections.abc import Sequence
from itertools import pairwise

from upwell.cloud.batching.run_times import BatchRunTimes, Delays


def seen(times: BatchRunTimes, rows: int, *runs_s: float, at_s: float = 0.0) -> BatchRunTimes:
    for run_s in runs_s if len(runs_s) > 1 else runs_s * 3:
        times.observe(rows, run_s, at_s)
    return times


def estimates(times: BatchRunTimes, rows: Sequence[int]) -> list[float]:
    return [times.estimate_s(one, 0.0) for one in rows]


def test_nothing_known_is_zero_and_two_runs_are_nothing() -> None:
    assert BatchRunTimes().estimate_s(4, 0.0) == 0.0
    assert seen(BatchRunTimes(), 4, 0.01, 0.01).estimate_s(4, 0.0) == 0.0
    assert seen(BatchRunTimes(), 4, 0.01).estimate_s(4, 0.0) == 0.01


def test_disturbed_runs_do_not_move_the_estimate_even_where_most_are() -> None:
    assert seen(BatchRunTimes(), 1, 2.0, 0.010, 0.011, 0.012).estimate_s(1, 0.0) == 0.010
    assert seen(BatchRunTimes(), 1, *[0.010] * 5, *[0.9] * 11).estimate_s(1, 0.0) == 0.010


def test_sizes_of_a_class_share_their_runs_and_the_next_class_does_not() -> None:
    assert estimates(seen(BatchRunTimes(), 3, 0.02), (2, 3, 4)) == [0.0, 0.02, 0.02]
    assert estimates(seen(BatchRunTimes((4, 16)), 16, 0.02), (4, 5, 16)) == [0.0, 0.02, 0.02]


def test_without_buckets_a_class_ends_at_each_quarter_of_a_doubling() -> None:
    ends = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    for before, end in pairwise(ends):
        times = seen(BatchRunTimes(), end, 0.02)
        sizes = (1, before, before + 1, end, end + 1)
        assert estimates(times, sizes) == [0.0, 0.0, 0.02, 0.02, 0.02]
        shares = [times.remembered_s(rows, 0.0) for rows in sizes]
        assert shares == [0.02 / end, 0.02 * before / end, 0.02, 0.02, 0.02]


def test_more_rows_never_take_less_so_larger_runs_correct_smaller_ones() -> None:
    times = seen(BatchRunTimes(), 1, 0.03)
    assert times.estimate_s(64, 0.0) == 0.03
    seen(times, 8, 0.02)
    assert estimates(times, (1, 4, 8, 64)) == [0.02] * 4
    seen(times, 2, 0.01)
    assert estimates(times, (1, 2, 4, 8)) == [0.01, 0.01, 0.01, 0.02]


def test_an_old_estimate_counts_as_unknown_so_that_a_run_can_correct_it() -> None:
    times = seen(BatchRunTimes(), 1, 0.05, at_s=10.0)
    assert times.estimate_s(1, 11.0) == 0.05
    assert times.estimate_s(1, 11.001) == 0.0


def test_slow_models_are_remembered_for_some_of_their_runs() -> None:
    times = seen(BatchRunTimes(), 1, 3.0)
    assert times.estimate_s(1, 11.9) == 3.0
    assert times.estimate_s(1, 12.1) == 0.0


def test_sizes_are_remembered_for_longer_than_requests_are_refused_by_them() -> None:
    times = seen(BatchRunTimes(), 1, 0.03)
    assert [times.estimate_s(1, 5.0), times.remembered_s(1, 5.0), times.remembered_s(1, 10.1)] == [0.0, 0.03, 0.0]


def test_what_is_seen_after_that_begins_anew() -> None:
    times = seen(BatchRunTimes(), 1, *[0.5] * 16)
    seen(times, 1, 0.01, at_s=20.0)
    assert times.estimate_s(1, 20.0) == 0.01


def test_for_choosing_an_unknown_size_takes_its_share_of_the_next_larger() -> None:
    times = seen(BatchRunTimes((1, 4, 8, 16)), 16, 0.04)
    assert [times.remembered_s(rows, 0.0) for rows in (1, 4, 8, 16)] == [0.0025, 0.01, 0.02, 0.04]
    assert estimates(times, (1, 4, 8, 16)) == [0.0, 0.0, 0.0, 0.04]
    seen(times, 4, 0.03)
    assert [times.remembered_s(rows, 0.0) for rows in (1, 4, 8, 16)] == [0.0075, 0.03, 0.03, 0.04]


def test_the_delay_of_answers_is_the_median_of_those_seen_lately() -> None:
    delays = Delays()
    assert delays.estimate_s(0.0) == 0.0
    for delay_s in (0.001, 0.002, 0.003, 0.5, 0.6):
        delays.observe(delay_s, 1.0)
    assert delays.estimate_s(1.25) == 0.003
    assert delays.estimate_s(1.26) == 0.0


def test_a_few_delays_are_not_believed_and_those_of_long_ago_are_forgotten() -> None:
    delays = Delays()
    for at_s in (1.0, 2.0):
        delays.observe(0.5, at_s)
        delays.observe(0.5, at_s)
        assert delays.estimate_s(at_s) == 0.0
    delays.observe(0.5, 2.0)
    assert delays.estimate_s(2.0) == 0.5
    for _ in range(3):
        delays.observe(0.001, 2.3)
    assert delays.estimate_s(2.3) == 0.001
