"""How long a run of a model takes at a given batch size, and its answers to be handed over: learned as it goes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

_WINDOW = 16
_FRESH_S = 1.0
_FRESH_RUNS = 4.0
_REMEMBERED_S = 10.0
_ENOUGH = 3
_DELAYS_FRESH_S = 0.25
_QUARTER, _HALF = 0.25, 0.5


class BatchRunTimes:
    """Estimate of a run's time in seconds by its number of rows; pure, time is an argument.

    Batch sizes fall into classes: up to each of `buckets`, or without them 1 to 8, 10, 12, 14, 16, 20, ..., four to
    each doubling. With one class to each, simulated with deadlines of 20 to 200 ms at capacity, 2.5 % of the answers
    come late for which there seemed to be time; with four 0.8 %. A class is known once it has been seen 3 times, and
    its time m is the lower quartile of its last 16 runs: what a run takes where nothing else disturbs it. With the
    median, or on the word of one run, a few that were disturbed could make a size look useless, which then is not
    tried again.

    Since more rows never take less, the estimate for n rows is min(m_c for each class c from b on), b being the
    largest known class up to that of n. Where none is known it is 0, so that nothing is refused on a guess.

    A class that has not been seen for max(1 s, 4 of its runs) counts as unknown. Without that, a few slow runs could
    lead to every later request being refused, and no run would ever correct the estimate. For choosing among
    sizes, where a wrong estimate costs less than trying every size again each second, it is known for 10 s; what is
    seen after that begins anew.

    The router's estimate (`routing.estimators.latency.RunTimes`) is another algorithm since it has another task. It
    must notice within a few runs that the device has become slower, and knows a 99th percentile to start in time by;
    one run in a size speaks for all sizes there, scaled. Where it chooses batches, on a simulated device that three of
    ten runs disturb, 0 to 0.98 of what is possible is in time over four seeds; with this one 0.72 to 0.98. Where this
    one routes, a device that slows down is seen after 13 runs instead of 5.
    """

    def __init__(self, buckets: Sequence[int] = ()) -> None:
        self._buckets = tuple(buckets)
        self._classes: dict[int, _Last] = {}  # the largest size first

    def observe(self, rows: int, run_s: float, now_s: float) -> None:
        """Learn from a run of `rows` rows that succeeded; a failure says nothing about time."""
        size = self._class_of(rows)
        own = self._classes.get(size)
        if own is None or not own.is_fresh(now_s, _REMEMBERED_S):
            own = self._classes[size] = _Last(_QUARTER)
            self._classes = dict(sorted(self._classes.items(), reverse=True))
        own.observe(run_s, now_s)

    def estimate_s(self, rows: int, now_s: float) -> float:
        """Seconds that a run of `rows` rows takes, or 0 where nothing recent is known."""
        return self._bounds_s(rows, now_s, _FRESH_S)[0]

    def remembered_s(self, rows: int, now_s: float) -> float:
        """The same from a longer memory, good enough to compare sizes and too old to refuse anybody.

        A size of which nothing is known takes at least its share of what the next larger one takes: a row costs no
        less in a small run. So a small size is not tried for its own sake where a large one can be had.
        """
        return max(self._bounds_s(rows, now_s, _REMEMBERED_S))

    def _bounds_s(self, rows: int, now_s: float, fresh_s: float) -> tuple[float, float]:
        """The largest known class up to that of `rows`, and the share of the next larger where that is another."""
        top, least_s = self._class_of(rows), math.inf
        larger: tuple[float, int] | None = None
        for size, own in self._classes.items():
            if own.is_known and own.is_fresh(now_s, fresh_s):
                if own.value_s < least_s:
                    least_s = own.value_s
                if size == top:
                    return least_s, 0.0
                if size < top:
                    return least_s, self._share_s(rows, larger)
                larger = least_s, size
        return 0.0, self._share_s(rows, larger)

    def _share_s(self, rows: int, larger: tuple[float, int] | None) -> float:
        """That of `rows` rows in the seconds of a larger class, 0 where there is none."""
        return larger[0] * rows / self._most_rows(larger[1]) if larger else 0.0

    def _class_of(self, rows: int) -> int:
        if self._buckets:
            return bisect_left(self._buckets, rows)
        last = max(rows - 1, 0)
        doublings = max(last.bit_length() - 3, 0)
        return 4 * doublings + (last >> doublings)

    def _most_rows(self, size: int) -> int:
        if self._buckets:
            return self._buckets[size]
        doublings = max(size // 4 - 1, 0)
        return (size - 4 * doublings + 1) << doublings


class Delays:
    """How long after a run's end the last of its requests has its answer in hand: the median of the last 16 seen.

    Their threads go on one after the other, which counts where a deadline is near. 0 where less than 3 are known, or
    nothing new for a quarter of a second; what is seen after that begins anew. A machine that stalls makes some of
    them longer than anybody waits: on the word of a few all that comes would be refused, and nothing seen any more.
    """

    def __init__(self) -> None:
        self._last = _Last(_HALF)

    def observe(self, delay_s: float, now_s: float) -> None:
        """Learn from one run."""
        if not self._is_fresh(now_s):
            self._last = _Last(_HALF)
        self._last.observe(delay_s, now_s)

    def estimate_s(self, now_s: float) -> float:
        """Seconds that an answer may take to be handed over."""
        return self._last.value_s if self._last.is_known and self._is_fresh(now_s) else 0.0

    def _is_fresh(self, now_s: float) -> bool:
        return now_s - self._last.seen_s <= _DELAYS_FRESH_S


class _Last:
    """The last 16 durations: the one at a share of them by rank, known from the third on, and when one was seen."""

    __slots__ = ("_last_s", "_share", "is_known", "seen_s", "value_s")

    def __init__(self, share: float) -> None:
        self._share = share
        self._last_s: deque[float] = deque(maxlen=_WINDOW)
        self.value_s, self.seen_s = 0.0, -math.inf
        self.is_known = False

    def observe(self, duration_s: float, now_s: float) -> None:
        self._last_s.append(duration_s)
        self.value_s = sorted(self._last_s)[int((len(self._last_s) - 1) * self._share)]
        self.seen_s = now_s
        self.is_known = len(self._last_s) >= _ENOUGH

    def is_fresh(self, now_s: float, fresh_s: float) -> bool:
        age_s = now_s - self.seen_s
        return age_s <= fresh_s or age_s <= _FRESH_RUNS * self.value_s
