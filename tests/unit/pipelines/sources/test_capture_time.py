"""The instants of capture on made arrivals, and which frames a rate leaves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.pipelines.sources.capture_time import (
    JUMP_S,
    CaptureClock,
    FrameRate,
    MediaClock,
    PublisherClock,
    published_capture_time,
)

EXACT_S = 1e-6

delays = st.lists(st.floats(0.0, 1.5), min_size=1, max_size=60)
starts = st.floats(0.0, 1e6)


def arrivals(delays_s: list[float], fps: float) -> list[tuple[float, float]]:
    """(arrival, stream time) of frames captured 1 / fps apart from instant 0 on; none overtakes another."""
    found, last_s = [], 0.0
    for index, delay_s in enumerate(delays_s):
        last_s = max(last_s, index / fps + delay_s)
        found.append((last_s, index / fps))
    return found


@given(delays, starts, st.sampled_from([5, 25, 60]))
def test_a_frame_is_never_captured_after_it_came_nor_before_the_one_before_it(
    delays_s: list[float], start_s: float, fps: int
) -> None:
    clock, before_s = CaptureClock(), -math.inf
    for arrival_s, stream_s in arrivals(delays_s, fps):
        captured_s = clock.captured_s(arrival_s, start_s + stream_s)
        assert before_s <= captured_s <= arrival_s
        before_s = captured_s
    assert clock.jumps == 0


@given(delays, starts, st.sampled_from([5, 25, 60]))
def test_the_error_lies_between_the_least_delay_and_the_frames_own(
    delays_s: list[float], start_s: float, fps: int
) -> None:
    clock = CaptureClock(window_s=1e9)
    came = arrivals(delays_s, fps)
    least_s = math.inf
    for arrival_s, true_s in came:
        least_s = min(least_s, arrival_s - true_s)
        error_s = clock.captured_s(arrival_s, start_s + true_s) - true_s
        assert least_s - EXACT_S <= error_s <= arrival_s - true_s + EXACT_S


def test_after_the_least_delay_has_been_seen_frames_are_late_by_it_alone() -> None:
    clock = CaptureClock()
    errors = [clock.captured_s(true_s + delay_s, 700 + true_s) - true_s
              for true_s, delay_s in ((0.0, 0.9), (1.0, 0.1), (2.0, 0.9), (3.0, 0.5))]  # fmt: skip
    assert errors == pytest.approx([0.9, 0.1, 0.1, 0.1])


def test_the_clock_of_a_camera_that_runs_slow_costs_no_more_than_its_drift_over_the_window() -> None:
    clock, drift, window_s = CaptureClock(window_s=10), 1e-3, 10
    for index in range(25 * 600):
        true_s = index / 25
        captured_s = clock.captured_s(true_s + 0.1, true_s * (1 - drift))
        assert true_s + 0.1 - drift * window_s - EXACT_S <= captured_s <= true_s + 0.1


@pytest.mark.parametrize("jump_s", [-5.0, -0.2, 5.0, 1e6])
def test_a_clock_that_was_set_is_forgotten(jump_s: float) -> None:
    clock = CaptureClock()
    for index in range(50):
        clock.captured_s(index / 25, index / 25)
    assert clock.captured_s(2.0, 2.0 + jump_s) == 2.0
    assert clock.jumps == 1
    assert clock.captured_s(2.5, 2.04 + jump_s) == pytest.approx(2.04)


def test_a_stall_is_no_jump_and_what_comes_after_it_is_old() -> None:
    clock = CaptureClock()
    clock.captured_s(0.1, 0.0)
    burst = [clock.captured_s(8.0, 0.04 * index) for index in range(1, 50)]
    assert burst == pytest.approx([0.1 + 0.04 * index for index in range(1, 50)])
    assert clock.jumps == 0


def test_a_camera_that_paused_has_not_jumped() -> None:
    clock = CaptureClock()
    clock.captured_s(0.1, 0.0)
    assert clock.captured_s(60.4, 60.0) == pytest.approx(60.4)  # all that was known is older than the window
    assert clock.captured_s(60.45, 60.1) == pytest.approx(60.45)
    assert clock.jumps == 0


def test_without_time_a_frame_is_captured_when_it_comes() -> None:
    clock = CaptureClock()
    assert [clock.captured_s(arrival_s, None) for arrival_s in (1.0, 5.0)] == [1.0, 5.0]
    assert clock.captured_s(6.0, 0.0) == 6.0


@given(st.floats(1, 60), st.floats(1, 60), st.floats(0, 0.2), st.randoms())
def test_a_rate_is_kept_on_average(source_fps: float, fps: float, jitter: float, chance: object) -> None:
    rate = FrameRate(fps)
    count = 300
    times_s = [(index + jitter * chance.random()) / source_fps for index in range(count)]  # type: ignore[attr-defined]
    kept = sum(rate.keeps(time_s) for time_s in times_s)
    expected = count * min(1.0, fps / source_fps)
    assert expected * 0.9 - 2 <= kept <= expected * 1.1 + 2


def test_25_frames_a_second_become_10_and_not_8() -> None:
    rate = FrameRate(10)
    assert sum(rate.keeps(index / 25) for index in range(2500)) in (1000, 1001)


def test_no_rate_leaves_all() -> None:
    rate = FrameRate(0)
    assert all(rate.keeps(0.0) for _ in range(10))


@given(st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), max_size=40))
def test_the_time_of_a_file_never_runs_backwards_and_all_frames_have_one_or_none(stated_s: list[float | None]) -> None:
    clock = MediaClock()
    found_s = [clock.at_s(one) for one in stated_s]
    if stated_s and stated_s[0] is None:
        assert set(found_s) == {None}
    else:
        assert found_s == sorted(one for one in found_s if one is not None)


def test_where_recordings_were_joined_time_goes_on() -> None:
    clock = MediaClock()
    stated_s = [3600.0, 3600.5, None, 3601.0, 3600.9, 0.0, 0.5, 10.0, 0.0, 0.5]
    expected_s = [3600.0, 3600.5, 3600.5, 3601.0, 3601.0, 3601.0, 3601.5, 3611.0, 3611.0, 3611.5]
    assert [clock.at_s(one) for one in stated_s] == expected_s


def test_time_that_runs_backwards_begins_the_turns_anew() -> None:
    rate = FrameRate(10)
    assert [rate.keeps(time_s) for time_s in (100.0, 100.04, 3.0, 3.04, 3.1)] == [True, False, True, False, True]


@given(st.floats(0, 86_000))
def test_an_age_within_a_day_is_believed(age_s: float) -> None:
    captured_s, unix_s = published_capture_time(repr(1e9 - age_s), 500.0, 1e9)
    assert captured_s == pytest.approx(500 - age_s, abs=1e-5)
    assert unix_s == pytest.approx(1e9 - age_s, abs=1e-5)


@pytest.mark.parametrize("said", [None, "", "x", "nan", "inf", "-inf", "1e999", "0", "-1", "1000000000.5", "999900000"])
def test_a_wrong_clock_is_not_believed(said: str | None) -> None:
    assert published_capture_time(said, 500.0, 1e9) == (500.0, 1e9)


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(-7200, 7200)), max_size=50))
def test_a_publisher_s_times_never_run_backwards_and_keep_up_with_the_arrivals(
    steps: list[tuple[float, float]],
) -> None:
    """Each step is the time since the last arrival, and how slow the publisher's clock is at this one."""
    clock, arrival_s, before_s = PublisherClock(), 500.0, -math.inf
    for later_s, slow_s in steps:
        arrival_s += later_s
        captured_s, unix_s = clock.captured(repr(1e9 + arrival_s - slow_s), arrival_s, 1e9 + arrival_s)
        assert before_s <= captured_s <= arrival_s
        assert unix_s - captured_s == pytest.approx(1e9, abs=1e-5)
        if arrival_s - slow_s < before_s - JUMP_S:  # set back: a claim before the frame that came first is no claim
            assert captured_s == arrival_s
        before_s = captured_s


def test_a_clock_that_is_set_back_stops_no_frames() -> None:
    clock, rate = PublisherClock(), FrameRate(1)
    slow_s = [0.0] * 10 + [600.0] * 100
    times_s = [clock.captured(repr(1e9 + at_s - slow), at_s, 1e9 + at_s)[0] for at_s, slow in enumerate(slow_s)]
    assert sum(map(rate.keeps, times_s)) == 110


@given(st.text(max_size=20))
def test_no_text_makes_a_time_that_is_none(said: str) -> None:
    captured_s, _ = published_capture_time(said, 500.0, 1e9)
    assert math.isfinite(captured_s)
    assert captured_s <= 500
