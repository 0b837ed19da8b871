"""The estimate of the link against what made the samples: synthetic links with jitter, outliers and changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from upwell.shared.routing.estimators.link_estimate import FADE_S, FRESH_S, LinkEstimate, LinkSample, fade

STEP_S = 0.05


def seen(at_s: float, size_bytes: int, network_s: float, received_bytes: int = 0) -> LinkSample:
    return LinkSample(at_s, size_bytes, received_bytes, network_s)


def link(samples: Iterable[tuple[int, float]], step_s: float = STEP_S, start_s: float = 0.0) -> LinkEstimate:
    estimate = LinkEstimate()
    for index, (size_bytes, network_s) in enumerate(samples):
        estimate = estimate.add(seen(start_s + index * step_s, size_bytes, network_s))
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
    estimate = link([(1_000, 0.3), (1_000 + LinkEstimate.LEAST_DIFFERENCE_BYTES, 0.4)])
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


def test_it_keeps_no_more_than_its_samples() -> None:
    assert len(link([(1_000, 0.1)] * 500).samples) == LinkEstimate.SAMPLES


def test_a_clock_that_goes_back_breaks_nothing() -> None:
    estimate = link([(1_000, 0.1)] * 5, step_s=-1.0)
    assert estimate.rtt_s == pytest.approx(0.1)


def test_up_and_down_are_told_apart() -> None:
    rng, estimate = random.Random(1), LinkEstimate()
    for index in range(3 * LinkEstimate.SAMPLES):
        up, down = rng.randint(1_000, 200_000), rng.randint(1_000, 200_000)
        estimate = estimate.add(seen(index * STEP_S, up, 0.05 + up / 1e6 + down / 4e6, down))
    assert estimate.expect_s(100_000, 0) == pytest.approx(0.15, rel=0.15)
    assert estimate.expect_s(0, 100_000) == pytest.approx(0.075, rel=0.25)


def test_an_empty_call_tells_the_round_trip_apart_from_the_bandwidth() -> None:
    same_size = link([(50_000, 0.25)] * 6)
    assert same_size.inverse_bandwidth_s_per_byte == 0.0
    probed = same_size
    for index in range(6):
        probed = probed.add(seen(0.3 + index * STEP_S, 50_000, 0.25)).add(seen(0.32 + index * STEP_S, 0, 0.05))
    assert probed.rtt_s == pytest.approx(0.05)
    assert probed.inverse_bandwidth_s_per_byte == pytest.approx(0.2 / 50_000)
    assert probed.expect_s(25_000) == pytest.approx(0.15)


def test_an_empty_call_does_not_renew_what_is_known_of_the_bandwidth() -> None:
    estimate = link([(50_000, 0.25), (1_000, 0.06)])
    probed = estimate.add(seen(4.0, 0, 0.05))
    assert probed.fading(4.0) == estimate.fading(4.0) < 1.0


def bound(at_s: float, size_bytes: int, waited_s: float) -> LinkSample:
    return LinkSample(at_s, size_bytes, 0, waited_s, is_bound=True)


@pytest.mark.parametrize("waited_s", [0.0, 0.01, 0.1, 0.1499])
def test_who_waited_less_than_was_predicted_says_nothing(waited_s: float) -> None:
    estimate = link((size, 0.05 + size / 1e6) for size in sized(2))
    waited = estimate.add(bound(1.0, 100_000, waited_s))
    assert replace(waited, rates=estimate.rates) == estimate


def test_waiting_in_vain_makes_the_link_look_slower_and_an_answer_faster_again() -> None:
    estimate = link((size, 0.05 + size / 1e6) for size in sized(2))
    slower, at_s = estimate, 1.0
    for _ in range(5):
        at_s += 1.0
        slower = slower.add(bound(at_s, 100_000, 0.3))
    assert slower.expect_s(100_000) > estimate.expect_s(100_000) * 1.5
    for _ in range(6):
        at_s += 0.3
        slower = slower.add(seen(at_s, 100_000, 0.15))
    assert slower.expect_s(100_000) == pytest.approx(0.15, rel=0.1)


def test_waiting_in_vain_wipes_out_no_more_than_half_of_what_was_answered() -> None:
    estimate, at_s = link((size, 0.05 + size / 1e6) for size in sized(2)), 1.0
    answered = estimate.samples
    for number in range(2 * LinkEstimate.SAMPLES):
        estimate = estimate.add(bound(at_s + number, 100_000, 0.3 * 2.0**number))
    half = LinkEstimate.SAMPLES // 2
    assert estimate.samples[:half] == answered[-half:]
    assert [one.is_bound for one in estimate.samples[half:]] == [True] * half


def test_of_a_link_that_never_answered_nothing_is_known() -> None:
    assert not LinkEstimate().add(bound(1.0, 100_000, 0.5)).is_known


def test_waiting_in_vain_with_much_tells_the_speed_where_a_small_message_told_no_slope() -> None:
    estimate = LinkEstimate().add(seen(0.0, 20_000, 0.1)).add(bound(0.5, 180_000, 0.3)).add(bound(1.0, 100_000, 0.3))
    assert estimate.expect_s(180_000) > 0.25
    assert estimate.expect_s(20_000) < 0.15


def test_the_round_trip_is_at_most_the_shortest_time() -> None:
    estimate = LinkEstimate()
    for number, (size_bytes, took_s) in enumerate([(20_000, 0.08), (90_000, 0.3), (95_000, 0.31), (60_000, 0.29)] * 3):
        estimate = estimate.add(seen(number * 0.2, size_bytes, took_s))
    assert estimate.rtt_s <= 0.08


@pytest.mark.parametrize("confidence", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("spread", [0.05, 0.5, 1.0])
def test_a_time_met_with_a_probability_is_met_that_often(confidence: float, spread: float) -> None:
    rng, estimate, met, asked = random.Random(7), LinkEstimate(), 0, 4000
    for _ in range(asked):
        took_s = 0.1 * rng.lognormvariate(0.0, spread)
        met += took_s <= 0.1 * estimate.error(confidence)
        estimate = estimate.scored(took_s, 0.1)
    assert met / asked == pytest.approx(confidence, abs=0.03)


def test_of_ten_errors_only_the_greatest_holds_nine_times_in_ten() -> None:
    """The next one may be in each of eleven places: ceil(0.9 · 11) = 10."""
    estimate = LinkEstimate()
    for error in (1.6, 1.5, 1.4, 1.3, 1.2, 1.1):  # beside the four ones that are there before
        estimate = estimate.scored(0.1 * error, 0.1)
    assert estimate.error(0.9) == pytest.approx(1.6)
    assert estimate.error(0.8) == pytest.approx(1.5)


def test_nothing_judged_means_that_predictions_are_taken_as_they_are() -> None:
    assert LinkEstimate().error(0.99) == 1.0
    for took_s, expected_s in ((1.0, 0.0), (1.0, math.nan), (math.inf, 1.0), (math.nan, 1.0)):
        assert LinkEstimate().scored(took_s, expected_s) == LinkEstimate()


def test_a_timeout_counts_as_an_error_only_where_it_raises_them() -> None:
    estimate = LinkEstimate().scored(0.1, 0.1).scored(0.1, 0.1)
    assert estimate.scored(0.05, 0.1, is_bound=True) is estimate
    assert LinkEstimate().scored(0.05, 0.1, is_bound=True) == LinkEstimate()
    assert estimate.scored(0.3, 0.1, is_bound=True).error(0.99) == pytest.approx(3.0)


def test_what_was_seen_counts_for_a_second_and_then_ever_less() -> None:
    assert [fade(silence_s) for silence_s in (-5.0, 0.0, FRESH_S)] == [1.0, 1.0, 1.0]
    assert fade(FRESH_S + FADE_S) == pytest.approx(0.5)
    shares = [fade(silence_s / 10) for silence_s in range(100)]
    assert shares == sorted(shares, reverse=True)
    assert fade(5.0) < 1 / 10
    assert fade(1e300) == fade(math.inf) == 0.0


def test_after_a_silence_the_smallest_cases_are_tried_first() -> None:
    estimate = link((size, 0.05 + size / 1e5) for size in sized(5))
    fits = [
        [size for size in (5_000, 20_000, 80_000) if estimate.expect_s(size) * estimate.fading(at_s) < 0.3]
        for at_s in (estimate.last_at_s + age_s for age_s in (0.5, 2.5, 5.0))
    ]
    assert fits == [[5_000, 20_000], [5_000, 20_000], [5_000, 20_000, 80_000]]
    assert estimate.expect_s(40_000) * estimate.fading(estimate.last_at_s + 0.5) > 0.3


def test_a_link_that_comes_back_after_a_silence_is_believed_soon() -> None:
    slow = link([(size, 0.05 + size / 2e4) for size in sized(3)])
    at_s = slow.last_at_s + 10.0
    for size in (10_000, 50_000):
        slow = slow.add(seen(at_s, size, 0.05 + size / 1e6))
    assert slow.expect_s(50_000) == pytest.approx(0.1, rel=0.5)


def test_waiting_in_vain_leaves_the_round_trip_as_it_was() -> None:
    before = link([(10_000, 0.1)] * 6)
    found = before
    for index in range(4):
        found = found.add(bound(0.5 + 0.5 * index, 40_000, 0.8))
    assert found.inverse_bandwidth_s_per_byte > 0.0
    assert (found.rtt_s, found.down_s_per_byte) == (before.rtt_s, before.down_s_per_byte)


def test_a_timeout_is_an_error_of_at_least_the_greatest_tenth() -> None:
    estimate = LinkEstimate()
    for error in (1.0,) * 8 + (4.0,) * 4:
        estimate = estimate.scored(error, 1.0)
    assert estimate.error(0.9) == 4.0
    assert estimate.scored(2.0, 1.0, is_bound=True).errors[-1] == 4.0
    assert estimate.scored(6.0, 1.0, is_bound=True).errors[-1] == 6.0
