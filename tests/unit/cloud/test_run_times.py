"""The estimate of a run's time."""

from upwell.cloud.batching.run_times import RunTimes


def test_nothing_known_is_zero() -> None:
    assert RunTimes().estimate_s(4, 0.0) == 0.0


def test_one_slow_run_does_not_move_the_estimate() -> None:
    times = RunTimes()
    for run_s in (2.0, 0.010, 0.011, 0.012):
        times.observe(1, run_s, 0.0)
    assert times.estimate_s(1, 0.0) == 0.011


def test_sizes_of_a_bucket_share_their_runs_and_the_next_bucket_does_not() -> None:
    times = RunTimes()
    times.observe(3, 0.02, 0.0)
    assert times.estimate_s(4, 0.0) == 0.02
    assert times.estimate_s(2, 0.0) == 0.0


def test_more_rows_never_take_less() -> None:
    times = RunTimes()
    times.observe(1, 0.03, 0.0)
    times.observe(8, 0.02, 0.0)
    assert times.estimate_s(8, 0.0) == 0.03
    assert times.estimate_s(64, 0.0) == 0.03


def test_an_old_estimate_counts_as_unknown_so_that_a_run_can_correct_it() -> None:
    times = RunTimes()
    times.observe(1, 0.05, 10.0)
    assert times.estimate_s(1, 11.0) == 0.05
    assert times.estimate_s(1, 11.001) == 0.0


def test_slow_models_are_remembered_for_some_of_their_runs() -> None:
    times = RunTimes()
    times.observe(1, 3.0, 0.0)
    assert times.estimate_s(1, 11.9) == 3.0
    assert times.estimate_s(1, 12.1) == 0.0
