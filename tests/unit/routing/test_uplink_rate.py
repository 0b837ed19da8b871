"""What the distribution of the link's rate says before and after messages that came through, or did not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upwell.shared.routing.estimators.uplink_rate import RateBelief

RTT_S = 0.06


def after(rate: float, *, count: int = 6, sizes: tuple[int, ...] = (20_000, 60_000)) -> RateBelief:
    """After messages over a link that carries `rate` bytes per second, the last at 1 s."""
    belief = RateBelief()
    for index in range(count):
        size_bytes = sizes[index % len(sizes)]
        at_s = 1.0 - 0.2 * (count - 1 - index)
        belief = belief.seen(at_s, size_bytes, RTT_S + size_bytes / rate, RTT_S, is_bound=False)
    return belief


def chance(belief: RateBelief, size_bytes: int, at_s: float = 1.0, ahead_bytes: float = 0.0) -> float:
    return belief.chance(at_s, size_bytes, ahead_bytes, 0.25, RTT_S).in_time


@pytest.mark.parametrize("rate", [20e3, 200e3, 2e6])
def test_what_the_rate_carries_is_likely_in_time_and_three_times_as_much_is_not(rate: float) -> None:
    carried = int(rate * (0.25 - RTT_S))
    belief = after(rate, sizes=(carried // 2, carried))
    assert chance(belief, carried // 2) > 0.8
    assert chance(belief, carried * 3) < 0.2


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_link_slower_than_any_on_the_grid_counts_as_the_slowest(is_bound: bool) -> None:
    belief = RateBelief().seen(1.0, 60_000, 480.0, RTT_S, is_bound=is_bound)
    assert belief.weights[0] > 0.5
    assert chance(belief, 20_000) < 0.2


def test_a_larger_message_and_one_behind_others_is_less_likely_in_time_and_keeps_the_link_longer() -> None:
    belief = after(200e3)
    likely = [chance(belief, size_bytes) for size_bytes in (10_000, 30_000, 60_000, 200_000)]
    assert likely == sorted(likely, reverse=True)
    assert chance(belief, 20_000, ahead_bytes=40_000) == pytest.approx(chance(belief, 60_000))
    busy = belief.chance(1.0, 60_000, 1e6, 0.25, RTT_S).occupied_s
    assert busy == pytest.approx(60_000 / 200e3, rel=0.3)


def test_a_message_that_is_waited_for_in_vain_makes_the_next_less_likely_and_a_small_one_least() -> None:
    belief = after(200e3)
    late = belief.seen(1.2, 60_000, 0.25, RTT_S, is_bound=True)
    later = belief.seen(1.2, 20_000, 0.25, RTT_S, is_bound=True)
    assert chance(later, 30_000, 1.2) < 0.7 * chance(late, 30_000, 1.2) < chance(belief, 30_000, 1.2)


def test_the_longer_nothing_was_heard_the_less_is_known_so_that_a_bad_link_is_tried_again() -> None:
    belief = after(200e3)
    for index in range(20):
        belief = belief.seen(1.2 + 0.2 * index, 30_000, 0.25, RTT_S, is_bound=True)
    last_s = belief.at_s
    again = [
        chance(belief, 30_000, last_s + silence_s) for silence_s in (0.0, 1.0, 5.0, 30.0, 5 * RateBelief.UNKNOWN_S)
    ]
    assert again == sorted(again)
    assert again[0] < 0.05
    assert again[-1] > 0.4


def test_an_empty_message_tells_nothing_of_the_rate() -> None:
    belief = after(200e3)
    assert belief.seen(1.0, 0, 5.0, RTT_S, is_bound=False).weights == pytest.approx(belief.weights)


@pytest.mark.parametrize("took_s", [0.0, 1e-9, 0.1, 1e6])
@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("at_s", [-50.0, 1.0, 1e9])
def test_whatever_is_seen_the_weights_remain_probabilities(took_s: float, is_bound: bool, at_s: float) -> None:
    belief = after(200e3).seen(at_s, 40_000, took_s, 0.0, is_bound=is_bound)
    for weights in (belief.weights, belief.habit):
        assert math.fsum(weights) == pytest.approx(1.0)
        assert all(0.0 <= weight <= 1.0 for weight in weights)
    assert 0.0 <= chance(belief, 40_000, at_s + 1.0) <= 1.0


def test_the_first_messages_are_all_of_the_habit_and_a_later_one_is_a_twentieth() -> None:
    assert after(1e5, count=1).habit == pytest.approx(after(1e5, count=1).weights)
    for count, share in ((3, 1 / 4), (40, RateBelief.HABIT)):
        before = after(1e5, count=count)
        belief = before.seen(before.at_s, 20_000, 0.9, RTT_S, is_bound=False)
        moved = (np.array(belief.habit) - before.habit) / (np.array(belief.weights) - before.habit)
        assert moved == pytest.approx(share)


def test_a_clock_that_goes_back_makes_nothing_older() -> None:
    assert after(1e5).seen(-5.0, 20_000, 0.2, RTT_S, is_bound=False).at_s == after(1e5).at_s


@pytest.mark.parametrize(("within_s", "longest_s"), [(0.25, 2.0), (1.0, 2.0), (3.0, 6.0)])
def test_no_message_is_expected_to_keep_the_link_busy_for_longer_than_two_seconds_or_twice_its_time(
    within_s: float, longest_s: float
) -> None:
    assert RateBelief().chance(1.0, 1e12, 0.0, within_s, RTT_S).occupied_s == pytest.approx(longest_s)
