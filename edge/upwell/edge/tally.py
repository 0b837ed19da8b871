"""How many answers there were, by model, route and reason, and how long they took: counted in a microsecond."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from upwell.shared.routing.reasons import Reason, Route

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class _Times:
    """Of one route; `counts` has one place for each bucket and one for what is longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0
    since_s: float = field(default_factory=time.time)


@dataclass(slots=True)
class _Answers:
    """Of one route and reason."""

    times: _Times
    count: int = 0
    since_s: float = field(default_factory=time.time)


class AnswerTally(Collector):
    """Counts answers under one lock, and makes metrics of them when scraped.

    The client library's own counter and histogram take eight calls and three locks for each answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, Route, Reason], _Answers] = {}
        self._times: dict[tuple[str, Route], _Times] = {}

    def add(self, model: str, route: Route, reason: Reason, took_s: float) -> None:
        """Count an answer."""
        with self._lock:
            answers = self._answers.get((model, route, reason))
            if answers is None:
                times = self._times.setdefault((model, route), _Times())
                answers = self._answers[model, route, reason] = _Answers(times)
            answers.count += 1
            answers.times.counts[bisect_left(BUCKETS_S, took_s)] += 1
            answers.times.sum_s += took_s

    def collect(self) -> Iterator[Metric]:
        """A counter and a histogram."""
        requests = CounterMetricFamily("upwell_requests", "Requests answered.", labels=["model", "route", "reason"])
        seconds = HistogramMetricFamily("upwell_request_seconds", "Time to the answer.", labels=["model", "route"])
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        with self._lock:
            for (model, route, reason), answers in self._answers.items():
                requests.add_metric([model, str(route), str(reason)], answers.count, created=answers.since_s)
            for (model, route), times in self._times.items():
                seconds.add_metric(
                    [model, str(route)], [*zip(bounds, accumulate(times.counts), strict=True)], times.sum_s
                )
                seconds.add_sample(
                    "upwell_request_seconds_created", {"model": model, "route": str(route)}, times.since_s
                )
        yield from (requests, seconds)
