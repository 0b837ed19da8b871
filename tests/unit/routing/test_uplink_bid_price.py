"""The price of a second of the uplink, and the gain of a row, by the candidates of late."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable
from itertools import accumulate

import numpy as np
import pytest

from upwell.shared.routing.estimators.uplink_bid_price import MIDDLING, BidPrice, LinkMoment
from upwell.shared.routing.estimators.uplink_rate import RateBelief

RTT_S, WITHIN_S, NOW_S = 0.06, 0.25, 100.0


def known(rate: float) -> RateBelief:
    """After messages over a link that carries `rate` bytes per second."""
    belief = RateBelief()
    for index in range(8):
        at_s, size_bytes = NOW_S - 0.1 * (8 - index), 10_000 * (1 + index % 3)
        belief = belief.seen(at_s, size_bytes, RTT_S + size_bytes / rate, RTT_S, is_bound=False)
    return belief


def after(sizes_bytes: list[int], per_s: float = 5.0) -> BidPrice:
    """After one candidate of each size, at a steady rate, the last at `NOW_S`."""
    price, dice = BidPrice.start("margin"), random.Random(1)
    for index, size_bytes in enumerate(sizes_bytes):
        price = price.add((dice.random(),), size_bytes, NOW_S - (len(sizes_bytes) - index) / per_s)
    return price


def over(rate: float) -> LinkMoment:
    return LinkMoment(known(rate), NOW_S, WITHIN_S, RTT_S)


@pytest.mark.parametrize("rate", [30e3, 100e3, 300e3, 3e6])
def test_the_price_is_what_the_link_earns_from_those_that_are_worth_it(rate: float) -> None:
    """V = r * E[(v - V s)+], the equation of a server that serves one at a time and lets none wait."""
    dice = random.Random(2)
    sizes = [int(dice.uniform(20e3, 200e3)) for _ in range(64)]
    price, link = after(sizes), over(rate)
    found = price.per_s(link)
    by_rank = sorted(price.recent)
    in_time, occupied_s = link.rates.chances(NOW_S, np.array([one.size_bytes for one in by_rank]), 0.0, WITHIN_S, RTT_S)
    values = ((np.arange(64) + 0.5) / 64) ** 2 * in_time
    surplus = np.maximum(values - found * occupied_s, 0.0)
    assert found == pytest.approx(5.0 * surplus.mean(), rel=1e-9)


def test_who_comes_more_often_makes_the_link_dearer_and_who_it_does_not_carry_makes_it_cheap() -> None:
    link = over(100e3)
    often, seldom = (after([20_000] * 64, per_s).per_s(link) for per_s in (20.0, 2.0))
    assert often > 2 * seldom
    assert after([200_000] * 64).per_s(link) < 0.1 * after([20_000] * 64).per_s(link)


def at(times_s: Iterable[float]) -> BidPrice:
    """After one candidate at each time."""
    price = BidPrice.start("margin")
    for at_s in times_s:
        price = price.add((0.5,), 20_000, at_s)
    return price


def test_followers_are_counted_by_their_gaps_each_by_the_share_of_the_time_that_is_left() -> None:
    dice = random.Random(4)
    times_s = sorted(dice.uniform(0.0, 10.0) for _ in range(40))
    waits = [max(0.0, 1.0 - (later - one) / 0.3) for i, one in enumerate(times_s) for later in times_s[i + 1 :]]
    assert at(times_s).followers(0.3) == pytest.approx(sum(waits) / 40)
    assert at(times_s[: BidPrice.ENOUGH - 1]).followers(0.3) == math.inf


def test_rows_of_one_message_do_not_follow_each_other() -> None:
    single, of_three = BidPrice.start("margin"), BidPrice.start("margin")
    for index in range(20):
        single, of_three = (one.add((0.5,) * rows, 20_000, index * 0.1) for one, rows in ((single, 1), (of_three, 3)))
    assert of_three.followers(0.3) == pytest.approx(single.followers(0.3))
    assert BidPrice.start("margin").add((0.5,) * BidPrice.WINDOW, 20_000, 0.0).followers(0.3) == math.inf


def test_at_the_same_rate_a_steady_stream_has_no_followers_a_random_one_some_and_bursts_most() -> None:
    dice, per_s, within_s = random.Random(5), 2.5, 0.3
    steady = at(index / per_s for index in range(64)).followers(within_s)
    random_ = statistics.fmean(
        at(accumulate(dice.expovariate(per_s) for _ in range(64))).followers(within_s) for _ in range(200)
    )
    bursts = at(index // 4 * 4 / per_s + index % 4 * 0.001 for index in range(64)).followers(within_s)
    assert steady == 0.0
    assert random_ == pytest.approx(per_s * within_s / 2, rel=0.05)
    assert bursts == pytest.approx(1.5, rel=0.02)  # the mean of 3, 2, 1 and 0


def test_among_few_candidates_the_link_has_no_price_and_everybody_is_middling() -> None:
    price = after([20_000] * (BidPrice.ENOUGH - 1))
    assert price.per_s(over(100e3)) == 0.0
    assert price.gain(0.01) == price.gain(0.99) == 0.25


@pytest.mark.parametrize(("measure", "hardest"), [("margin", 0.0), ("entropy", 1.0)])
def test_the_hardest_gains_most_and_what_has_no_score_as_much(measure: str, hardest: float) -> None:
    price = BidPrice.start(measure)  # type: ignore[arg-type]  # a name of the table
    for value in range(100):
        price = price.add((value / 100,), 20_000, float(value))
    assert len(price.recent) == BidPrice.WINDOW
    gains = [price.gain(abs(hardest - distance)) for distance in (0.0, 0.1, 0.3, 0.9)]
    assert gains == sorted(gains, reverse=True)
    assert price.gain(math.nan) == 1.0
    assert price.add((math.nan,), 20_000, 100.0) == price


def test_the_rows_of_one_message_are_candidates_of_a_share_of_its_bytes_each() -> None:
    price = BidPrice.start("margin").add((0.1, 0.2, 0.3, 0.4), 80_000, 1.0)
    assert [one.size_bytes for one in price.recent] == [20_000.0] * 4


def test_the_smallest_tenth_of_the_last_candidates_is_known_by_its_bytes() -> None:
    price = after([1_000 * (1 + index) for index in range(64)])
    assert [price.is_among_smallest(size_bytes) for size_bytes in (999, 1_000, 6_999, 7_000, 64_000)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert not after([20_000] * 64).is_among_smallest(20_000), "of equals none is smaller"
    assert not after([20_000] * (BidPrice.ENOUGH - 1)).is_among_smallest(1_000)


def test_among_equals_everybody_is_of_median_rank() -> None:
    price = BidPrice.start("margin").add((0.3,) * 20, 400_000, 1.0)
    assert [price.gain(score) for score in (0.2, 0.3, 0.4)] == [1.0, MIDDLING, 0.0]


@pytest.mark.parametrize("scores", [[0.3], [0.2, 0.3], [0.1, 0.2, 0.2, 0.2, 0.9]])
@pytest.mark.parametrize("rate", [10e3, 30e3, 100e3])
def test_somebody_among_the_candidates_is_always_worth_the_price(rate: float, scores: list[float]) -> None:
    """Or a link on which many wait would carry nobody: an INT8 model gives many the same score."""
    price, link = BidPrice.start("margin"), over(rate)
    for index in range(64):
        price = price.add((scores[index % len(scores)],), 20_000 + 100 * (index % 7), NOW_S - (64 - index) / 20)
    sizes_bytes = np.array([one.size_bytes for one in price.recent])
    in_time, occupied_s = link.rates.chances(NOW_S, sizes_bytes, 0.0, WITHIN_S, RTT_S)
    gains = [price.gain(-one.score) for one in price.recent]
    assert max(gains * in_time / occupied_s) >= price.per_s(link)
