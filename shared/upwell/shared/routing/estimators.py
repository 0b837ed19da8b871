"""What past requests tell about the next one: time on the device, in the cloud and on the link between them.

All are immutable values with time as an argument. A failure or a timeout is never a sample: it says nothing of how
fast an answer would have been, and counting it would make a dead link look quick. The first run after a load is not
a sample either (cold start).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

WINDOW = 64
FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """Quantiles of the last `WINDOW` durations in seconds (empirical, nearest rank)."""

    samples_s: tuple[float, ...] = ()
    last_at_s: float = -math.inf
    p50_s: float = math.nan
    p90_s: float = math.nan
    p99_s: float = math.nan

    def add(self, duration_s: float, now_s: float) -> LatencyWindow:
        """The window with one more duration, and without the oldest if it was full."""
        samples = (*self.samples_s[-WINDOW + 1 :], duration_s)
        ordered = sorted(samples)
        last = len(ordered) - 1
        return LatencyWindow(
            samples, now_s, ordered[last // 2], ordered[math.ceil(last * 0.9)], ordered[math.ceil(last * 0.99)]
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
        factor = max(1.0, bucket / nearest)
        seen = self.windows[nearest]
        return replace(seen, p50_s=seen.p50_s * factor, p90_s=seen.p90_s * factor, p99_s=seen.p99_s * factor)


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """Round trip and inverse bandwidth of the link, from requests that were answered.

    One sample is (x = bytes up and down, y = total time − the server's own queue and compute time). The model is
    y = rtt + x·inverse_bandwidth, fitted by least squares with weights that halve every `HALF_LIFE_S` seconds
    (exponential forgetting: Haykin, "Adaptive Filter Theory", ch. 10), both terms clamped at zero. `spread_s` is the
    equally forgetful mean absolute residual. Where sizes have not varied, the slope cannot be told from the offset:
    the whole time then counts as round trip, which predicts the same size rightly. After a silence of `FRESH_S` what
    was known counts as stale: the next sample starts afresh, so a link that came back is believed at once.
    """

    HALF_LIFE_S: ClassVar[float] = 5.0
    CAUTION: ClassVar[float] = 2.0

    weight: float = 0.0
    sum_x: float = 0.0
    sum_y: float = 0.0
    sum_xx: float = 0.0
    sum_xy: float = 0.0
    spread_s: float = 0.0
    last_at_s: float = -math.inf

    def add(self, size_bytes: int, network_s: float, now_s: float) -> LinkEstimate:
        """With one more answered request of `size_bytes` bytes that spent `network_s` outside the server."""
        if not self.is_fresh(now_s):
            return LinkEstimate(1.0, size_bytes, network_s, size_bytes**2, size_bytes * network_s, 0.0, now_s)
        residual_s = abs(network_s - self._line_s(size_bytes))
        kept = 0.5 ** ((now_s - self.last_at_s) / self.HALF_LIFE_S)
        return LinkEstimate(
            self.weight * kept + 1.0,
            self.sum_x * kept + size_bytes,
            self.sum_y * kept + network_s,
            self.sum_xx * kept + size_bytes**2,
            self.sum_xy * kept + size_bytes * network_s,
            self.spread_s + (residual_s - self.spread_s) / min(8.0, self.weight * kept + 1.0),
            now_s,
        )

    def is_fresh(self, now_s: float) -> bool:
        """Whether a sample is recent enough to refuse a request on; if not, the next candidate finds out."""
        return now_s - self.last_at_s <= FRESH_S

    @property
    def inverse_bandwidth_s_per_byte(self) -> float:
        """Seconds per byte; 0 while sizes have not varied."""
        if self.weight == 0.0:
            return 0.0
        variance = self.sum_xx - self.sum_x**2 / self.weight
        if variance <= 1e-6 * self.sum_xx:
            return 0.0
        return max(0.0, (self.sum_xy - self.sum_x * self.sum_y / self.weight) / variance)

    @property
    def rtt_s(self) -> float:
        """Seconds that a request without bytes would take; NaN before the first sample."""
        if self.weight == 0.0:
            return math.nan
        return max(0.0, (self.sum_y - self.sum_x * self.inverse_bandwidth_s_per_byte) / self.weight)

    def expect_s(self, size_bytes: int) -> float:
        """Predicted time on the link for `size_bytes` bytes, `CAUTION` spreads above the line; NaN if unknown."""
        return self._line_s(size_bytes) + self.CAUTION * self.spread_s

    def _line_s(self, size_bytes: int) -> float:
        return self.rtt_s + size_bytes * self.inverse_bandwidth_s_per_byte
