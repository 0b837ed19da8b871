"""Counts of requests, cheap to add to, and without the library that exports them."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from upwell.shared.routing.reasons import Reason, Route

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)

AT_ONCE = 256
"""Maximum number of answers with one key that wait to be counted."""


class LabelledCounter:
    """A counter by the values of its `labels`, each with the time (Unix, s) since which it is counted. Thread-safe."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], int] = {}
        self._since_s: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, count: int = 1) -> None:
        """Add `count` to the counter of these values."""
        with self._lock:
            if values not in self._counts:
                self._since_s[values] = time.time()
            self._counts[values] = self._counts.get(values, 0) + count

    def counts(self) -> Mapping[tuple[str, ...], int]:
        """The counts by values."""
        with self._lock:
            return self._counts.copy()

    def since_s(self, values: tuple[str, ...]) -> float:
        """When counting of these values began (Unix, s)."""
        return self._since_s[values]


@dataclass(slots=True)
class Times:
    """A histogram of times; `counts` has one entry per bucket and one for longer times, `new` those not counted yet."""

    since_s: float
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0
    new: deque[float] = field(default_factory=deque)

    def count(self) -> None:
        """Count the new ones; for one thread at a time."""
        for _ in range(len(self.new)):
            took_s = self.new.popleft()
            self.counts[bisect_left(BUCKETS_S, took_s)] += 1
            self.sum_s += took_s


class AnswerTally:
    """Counts answers under one lock, many at once or when read.

    The client library's own counter and histogram take eight calls and three locks for each answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, Route, Reason], Times] = {}
        self._since_s = time.time()

    def add(self, model: str, route: Route, reason: Reason, took_s: float) -> None:
        """Count an answer."""
        times = self._answers.get((model, route, reason))
        if times is None:
            with self._lock:
                times = self._answers.setdefault((model, route, reason), Times(self._since_s))
        times.new.append(took_s)
        if len(times.new) >= AT_ONCE:
            with self._lock:
                times.count()

    def _counted(self) -> Mapping[tuple[str, Route, Reason], Times]:
        """All answers, counted; call it under the lock."""
        for times in self._answers.values():
            times.count()
        return self._answers

    def by_route(self) -> dict[Route, int]:
        """The number of answers by route."""
        found: dict[Route, int] = {}
        with self._lock:
            for (_, route, _), times in self._counted().items():
                found[route] = found.get(route, 0) + sum(times.counts)
        return found

    def by_model(self) -> dict[str, dict[tuple[Route, Reason], int]]:
        """The number of answers by route and reason, for each model."""
        found: dict[str, dict[tuple[Route, Reason], int]] = {}
        with self._lock:
            for (model, route, reason), times in self._counted().items():
                found.setdefault(model, {})[route, reason] = sum(times.counts)
        return found

    def times(self) -> Mapping[tuple[str, Route, Reason], Times]:
        """A copy of the counted times, by model, route and reason."""
        with self._lock:
            return {key: Times(one.since_s, [*one.counts], one.sum_s) for key, one in self._counted().items()}
