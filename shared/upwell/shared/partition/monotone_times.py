"""Makes measured times monotone: a longer head never takes less time than a shorter one, a shorter tail never more.

Weighted isotonic regression: of all rising sequences, the one with the least Σ wᵢ·(xᵢ − yᵢ)², wᵢ the measurement's
weight. Pool adjacent violators finds it exactly in linear time: neighbours in the wrong order are replaced by their
weighted mean until none are (Ayer, Brunk, Ewing, Reid, Silverman: An empirical distribution function for sampling with
incomplete information, Annals of Mathematical Statistics 26, 1955; weights as in Barlow et al., 1972). Otherwise the
noise of two heads would show as a layer with negative cost, which a planner would exploit.
"""

from __future__ import annotations

from collections.abc import Sequence

from upwell.shared.partition.tier_profile import Spread

_DECILES_PER_SIGMA = 2.563
"""Between the 10th and the 90th percentile of a normal distribution there are 2 · 1.2816 standard deviations."""
_LEAST_DEVIATION = 0.005
"""Minimum relative uncertainty of a median, however close its runs are."""
_LEAST_S = 1e-9


def rising(values: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """The nearest sequence that never falls; `weights` are positive. A rising sequence is unchanged."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, count
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, others, more = blocks.pop()
            mean = (other * others + mean * total) / (others + total)
            total, count = others + total, count + more
        blocks.append((mean, total, count))
    return tuple(mean for mean, _, count in blocks for _ in range(count))


def falling(values: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """The nearest sequence that never rises."""
    return rising(values[::-1], weights[::-1])[::-1]


def certainty(spread: Spread) -> float:
    """The weight of a measurement: runs / variance, proportional to the inverse variance of its median."""
    deviation_s = (spread.p90_s - spread.p10_s) / _DECILES_PER_SIGMA
    return float(spread.runs / max(deviation_s, _LEAST_DEVIATION * spread.median_s, _LEAST_S) ** 2)
