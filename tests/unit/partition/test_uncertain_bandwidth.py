"""The effective inverse bandwidth of distributions whose answer is known."""

from __future__ import annotations

import math
import random

import pytest

from upwell.shared.partition.bandwidth import BandwidthSamples, LogNormal


def test_the_mean_is_that_of_the_inverse() -> None:
    """Half of the time 1 and half of the time 19 Mbit/s: as slow as 1.9, not as fast as 10."""
    assert 1 / BandwidthSamples([1e6, 19e6]).mean_inverse() == pytest.approx(1.9e6)


def test_a_uniform_bandwidth() -> None:
    """E[1/B] on [a, b] is ln(b/a)/(b − a)."""
    middles = [2e6 + (index + 0.5) * 8 for index in range(1_000_000)]
    assert BandwidthSamples(middles).mean_inverse() == pytest.approx(math.log(5) / 8e6, rel=1e-6)


@pytest.mark.parametrize(("probability", "slowest"), [(0.1, 10e6), (0.5, 6e6), (0.9, 2e6), (0.95, 1e6), (0.001, 10e6)])
def test_a_quantile_of_samples_is_one_of_them(probability: float, slowest: float) -> None:
    samples = BandwidthSamples([4e6, 1e6, 2e6, 3e6, 5e6, 6e6, 7e6, 8e6, 9e6, 10e6])
    assert 1 / samples.inverse_quantile(probability) == pytest.approx(slowest)


@pytest.mark.parametrize("known", [BandwidthSamples([8e6]), LogNormal(8e6, 1.0)])
def test_a_steady_link_is_what_it_is(known: BandwidthSamples | LogNormal) -> None:
    assert 1 / known.mean_inverse() == pytest.approx(8e6)
    assert 1 / known.inverse_quantile(0.99) == pytest.approx(8e6)


def test_a_log_normal_bandwidth() -> None:
    known = LogNormal(8e6, 4.0)
    assert 1 / known.inverse_quantile(0.5) == pytest.approx(8e6)
    assert 1 / known.inverse_quantile(0.9) == pytest.approx(2e6)
    assert known.sigma == pytest.approx(math.log(4) / 1.2815515655)
    rng = random.Random(1)
    drawn = BandwidthSamples([rng.lognormvariate(math.log(8e6), known.sigma) for _ in range(200_000)])
    assert known.mean_inverse() == pytest.approx(drawn.mean_inverse(), rel=0.02)
    assert known.mean_inverse() > 1 / 8e6


@pytest.mark.parametrize("samples", [[], [0.0], [-1.0], [math.inf], [math.nan]])
def test_a_bandwidth_must_be_one(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="more than 0 bits"):
        BandwidthSamples(samples)


def test_a_spread_must_be_one() -> None:
    for spread in (0.5, 1e30, math.nan):  # the mean of 1/B at 1e30 is beyond what a float holds
        with pytest.raises(ValueError, match="from 1 to 1000"):
            LogNormal(8e6, spread)
    with pytest.raises(ValueError, match="between 0 and 1"):
        LogNormal(8e6, 2.0).inverse_quantile(1.0)
