"""Estimates the link between device and cloud from past messages.

A failure is not a sample: it says nothing of how fast an answer would have been, and counting it would make a dead link
look fast. A timeout is a lower bound: it can only make the link look slower.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, NamedTuple

from upwell.shared.routing.estimators.uplink_rate import RateBelief
from upwell.shared.value_classes import value_class

FRESH_S = 1.0
FADE_S = 2.0


def fade(silence_s: float) -> float:
    """The share of a time observed `silence_s` ago that still counts: 2^−((silence − `FRESH_S`)/`FADE_S`)², 1 while
    fresh."""
    if silence_s <= FRESH_S:
        return 1.0
    return 2.0 ** -min(1000.0, ((silence_s - FRESH_S) / FADE_S) ** 2) if silence_s < 1e6 else 0.0


_PRIOR = (1.0,) * 4
"""Initial accuracy: predictions are assumed to be right, so that one bad start does not keep everything on the
device."""


class LinkSample(NamedTuple):
    """`sent_bytes` up and `received_bytes` down took `network_s` outside the server, observed at `at_s`.

    With `is_bound` it took longer: the wait ended then.
    """

    at_s: float
    sent_bytes: int
    received_bytes: int
    network_s: float
    is_bound: bool = False


@value_class
class LinkEstimate:
    """Round trip and inverse bandwidth, up and down, and the errors of past predictions.

    The model of one sample is y = rtt + u·λ_up + d·λ_down for u bytes up and d bytes down. Over the last `SAMPLES`:

    - A first slope against u is the median of the slopes between samples near in time, weighted by the difference of
      their
    sizes (Theil 1950, Sen 1968, doi 10.2307/2285891, weighted as in Jaeckel 1972); λ_down is the same for the residuals
    against d. If sizes hardly differ there is no slope: the whole time then counts as round trip, which predicts the
    same sizes correctly.
    - rtt is the median of the residuals, and `inverse_bandwidth_s_per_byte` (λ_up) the median of (y − rtt − d·λ_down)/u
    weighted by u, both weighted by 2^(−age/half-life): the half-life of the round trip is `RTT_HALF_S`, that of the
    bandwidth, which changes from second to second on cellular links, `HALF_S`. Medians resist outliers. No message is
    faster than the round trip, so rtt is at most the shortest time of all, and without a slope that of empty messages
    in the last `RTT_WINDOW_S` (as in BBR, Cardwell 2016): a message may wait behind one that was given up.

    Uncertainty is empirical, as in split conformal prediction (Vovk et al. 2005): for the last `ERRORS` messages the
    ratios of actual to predicted time are kept, and the time met with probability p is the predicted one times the
    p-quantile of the ratios. A timeout counts only if it raises an estimate.

    `rates` is the distribution from which the probability of being in time follows.

    Old observations must not block the link for ever: after `FRESH_S` without news every prediction shrinks, ever
    faster (`fade`), so that the smallest messages are tried first.
    """

    SAMPLES: ClassVar[int] = 12
    NEAR: ClassVar[int] = 2
    LEAST_DIFFERENCE_BYTES: ClassVar[int] = 512
    HALF_S: ClassVar[float] = 1.5
    RTT_HALF_S: ClassVar[float] = 6.0
    RTT_WINDOW_S: ClassVar[float] = 10.0
    ERRORS: ClassVar[int] = 64

    samples: tuple[LinkSample, ...] = ()
    rtt_s: float = math.nan
    inverse_bandwidth_s_per_byte: float = 0.0
    down_s_per_byte: float = 0.0
    errors: tuple[float, ...] = _PRIOR
    ordered_errors: tuple[float, ...] = _PRIOR
    last_at_s: float = -math.inf
    rates: RateBelief = RateBelief()

    @property
    def is_known(self) -> bool:
        """Whether there is any sample."""
        return not math.isnan(self.rtt_s)

    def add(self, sample: LinkSample) -> LinkEstimate:
        """With one more message that was answered or timed out.

        An empty message tells only the round trip, so that the bandwidth estimate still fades. A lower bound alone
        tells nothing: until the first answer, the cloud may be the part that is silent.
        """
        if sample.is_bound and not self.is_known:
            return self
        if sample.is_bound and not self._is_slower(sample):
            return self._with_rates(sample)
        last_at_s = sample.at_s if sample.sent_bytes or not self.is_known else self.last_at_s
        samples = (*self._remembered(), sample)
        fitted = replace(self, samples=samples, last_at_s=last_at_s)._fitted()
        if self.is_known:  # the first sample tells no rate: all of it may be round trip
            fitted = fitted._with_rates(sample)
        if not sample.is_bound:
            return fitted
        slower = max(self.inverse_bandwidth_s_per_byte, fitted.inverse_bandwidth_s_per_byte)
        return replace(
            fitted, rtt_s=self.rtt_s, inverse_bandwidth_s_per_byte=slower, down_s_per_byte=self.down_s_per_byte
        )

    def _with_rates(self, sample: LinkSample) -> LinkEstimate:
        took_s = sample.network_s - sample.received_bytes * self.down_s_per_byte
        rates = self.rates.seen(sample.at_s, sample.sent_bytes, took_s, self.rtt_s, is_bound=sample.is_bound)
        return replace(self, rates=rates)

    def _remembered(self) -> tuple[LinkSample, ...]:
        """The samples with room for one more; at most half are bounds, or an outage would displace all others."""
        if len(self.samples) < self.SAMPLES:
            return self.samples
        bounds = [index for index, sample in enumerate(self.samples) if sample.is_bound]
        oldest = bounds[0] if len(bounds) >= self.SAMPLES // 2 else 0
        return (*self.samples[:oldest], *self.samples[oldest + 1 :])

    def _fitted(self) -> LinkEstimate:
        """The parameters fitted to the samples, of which at least one is exact."""
        exact = [sample for sample in self.samples if not sample.is_bound]
        newest_s = self.samples[-1].at_s
        up, down = _slopes(exact, self.LEAST_DIFFERENCE_BYTES, self.NEAR)
        up = up or _least_slope(self.samples, self.LEAST_DIFFERENCE_BYTES)
        rests = (
            (s.network_s - up * s.sent_bytes - down * s.received_bytes, _weight(newest_s - s.at_s, self.RTT_HALF_S))
            for s in exact
        )
        rtt_s = max(0.0, _median(rests))
        empty_s = [s.network_s for s in exact if not s.sent_bytes and newest_s - s.at_s <= self.RTT_WINDOW_S]
        rtt_s = min(rtt_s, *empty_s) if empty_s else rtt_s
        if up > 0.0:
            rtt_s = min(rtt_s, *(s.network_s for s in exact))
            inverses = [
                (
                    max(0.0, s.network_s - rtt_s - down * s.received_bytes) / s.sent_bytes,
                    s.sent_bytes * _weight(newest_s - s.at_s, self.HALF_S),
                )
                for s in self.samples
                if s.sent_bytes
            ]
            up = _median(inverses) if inverses else 0.0
        return replace(self, rtt_s=rtt_s, inverse_bandwidth_s_per_byte=up, down_s_per_byte=down)

    def scored(self, took_s: float, expected_s: float, *, is_bound: bool = False) -> LinkEstimate:
        """With one more prediction compared: the call took `took_s` (or more), `expected_s` was predicted."""
        if not (expected_s > 0.0 and took_s < math.inf):
            return self
        error = min(8.0, max(0.125, took_s / expected_s))
        ordered, errors = list(self.ordered_errors), self.errors
        if is_bound:  # the true time is unknown, so it must not lower the upper quantiles
            if error <= self.error(0.5):
                return self
            error = max(error, self.error(0.9))
        if len(errors) >= self.ERRORS:
            del ordered[bisect_left(ordered, errors[0])]
            errors = errors[1:]
        insort(ordered, error)
        return replace(self, errors=(*errors, error), ordered_errors=tuple(ordered))

    def refuted(self, now_s: float) -> LinkEstimate:
        """With fading reset, after a call that was sent because of faded predictions failed."""
        return replace(self, last_at_s=now_s)

    def error(self, confidence: float) -> float:
        """The factor over the prediction within which a call stays with that probability."""
        count = len(self.ordered_errors)
        return self.ordered_errors[min(count, max(1, math.ceil(confidence * (count + 1)))) - 1]

    def expect_s(self, sent_bytes: int, received_bytes: float = 0.0) -> float:
        """Predicted time on the idle link; NaN if unknown."""
        return self.rtt_s + sent_bytes * self.inverse_bandwidth_s_per_byte + received_bytes * self.down_s_per_byte

    def fading(self, now_s: float) -> float:
        """The share of a prediction that still counts: see `fade`."""
        return fade(now_s - self.last_at_s)

    def _is_slower(self, bound: LinkSample) -> bool:
        return not bound.network_s <= self.expect_s(bound.sent_bytes, bound.received_bytes)


def _slopes(samples: list[LinkSample], least_difference: int, near: int) -> tuple[float, float]:
    """Seconds per byte up and down. If both sizes vary, each is fitted to the other's residuals, and up once more."""
    up = _slope([(s.sent_bytes, s.network_s) for s in samples], least_difference, near)
    received = [s.received_bytes for s in samples]
    if max(received) - min(received) < least_difference:
        return up, 0.0
    rests = [(s.received_bytes, s.network_s - up * s.sent_bytes) for s in samples]
    down = _slope(rests, least_difference, near)
    rests = [(s.sent_bytes, s.network_s - down * s.received_bytes) for s in samples]
    return _slope(rests, least_difference, near), down


def _slope(points: list[tuple[int, float]], least_difference: int, near: int) -> float:
    """Median slope over pairs near in time whose sizes clearly differ, weighted by the difference; 0 without any."""
    slopes = [
        ((y2 - y1) / (x2 - x1), float(abs(x2 - x1)))
        for lag in range(1, near + 1)
        for (x1, y1), (x2, y2) in zip(points, points[lag:], strict=False)
        if abs(x2 - x1) >= least_difference
    ]
    return max(0.0, _median(slopes)) if slopes else 0.0


def _least_slope(samples: Iterable[LinkSample], least_difference: int) -> float:
    """Lower bound of seconds per byte, from timed-out messages that took longer than smaller ones."""
    slopes = [
        ((bound.network_s - exact.network_s) / (bound.sent_bytes - exact.sent_bytes), 1.0)
        for bound in samples
        for exact in samples
        if bound.is_bound and not exact.is_bound and bound.sent_bytes - exact.sent_bytes >= least_difference
    ]
    return max(0.0, _median(slopes)) if slopes else 0.0


def _weight(age_s: float, half_s: float) -> float:
    """A weight that halves with each `half_s` of age."""
    return float(2.0 ** (-age_s / half_s))


def _median(weighted: Iterable[tuple[float, float]]) -> float:
    """The weighted median."""
    ordered = sorted(weighted)
    rest = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        rest -= weight
        if rest <= 0.0:
            return value
    return ordered[-1][0]
