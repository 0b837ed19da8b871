"""How long a run of a model takes at a given batch size, learned from the runs there were."""

from __future__ import annotations

from collections import deque

_WINDOW = 16
_FRESH_S = 1.0
_FRESH_RUNS = 4.0


class RunTimes:
    """Estimate of a run's time in seconds by its number of rows; pure, time is an argument.

    Batch sizes fall into buckets 1, 2, 3-4, 5-8, ... (bucket b holds sizes up to 2^b). A bucket's time is
    the median of its last 16 runs: one slow run, such as the first, does not move it. The estimate for n rows is the
    largest time of any bucket up to that of n, since more rows never take less; where nothing is known
    it is 0, so that nothing is refused on a guess.

    A bucket that has not been seen for max(1 s, 4 of its runs) counts as unknown. Without that, a few slow
    runs could lead to every later request being refused, and no run would ever correct the estimate.
    """

    def __init__(self) -> None:
        self._runs: dict[int, deque[float]] = {}
        self._known: dict[int, tuple[float, float]] = {}

    def observe(self, rows: int, run_s: float, now_s: float) -> None:
        """Learn from a run of `rows` rows that succeeded; a failure says nothing about time."""
        bucket = _bucket(rows)
        runs = self._runs.setdefault(bucket, deque(maxlen=_WINDOW))
        runs.append(run_s)
        median_s = sorted(runs)[(len(runs) - 1) // 2]
        self._known[bucket] = (median_s, now_s + max(_FRESH_S, _FRESH_RUNS * median_s))

    def estimate_s(self, rows: int, now_s: float) -> float:
        """Seconds that a run of `rows` rows takes, or 0 where nothing recent is known."""
        top = _bucket(rows)
        estimate_s = 0.0
        for bucket, (median_s, fresh_until_s) in self._known.items():
            if bucket <= top and median_s > estimate_s and now_s <= fresh_until_s:
                estimate_s = median_s
        return estimate_s


def _bucket(rows: int) -> int:
    return max(rows - 1, 0).bit_length()
