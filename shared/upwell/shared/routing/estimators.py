"""What past requests tell about the next one: time on the device, in the cloud and on the link between them.

All are immutable values with time as an argument. A failure or a timeout is never a sample: it says nothing of how
fast an answer would have been, and counting it would make a dead link look quick. The first run after a load is not
a sample either (cold start).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

WINDOW = 64
RECENT = 8
FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """Quantiles of the last `WINDOW` durations in seconds (empirical, by rank), and what they are lately.

    `p50_s` and `p99_s` are of the whole window; the rank of the 99th rounds up, so it is the slowest of a full window.
    `lately_s` is the median of the last `RECENT` durations since the last silence of `FRESH_S`: a few bad moments do
    not count, a change shows within a few runs, and after a silence at once. (A device that refuses because it was slow
    gets no new samples: without that, it would refuse for ever.)
    """

    samples_s: tuple[float, ...] = ()
    recent: int = 0
    last_at_s: float = -math.inf
    p50_s: float = math.nan
    lately_s: float = math.nan
    fastest_s: float = math.nan
    p99_s: float = math.nan

    def add(self, duration_s: float, now_s: float) -> LatencyWindow:
        """The window with one more duration, and without the oldest if it was full."""
        samples = (*self.samples_s[-WINDOW + 1 :], duration_s)
        recent = min(RECENT, self.recent + 1) if now_s - self.last_at_s <= FRESH_S else 1
        ordered = sorted(samples)
        last = len(ordered) - 1
        lately = sorted(samples[-recent:])[(recent - 1) // 2]
        p99_s = ordered[math.ceil(last * 0.99)]
        return LatencyWindow(samples, recent, now_s, ordered[last // 2], lately, ordered[0], p99_s)

    def is_known(self, now_s: float) -> bool:
        """Whether it is recent enough to refuse a request on; if not, the next one finds out."""
        return now_s - self.last_at_s <= FRESH_S

    def scaled(self, factor: float) -> LatencyWindow:
        """The same with every quantile `factor` times as long."""
        return replace(
            self,
            p50_s=self.p50_s * factor,
            lately_s=self.lately_s * factor,
            fastest_s=self.fastest_s * factor,
            p99_s=self.p99_s * factor,
        )


def _bucket(rows: int) -> int:
    """The power of two at or above `rows`: runs of about the same size share a window."""
    return 1 << max(0, rows - 1).bit_length()


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Durations of model runs by number of rows, each bucket of rows (1, 2, 4, 8, ...) in a window of its own."""

    windows: Mapping[int, LatencyWindow] = field(default_factory=dict)

    def add(self, rows: int, duration_s: float, now_s: float) -> RunTimes:
        """With one more run of `rows` rows."""
        bucket = _bucket(rows)
        return RunTimes({**self.windows, bucket: self.windows.get(bucket, LatencyWindow()).add(duration_s, now_s)})

    def expect(self, rows: int) -> LatencyWindow | None:
        """The window for `rows` rows; from the nearest bucket, scaled up by rows, where there is none; None if empty.

        A smaller bucket is scaled linearly, which bounds from above what a batch costs; a larger one is taken as it is.
        """
        bucket = _bucket(rows)
        window = self.windows.get(bucket)
        if window is not None or not self.windows:
            return window
        nearest = min(self.windows, key=lambda seen: abs(math.log2(seen / bucket)))
        return self.windows[nearest].scaled(max(1.0, bucket / nearest))


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """Round trip and inverse bandwidth of the link, from requests that were answered.

    One sample is (x = bytes sent, y = total time − the server's own queue and compute time). The model is
    y = rtt + x·inverse_bandwidth over the last `SAMPLES` samples, robust against up to a quarter of outliers: the slope
    is the median of the slopes between pairs of clearly different size (Theil 1950; Sen 1968, doi 10.2307/2285891),
    clamped at zero, the round trip the median of what remains, and `spread_s` the median absolute deviation from that.
    Without pairs of different size the whole time counts as round trip, which predicts the same size rightly.
    After a silence of `FRESH_S` what was known is stale: the next sample starts afresh, so a link that came back is
    believed at once.
    """

    SAMPLES: ClassVar[int] = 24
    ENOUGH: ClassVar[int] = 3
    LEAST_DIFFERENCE_BYTES: ClassVar[int] = 512

    samples: tuple[tuple[int, float], ...] = ()
    rtt_s: float = math.nan
    inverse_bandwidth_s_per_byte: float = 0.0
    spread_s: float = 0.0
    last_at_s: float = -math.inf

    def add(self, size_bytes: int, network_s: float, now_s: float) -> LinkEstimate:
        """With one more answered request of `size_bytes` bytes that spent `network_s` outside the server."""
        kept = self.samples[-self.SAMPLES + 1 :] if now_s - self.last_at_s <= FRESH_S else ()
        samples = (*kept, (size_bytes, network_s))
        slope = _theil_sen(samples, self.LEAST_DIFFERENCE_BYTES)
        rests = [y - slope * x for x, y in samples]
        rtt_s = statistics.median(rests)
        spread_s = statistics.median([abs(rest - rtt_s) for rest in rests])
        return LinkEstimate(samples, max(0.0, rtt_s), slope, spread_s, now_s)

    def is_known(self, now_s: float) -> bool:
        """Whether there are samples enough, and recent enough, to refuse a request on; else the next one finds out."""
        return len(self.samples) >= self.ENOUGH and now_s - self.last_at_s <= FRESH_S

    def expect_s(self, size_bytes: int) -> float:
        """Predicted time on the link for `size_bytes` bytes, one spread above the line; NaN if unknown."""
        return self.rtt_s + size_bytes * self.inverse_bandwidth_s_per_byte + self.spread_s


def _theil_sen(samples: tuple[tuple[int, float], ...], least_difference: int) -> float:
    """Median slope over the pairs whose sizes differ by `least_difference` or more; 0 without such pairs."""
    slopes = [
        (y2 - y1) / (x2 - x1)
        for (x1, y1), (x2, y2) in itertools.combinations(samples, 2)
        if abs(x2 - x1) >= least_difference
    ]
    return max(0.0, statistics.median(slopes)) if slopes else 0.0
