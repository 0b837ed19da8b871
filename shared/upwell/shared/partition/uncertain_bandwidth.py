"""The inverse bandwidth to plan with when the bandwidth varies.

The time to send is bytes · 8 · (1/B), so what counts is the mean or a quantile of 1/B, never one over the mean of B: a
link that is at 1 and at 19 Mbit/s half of the time each has a mean of 10 Mbit/s and sends, on average, as slowly as a
steady one at 1.9 Mbit/s (by Jensen's inequality E[1/B] ≥ 1/E[B]). Inverse bandwidth is in seconds per bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

_TENTH = NormalDist().inv_cdf(0.9)
"""The 90 % point of the standard normal distribution."""


@dataclass(frozen=True)
class BandwidthSamples:
    """Observed bandwidths in bits per second, each equally likely; none is 0."""

    bps: Sequence[float]

    def __post_init__(self) -> None:
        """Raises `ValueError`: with a sample of 0 the mean time to send anything would be infinite."""
        if not self.bps or not all(0 < one < math.inf for one in self.bps):
            raise ValueError("expected at least one bandwidth, each of more than 0 bits per second")

    def mean_inverse(self) -> float:
        """E[1/B], in seconds per bit, which minimizes the mean latency."""
        return fmean(1 / one for one in self.bps)

    def inverse_quantile(self, probability: float) -> float:
        """The quantile of 1/B, in seconds per bit, as the least sample that the share `probability` does not exceed."""
        ordered = sorted(1 / one for one in self.bps)
        return ordered[max(0, math.ceil(_share(probability) * len(ordered) - 1e-9) - 1)]


@dataclass(frozen=True)
class LogNormal:
    """A log-normal bandwidth with that median, which nine times in ten is at least the median divided by `spread`: B =
    median · e^(σ·Z), Z standard normal, σ = ln(spread) / 1.2816. Then E[1/B] = e^(σ²/2) / median. A spread of 1 is a
    steady link."""

    median_bps: float
    spread: float

    def __post_init__(self) -> None:
        """Raises `ValueError`."""
        if not (0 < self.median_bps < math.inf and 1 <= self.spread < math.inf):
            raise ValueError("expected a median of more than 0 bits per second and a spread of at least 1")

    @property
    def sigma(self) -> float:
        """Standard deviation of ln B."""
        return math.log(self.spread) / _TENTH

    def mean_inverse(self) -> float:
        """E[1/B], in seconds per bit."""
        return math.exp(self.sigma**2 / 2) / self.median_bps

    def inverse_quantile(self, probability: float) -> float:
        """The value of 1/B, in seconds per bit, that is not exceeded with that probability."""
        return math.exp(self.sigma * NormalDist().inv_cdf(_share(probability))) / self.median_bps


def _share(probability: float) -> float:
    if not 0 < probability < 1:
        raise ValueError(f"expected a probability between 0 and 1, got {probability}")
    return probability
