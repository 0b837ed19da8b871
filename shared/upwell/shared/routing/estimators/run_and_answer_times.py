"""Durations of runs on the device and in the cloud, and times from sending to answer.

All are immutable values with time as an argument. A failure or a timeout is never a fast sample. The first run after a
load is not a sample either (cold start).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar

from upwell.shared.value_classes import value_class

if TYPE_CHECKING:
    Samples = array[float]

WINDOW = 64
RECENT = 8
FRESH_S = 2.0


def _no_samples() -> Samples:
    return array("d")


@value_class
class LatencyWindow:
    """Empirical quantiles (by rank) of the last `WINDOW` durations in seconds, and a recent value.

    `p50_s` and `p99_s` are of the whole window; the rank of the 99th rounds up, so it is the slowest. `lately_s` is the
    median of the last `RECENT` durations since the last silence of `FRESH_S` and the one before it, of an even number
    the lower: a few bad moments do not count, a change shows within a few runs, after a silence a faster device at the
    first and a slower one at the second. (A device that refuses because it was slow gets no new samples: without that
    rule it would refuse for ever.) A silence ends where the next run starts, so a stalled run is none.
    """

    samples_s: Samples = field(default_factory=_no_samples)
    """Never modified; an array, since copying a tuple of this length takes several times as long."""
    recent: int = 0
    last_at_s: float = -math.inf
    lately_s: float = math.nan
    fastest_s: float = math.nan
    p99_s: float = math.nan
    guess: float = 1.0
    """1 where this size was measured. Else the times are at most these, and at least these divided by `guess`."""

    def add_all(self, runs: Sequence[tuple[float, float]]) -> LatencyWindow:
        """The window with more durations, each with the time at its end, and without the oldest beyond its length."""
        samples = self.samples_s + array("d", [duration_s for duration_s, _ in runs])
        samples = samples[-WINDOW:]
        recent, last_at_s = self.recent, self.last_at_s
        for duration_s, at_s in runs:
            is_silent = at_s - duration_s - last_at_s > FRESH_S
            recent = (min(recent, 1) if is_silent else recent) + 1
            last_at_s = at_s
        recent = min(RECENT, recent)
        lately_s = sorted(samples[-recent:])[(recent - 1) // 2]
        return LatencyWindow(samples, recent, last_at_s, lately_s, min(samples), max(samples))

    @property
    def p50_s(self) -> float:
        """The median of the whole window; NaN if it is empty."""
        return sorted(self.samples_s)[(len(self.samples_s) - 1) // 2] if self.samples_s else math.nan

    def silence_s(self, now_s: float) -> float:
        """The time since the last run. Infinite after an only one that is not fresh: it may have been a bad moment."""
        passed_s = now_s - self.last_at_s
        return passed_s if len(self.samples_s) > 1 or passed_s <= FRESH_S else math.inf

    def scaled(self, factor: float) -> LatencyWindow:
        """The same with every quantile multiplied by `factor`: a guess."""
        return replace(
            self,
            samples_s=array("d", [sample_s * factor for sample_s in self.samples_s]),
            lately_s=self.lately_s * factor,
            fastest_s=self.fastest_s * factor,
            p99_s=self.p99_s * factor,
            guess=factor,
        )


_NO_DURATIONS = LatencyWindow()


def _bucket(rows: int) -> int:
    """The power of two at or above `rows`: runs of similar size share a window."""
    return 1 << max(0, rows - 1).bit_length()


@value_class
class RunTimes:
    """Durations of model runs by number of rows, with a window for each bucket of rows (1, 2, 4, 8, ...)."""

    windows: Mapping[int, LatencyWindow] = field(default_factory=dict)

    def add(self, rows: int, duration_s: float, now_s: float) -> RunTimes:
        """With one more run of `rows` rows."""
        return self.add_all([(rows, duration_s, now_s)])

    def add_all(self, runs: Sequence[tuple[int, float, float]]) -> RunTimes:
        """With more runs in order, each with its number of rows, its duration and the time at its end."""
        windows = dict(self.windows)
        by_bucket: dict[int, list[tuple[float, float]]] = {}
        for rows, duration_s, at_s in runs:
            bucket = rows if rows in windows else _bucket(rows)  # a size with its own window is a bucket
            by_bucket.setdefault(bucket, []).append((duration_s, at_s))
        for bucket, durations in by_bucket.items():
            windows[bucket] = windows.get(bucket, _NO_DURATIONS).add_all(durations)
        return RunTimes(windows)

    def expect(self, rows: int) -> LatencyWindow | None:
        """The window for `rows` rows, else a guess from the nearest bucket; None if there are none.

        A smaller bucket is scaled linearly, an upper bound on the cost of a batch; a larger one is used unchanged, and
        its linear share is the lower bound.
        """
        window = self.windows.get(rows)
        if window is not None or not self.windows:
            return window
        bucket = _bucket(rows)
        if bucket in self.windows:
            return self.windows[bucket]
        nearest = min(self.windows, key=lambda seen: abs(math.log2(seen / bucket)))
        if nearest > bucket:
            return replace(self.windows[nearest], guess=nearest / bucket)
        return self.windows[nearest].scaled(bucket / nearest)


@value_class
class AnswerTimes:
    """Quantiles of the last `WINDOW` times from sending to answer, in seconds, for hedging.

    The window is large, so that a share of stalls below 1 − quantile stays out of that quantile: with 3 % stalls, more
    than 5 % of 512 answers stall about once in two hundred windows.
    """

    WINDOW: ClassVar[int] = 512
    ENOUGH: ClassVar[int] = 20

    samples_s: tuple[float, ...] = ()
    ordered_s: tuple[float, ...] = ()

    def add(self, total_s: float) -> AnswerTimes:
        """With one more time, and without the oldest if it was full."""
        ordered, samples = list(self.ordered_s), self.samples_s
        if len(samples) >= self.WINDOW:
            del ordered[bisect_left(ordered, samples[0])]
            samples = samples[1:]
        insort(ordered, total_s)
        return AnswerTimes((*samples, total_s), tuple(ordered))

    def outlasted(self, waited_s: float) -> AnswerTimes:
        """With an answer that took more than `waited_s`; ignored if most answers take longer than that anyway."""
        return self.add(waited_s) if self.ordered_s and waited_s > self.ordered_s[-1] else self

    def quantile_s(self, share: float) -> float:
        """The time within which that share was answered (rank rounded up); infinite with too few answers."""
        count = len(self.ordered_s)
        if count < self.ENOUGH:
            return math.inf
        return self.ordered_s[min(count - 1, max(0, math.ceil(share * count) - 1))]
