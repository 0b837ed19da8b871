"""Estimates of run times by batch size, and of the delay until answers are delivered, learned online."""

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
    """Estimates the time of a run (s) by its number of rows; pure, time is an argument.

    If a row may have any size (texts, sounds), elements take the place of rows: by rows, long ones would make a short
    one look hopeless, and those refused would never correct that.

    Batch sizes fall into classes: up to each of `buckets`, or without them 1 to 8, 10, 12, 14, 16, 20, ..., four to
    each doubling. Simulated with deadlines of 20 to 200 ms at capacity, one class per doubling makes 2.5 % of the
    answers late that seemed to be in time, four classes 0.8 %. A class is known after 3 runs, and its time m is the
    lower quartile of its last 16 runs: the time of an undisturbed run. With the median, or after a single run, a few
    disturbed runs could make a size look useless, which is then not tried again.

    Since more rows never take less time, the estimate for n rows is min(m_c for each class c from b on), b being the
    largest known class up to that of n. If none is known it is 0, so that nothing is refused on a guess.

    A class not seen for max(1 s, 4 of its runs) counts as unknown. Otherwise a few slow runs could cause all later
    requests to be refused, and no run would ever correct the estimate. For choosing among sizes, where a wrong estimate
    costs less than trying every size each second, it is known for 10 s and then starts over.

    The router's estimate (`routing.estimators.run_and_answer_times.RunTimes`) is a different algorithm for a different
    task. It must notice within a few runs that the device has become slower, and needs a 99th percentile to start in
    time; there, one run informs all sizes by scaling. If it chooses batches, on a simulated device with three of ten
    runs disturbed, 0 to 0.98 of the possible answers are in time over four seeds; with this one 0.72 to 0.98. If this
    one routes, a slower device is noticed after 13 runs instead of 5.
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
        """The time of a run of `rows` rows (s), or 0 if nothing recent is known."""
        return self._bounds_s(rows, now_s, _FRESH_S)[0]

    def remembered_s(self, rows: int, now_s: float) -> float:
        """The same from a longer memory, good enough to compare sizes but too old to refuse requests.

        An unknown size takes at least its share of the next larger one's time, since a row costs no less in a small
        run. So a small size is not tried if a large one is possible.
        """
        return max(self._bounds_s(rows, now_s, _REMEMBERED_S))

    def _bounds_s(self, rows: int, now_s: float, fresh_s: float) -> tuple[float, float]:
        """The time of the largest known class up to that of `rows`, and the share of the next larger one if that
        differs."""
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
        """The share of `rows` rows in a larger class's time, 0 if there is none."""
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
    """The delay between a run's end and its last request's answer: the median of the last 16.

    The callers' threads resume one after the other, which matters near a deadline. It is 0 with fewer than 3 samples,
    or without a new one for a quarter of a second, after which it starts over. A stalling machine makes some delays
    longer than any caller waits: a few of them would otherwise cause all requests to be refused, with no new samples.
    """

    def __init__(self) -> None:
        self._last = _Last(_HALF)

    def observe(self, delay_s: float, now_s: float) -> None:
        """Learn from one run."""
        if not self._is_fresh(now_s):
            self._last = _Last(_HALF)
        self._last.observe(delay_s, now_s)

    def estimate_s(self, now_s: float) -> float:
        """The expected delay of an answer (s)."""
        return self._last.value_s if self._last.is_known and self._is_fresh(now_s) else 0.0

    def _is_fresh(self, now_s: float) -> bool:
        return now_s - self._last.seen_s <= _DELAYS_FRESH_S


class _Last:
    """A quantile of the last 16 durations, known from the third on, and the time of the latest one."""

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
