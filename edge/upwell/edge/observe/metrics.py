"""How many answers there were, by model, route and reason, and how long they took: counted in a microsecond."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from itertools import accumulate
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from upwell.edge.observe.health import Health, HealthCollector, UpdatesHealth, health_page
from upwell.edge.spool.item import SpoolUnavailable
from upwell.edge.spool.spool import Spool
from upwell.shared.platform.background_thread import RestartCollector
from upwell.shared.routing.decide.state import RouterState
from upwell.shared.routing.estimators.link import LinkEstimate
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.telemetry.exposition import serve_pages

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


class AgentMetrics:
    """The agent's counters in a registry of their own, so that two agents may live in one process."""

    def __init__(
        self,
        state: Callable[[], RouterState],
        health: Health = tuple,
        agent: str = "agent",
        policy_problem: Callable[[], str] = str,
    ) -> None:
        self.registry = CollectorRegistry()
        build = Info("upwell_build", "The agent and its version of Upwell; always 1.", registry=self.registry)
        build.info({"agent": agent, "version": package_version("upwell")})
        self._health = health
        self._policy_problem = policy_problem
        self._updates: UpdatesHealth = dict
        self.problems: list[str] = []
        """What is wrong with the agent itself, for `/health`."""
        self._missing: Callable[[], Mapping[str, str]] = dict
        self.answers = AnswerTally()
        """Each answer is to be added."""
        self.registry.register(self.answers)
        self._degraded = Counter(
            "upwell_degraded",
            "Answers of the device where the policy wanted the cloud.",
            ("model", "reason"),
            registry=self.registry,
        )
        self._failed = Counter(
            "upwell_failed", "Requests that ended in an error, by error.", ("model", "error"), registry=self.registry
        )
        self._up = Counter("upwell_uplink_bytes", "Bytes of messages sent up.", ("model",), registry=self.registry)
        self._rules = Counter(
            "upwell_rule_errors",
            "Requests kept on the device since a rule could not be evaluated.",
            ("rule",),
            registry=self.registry,
        )
        refused = Gauge(
            "upwell_policy_refused", "1 while what is in the policy file is not in force.", registry=self.registry
        )
        refused.set_function(lambda: float(bool(policy_problem())))
        self.registry.register(RestartCollector("upwell_thread_restarts"))
        self.registry.register(_StateCollector(state))
        self.registry.register(HealthCollector(health))

    def watch_spool(self, spool: Spool) -> None:
        """Export what the spool does."""
        self.registry.register(SpoolCollector(spool))

    def watch_log(self, recorded: Callable[[], Mapping[str, int]]) -> None:
        """Export what became of the lines of the request log."""
        fates = ("written", "dropped", "failed")
        self.registry.register(_FateCollector("upwell_log_lines", "Lines of the request log.", fates, recorded))

    def watch_traces(self, became: Callable[[], Mapping[str, int]]) -> None:
        """Export what became of the requests that were recorded for traces."""
        fates = ("sent", "dropped", "failed")
        self.registry.register(_FateCollector("upwell_traces", "Requests recorded for traces.", fates, became))

    def watch_updates(self, status: UpdatesHealth) -> None:
        """Export how the updates of bundles fare."""
        self._updates = status
        self.registry.register(_UpdateCollector(status))

    def watch_cloud_models(self, missing: Callable[[], Mapping[str, str]]) -> None:
        """Say at `/health` which models the cloud does not know."""
        self._missing = missing

    def rule_failed(self, rule: str) -> None:
        """Count a rule that could not be evaluated."""
        self._rules.labels(rule).inc()

    def degraded(self, model: str, reason: Reason) -> None:
        """Count a degraded answer."""
        self._degraded.labels(model, str(reason)).inc()

    def failed(self, model: str, error: Exception) -> None:
        """Count a request that ended in an error."""
        self._failed.labels(model, type(error).__name__).inc()

    def sent(self, model: str, size_bytes: int) -> None:
        """Count bytes that went up, whatever became of them."""
        self._up.labels(model).inc(size_bytes)

    def all_problems(self) -> list[str]:
        """What is wrong with the agent itself, a policy file that is not in force among it."""
        policy = self._policy_problem()
        return [*self.problems, *([f"the policy file is not in force: {policy}"] if policy else [])]

    def serve(self, host: str, port: int) -> WSGIServer:
        """Answer `GET /metrics` and `GET /health` on a thread; port 0 takes a free one.

        Raises `ConfigError` where it cannot listen.
        """
        pages = {"/health": lambda: health_page(self._health(), self._updates(), self.all_problems(), self._missing())}
        return serve_pages(host, port, self.registry, "agent.metrics", pages)


class _FateCollector(Collector):
    """A counter of things by what became of each, read when scraped."""

    def __init__(self, name: str, text: str, fates: Sequence[str], became: Callable[[], Mapping[str, int]]) -> None:
        self._name = name
        self._text = text
        self._fates = fates
        self._became = became

    def collect(self) -> Iterator[Metric]:
        """All fates, those of nothing yet too."""
        counts = self._became()
        metric = CounterMetricFamily(self._name, self._text, labels=["became"])
        for fate in self._fates:
            metric.add_metric([fate], counts.get(fate, 0))
        yield metric


class _UpdateCollector(Collector):
    """How the updates of each model fare, read when scraped."""

    def __init__(self, status: UpdatesHealth) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Looks at each source by outcome, bytes fetched, and whether the last offer was refused."""
        looks = CounterMetricFamily("upwell_update_looks", "Looks for a new version.", labels=["model", "outcome"])
        fetched = CounterMetricFamily("upwell_update_bytes", "Bytes of bundles fetched.", labels=["model"])
        refused = GaugeMetricFamily(
            "upwell_update_refused", "1 where the last offer is refused.", labels=["model", "refusal"]
        )
        for model, status in self._status().items():
            for outcome, count in status.looks.items():
                looks.add_metric([model, outcome], count)
            fetched.add_metric([model], status.fetched_bytes)
            if status.refusal is not None:
                refused.add_metric([model, status.refusal.value], 1.0)
        yield from (looks, fetched, refused)


_SPOOL_COUNTS = {
    "kept": "Cases written to the spool.",
    "unnamed": "Of these, cases whose id came too late for their answer.",
    "answered": "Kept cases that the cloud answered.",
    "poisoned": "Cases set aside.",
    "denied": "Cases dropped since the policy forbids now that they leave the device.",
    "failed_writes": "Cases lost since the disk was full, read-only or broken.",
    "failed_deliveries": "Attempts to hand results on that failed.",
}
_SPOOL_LOST = ("refused_busy", "refused_large", "refused_unfit", "dropped_full", "dropped_old", "dropped_results")


class SpoolCollector(Collector):
    """What the spool has done and holds, read when scraped."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def collect(self) -> Iterator[Metric]:
        """Counters by what happened; gauges of what lies on disk, left out while the disk cannot be asked."""
        counts = self._spool.counts()
        for name, text in _SPOOL_COUNTS.items():
            yield CounterMetricFamily(f"upwell_spool_{name}", text, getattr(counts, name))
        lost = CounterMetricFamily("upwell_spool_lost", "Cases and results dropped or not taken.", labels=["why"])
        for name in _SPOOL_LOST:
            lost.add_metric([name], getattr(counts, name))
        yield lost
        try:
            held = self._spool.held()
        except SpoolUnavailable:
            return
        yield GaugeMetricFamily("upwell_spool_waiting", "Cases that wait for the cloud.", held.waiting)
        yield GaugeMetricFamily("upwell_spool_bytes", "Bytes that cases and results take.", held.size_bytes)
        yield GaugeMetricFamily("upwell_spool_oldest_seconds", "Age of the oldest waiting case.", held.oldest_waiting_s)


class _StateCollector(Collector):
    """What the router knows, read when scraped."""

    def __init__(self, state: Callable[[], RouterState]) -> None:
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One gauge for each part of the estimate; without a sample yet, NaN."""
        state = self._state()
        link: LinkEstimate = state.link
        yield GaugeMetricFamily("upwell_link_rtt_seconds", "Estimated round trip to the cloud.", link.rtt_s)
        inverse = link.inverse_bandwidth_s_per_byte
        bandwidth = GaugeMetricFamily(
            "upwell_link_bytes_per_second", "Estimated bandwidth to the cloud; NaN if unknown."
        )
        bandwidth.add_metric([], 1.0 / inverse if inverse > 0 else math.nan)
        yield bandwidth
        breakers = GaugeMetricFamily("upwell_breaker_open", "1 while the cloud is left alone.", labels=["model"])
        now_s = time.monotonic()
        for key, breaker in state.breakers.items():
            breakers.add_metric([key or "*"], float(breaker.is_open or state.is_held(key, now_s)))
        yield breakers
        yield from _audits(state)


def _audits(state: RouterState) -> Iterator[GaugeMetricFamily]:
    """How often the cloud disagrees with what the device kept, with an exact 95 % interval."""
    texts = {
        "disagreement": "Share of audited answers of the device that the cloud disagrees with.",
        "disagreement_low": "Lower end of its 95 % interval.",
        "disagreement_high": "Upper end of its 95 % interval.",
        "alarm": "1 where audits say that the promised risk no longer holds.",
        "count": "Audits counted.",
    }
    families = {name: GaugeMetricFamily(f"upwell_audit_{name}", text, labels=["scope"]) for name, text in texts.items()}
    for scope, tally in state.audits.items():
        share = tally.disagreed / tally.n if tally.n else math.nan
        values = (share, tally.low, tally.high, float(tally.alarm), float(tally.n))
        for family, value in zip(families.values(), values, strict=True):
            family.add_metric([scope], value)
    yield from families.values()
