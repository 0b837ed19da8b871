"""The agent's metrics: answers and their times by model, route and reason, counted in a microsecond."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from upwell.edge.models.edge_model import ModelHealth
from upwell.edge.observe.agent_health import health_families
from upwell.shared.platform.background_thread import restarts
from upwell.shared.routing.decide.router_state import RouterState
from upwell.shared.routing.reasons import DEGRADED, Reason, Route

if TYPE_CHECKING:
    from upwell.edge.case_collection.case_collector import CaseCollector
    from upwell.edge.drift import DriftWatch
    from upwell.edge.spool.spool import Spool
    from upwell.edge.updates.releases.release_control import ReleaseControl
    from upwell.edge.updates.update_follower import UpdateStatus

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)


KEPT_THOUGH_WANTED = DEGRADED | {Reason.BUDGET_SPENT, Reason.FLEET_SHARE}
"""Reasons of edge answers for which the policy alone would have asked the cloud."""

AT_ONCE = 256
"""Maximum number of answers with one key that wait to be counted."""

_SPOOL_COUNTS = {
    "kept": "Cases written to the spool.",
    "unnamed": "Cases written too late to give their id in the answer.",
    "answered": "Spooled cases that the cloud answered.",
    "poisoned": "Cases set aside.",
    "denied": "Cases dropped because the policy no longer lets them leave the device.",
    "failed_writes": "Cases lost because the disk was full, read-only or broken.",
    "failed_deliveries": "Failed attempts to deliver results.",
}
_SPOOL_LOST = ("refused_busy", "refused_large", "refused_unfit", "dropped_full", "dropped_old", "dropped_results")
_CASES_LOST = ("refused_day", "refused_large", "refused_busy", "refused_unfit", "failed_writes", "dropped_full",
               "dropped_old", "damaged")  # fmt: skip


@dataclass(frozen=True)
class ModelTotals:
    """Requests for a model: all, offloaded ones, those the policy wanted to offload; and the bytes sent."""

    requests: int = 0
    up: int = 0
    wanted: int = 0
    sent_bytes: int = 0

    def since(self, before: ModelTotals) -> ModelTotals:
        """The difference from an earlier total."""
        return ModelTotals(
            self.requests - before.requests, self.up - before.up, self.wanted - before.wanted,
            self.sent_bytes - before.sent_bytes,
        )  # fmt: skip


@dataclass(slots=True)
class _Times:
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


class AnswerTally(Collector):
    """Counts answers under one lock, many at once or when read, and turns them into metrics when scraped.

    The client library's own counter and histogram take eight calls and three locks for each answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, Route, Reason], _Times] = {}
        self._since_s = time.time()

    def add(self, model: str, route: Route, reason: Reason, took_s: float) -> None:
        """Count an answer."""
        times = self._answers.get((model, route, reason))
        if times is None:
            with self._lock:
                times = self._answers.setdefault((model, route, reason), _Times(self._since_s))
        times.new.append(took_s)
        if len(times.new) >= AT_ONCE:
            with self._lock:
                times.count()

    def _counted(self) -> Mapping[tuple[str, Route, Reason], _Times]:
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

    def collect(self) -> Iterator[Metric]:
        """A counter and a histogram."""
        requests = CounterMetricFamily("upwell_requests", "Requests answered.", labels=["model", "route", "reason"])
        seconds = HistogramMetricFamily("upwell_request_seconds", "Time to the answer.", labels=["model", "route"])
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        routes: dict[tuple[str, str], _Times] = {}
        with self._lock:
            for (model, route, reason), times in self._counted().items():
                requests.add_metric([model, str(route), str(reason)], sum(times.counts), created=times.since_s)
                whole = routes.setdefault((model, str(route)), _Times(times.since_s))
                whole.counts = [*map(add, whole.counts, times.counts)]
                whole.sum_s += times.sum_s
        for (model, name), times in routes.items():
            seconds.add_metric([model, name], [*zip(bounds, accumulate(times.counts), strict=True)], times.sum_s)
            seconds.add_sample("upwell_request_seconds_created", {"model": model, "route": name}, times.since_s)
        yield from (requests, seconds)


class _Scraped(Collector):
    """Collects the metrics that a function returns."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Call the function."""
        return self._families()


class AgentMetrics:
    """The agent's counters in a registry of their own, so that two agents may live in one process."""

    def __init__(
        self,
        state: Callable[[], RouterState],
        health: Callable[[], Sequence[ModelHealth]] = tuple,
        agent: str = "agent",
        policy_problem: Callable[[], str] = str,
    ) -> None:
        self.registry = CollectorRegistry()
        build = Info("upwell_build", "The agent and its version of Upwell; always 1.", registry=self.registry)
        build.info({"agent": agent, "version": package_version("upwell")})
        self.answers = AnswerTally()
        """Each answer is to be added."""
        self.registry.register(self.answers)
        self._degraded = Counter(
            "upwell_degraded",
            "Edge answers where the policy wanted the cloud.",
            ("model", "reason"),
            registry=self.registry,
        )
        self._failed = Counter(
            "upwell_failed", "Requests that ended in an error, by error.", ("model", "error"), registry=self.registry
        )
        self._late = Counter(
            "upwell_late", "Answers that came after their deadline.", ("model",), registry=self.registry
        )
        self._audits = Counter(
            "upwell_audits", "Audits that the cloud answered.", ("model", "agrees"), registry=self.registry
        )
        self._up = Counter(
            "upwell_uplink_bytes", "Bytes of messages sent to the cloud.", ("model",), registry=self.registry
        )
        self._rules = Counter(
            "upwell_rule_errors",
            "Requests kept on the device because a rule could not be evaluated.",
            ("rule",),
            registry=self.registry,
        )
        refused = Gauge("upwell_policy_refused", "1 while the policy file is not in force.", registry=self.registry)
        refused.set_function(lambda: float(bool(policy_problem())))
        text = "Background threads restarted after a failure."
        self.export(lambda: [counter_by("upwell_thread_restarts", text, "thread", restarts())])
        self.export(lambda: router_families(state()))
        self.export(lambda: health_families(health()))

    def export(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Call this function when the registry is scraped, and export its metrics."""
        self.registry.register(_Scraped(families))

    def rule_failed(self, rule: str) -> None:
        """Count a rule that could not be evaluated."""
        self._rules.labels(rule).inc()

    def degraded(self, model: str, reason: Reason) -> None:
        """Count a degraded answer."""
        self._degraded.labels(model, str(reason)).inc()

    def failed(self, model: str, error: Exception) -> None:
        """Count a request that ended in an error."""
        self._failed.labels(model, type(error).__name__).inc()

    def late(self, model: str) -> None:
        """Count an answer that came after its deadline."""
        self._late.labels(model).inc()

    def audited(self, model: str, *, agrees: bool) -> None:
        """Count the result of an audit."""
        self._audits.labels(model, str(agrees).lower()).inc()

    def totals(self) -> dict[str, int]:
        """The totals over all models since the start, as reported to a fleet service."""
        routes = self.answers.by_route()
        audits = _values(self._audits)
        degraded: dict[str, int] = {}
        for (_, reason), count in _values(self._degraded).items():
            degraded[f"degraded.{reason}"] = degraded.get(f"degraded.{reason}", 0) + count
        return {
            "requests": sum(routes.values()),
            "up": sum(count for route, count in routes.items() if route not in (Route.EDGE, Route.EXIT)),
            "late": sum(_values(self._late).values()),
            "degraded": sum(_values(self._degraded).values()),
            "failed": sum(_values(self._failed).values()),
            "uplink_bytes": sum(_values(self._up).values()),
            "audits": sum(audits.values()),
            "disagreements": sum(count for labels, count in audits.items() if labels[-1] == "false"),
            **degraded,
        }

    def demand(self) -> dict[str, ModelTotals]:
        """The requests per model since the start, with those offloaded or wanted in the cloud."""
        sent = {labels[0]: count for labels, count in _values(self._up).items()}
        found = {}
        for model, answers in self.answers.by_model().items():
            up = sum(count for (route, _), count in answers.items() if route not in (Route.EDGE, Route.EXIT))
            kept = sum(
                count for (route, reason), count in answers.items()
                if route in (Route.EDGE, Route.EXIT) and reason in KEPT_THOUGH_WANTED
            )  # fmt: skip
            found[model] = ModelTotals(sum(answers.values()), up, up + kept, sent.get(model, 0))
        return found

    def sent(self, model: str, size_bytes: int) -> None:
        """Count bytes sent to the cloud, whatever the outcome."""
        self._up.labels(model).inc(size_bytes)


def _values(counter: Counter) -> dict[tuple[str, ...], int]:
    """The counter's values by label values."""
    samples = (sample for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total"))
    return {tuple(sample.labels.values()): int(sample.value) for sample in samples}


def counter_by(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    """A counter with one label."""
    metric = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        metric.add_metric([value], count)
    return metric


def update_families(updates: Mapping[str, UpdateStatus]) -> Iterable[Metric]:
    """Metrics of updates: checks by outcome, bytes fetched, and whether the last offer was refused."""
    looks = CounterMetricFamily("upwell_update_looks", "Checks for a new version.", labels=["model", "outcome"])
    fetched = CounterMetricFamily("upwell_update_bytes", "Bytes of bundles fetched.", labels=["model"])
    refused = GaugeMetricFamily(
        "upwell_update_refused", "1 if the newest offered version was refused.", labels=["model", "refusal"]
    )
    for model, status in updates.items():
        for outcome, count in status.looks.items():
            looks.add_metric([model, outcome], count)
        fetched.add_metric([model], status.fetched_bytes)
        if status.refusal is not None:
            refused.add_metric([model, status.refusal.value], 1.0)
    return looks, fetched, refused


def release_families(client: ReleaseControl) -> Iterable[Metric]:
    """The installed release and its phase."""
    status = client.status()
    phase = GaugeMetricFamily("upwell_release_phase", "1 for the release's present phase.", labels=["phase"])
    phase.add_metric([status.phase], 1.0)
    return GaugeMetricFamily("upwell_release_sequence", "The installed release; 0 if none.", status.sequence), phase


def spool_families(spool: Spool) -> Iterator[Metric]:
    """The spool's counters and its contents on disk, which are left out while the disk cannot be read."""
    from upwell.edge.spool.spooled_request import SpoolUnavailable

    counts = spool.counts()
    for name, text in _SPOOL_COUNTS.items():
        yield CounterMetricFamily(f"upwell_spool_{name}", text, getattr(counts, name))
    lost = {name: getattr(counts, name) for name in _SPOOL_LOST}
    yield counter_by("upwell_spool_lost", "Cases and results dropped or not accepted.", "why", lost)
    try:
        held = spool.held()
    except SpoolUnavailable:
        return
    yield GaugeMetricFamily("upwell_spool_waiting", "Cases waiting for the cloud.", held.waiting)
    yield GaugeMetricFamily("upwell_spool_bytes", "Disk space of cases and results.", held.size_bytes)
    yield GaugeMetricFamily("upwell_spool_oldest_seconds", "Age of the oldest waiting case.", held.oldest_waiting_s)


def case_families(collector: CaseCollector) -> Iterator[Metric]:
    """Counters of collected cases and their size on disk, which is left out while the disk cannot be read."""
    from upwell.edge.spool.spooled_request import SpoolUnavailable

    counts = collector.counts()
    yield CounterMetricFamily("upwell_cases_kept", "Rows stored as cases.", counts.get("kept", 0))
    text = "Cases that the cloud answered later."
    yield CounterMetricFamily("upwell_cases_answered", text, counts.get("answered", 0))
    lost = {name: counts.get(name, 0) for name in _CASES_LOST}
    yield counter_by("upwell_cases_lost", "Cases dropped or not accepted.", "why", lost)
    try:
        number, size_bytes = collector.held()
    except SpoolUnavailable:
        return
    yield GaugeMetricFamily("upwell_cases_held", "Cases on disk.", number)
    yield GaugeMetricFamily("upwell_cases_bytes", "Disk space of cases.", size_bytes)


def drift_families(watch: DriftWatch) -> Iterator[Metric]:
    """Which quantities have drifted from the bundles' references, and how far."""
    labels = ["model", "quantity"]
    moved = GaugeMetricFamily("upwell_drift", "1 while the quantity has drifted from the reference.", labels=labels)
    text = "Total variation between the recent rows and the reference."
    distance = GaugeMetricFamily("upwell_drift_distance", text, labels=labels)
    for model, report in watch.reports().items():
        for quantity, one in report.quantities.items():
            moved.add_metric([model, quantity], float(one.moved))
            distance.add_metric([model, quantity], one.distance)
    yield from (moved, distance)


def router_families(state: RouterState) -> Iterator[Metric]:
    """The router's state: the link (NaN without a sample), the breakers, the audits; by network interface if several
    are named."""
    labels = ["interface"] if state.others else []
    rtt = GaugeMetricFamily("upwell_link_rtt_seconds", "Estimated round trip to the cloud.", labels=labels)
    text = "Estimated bandwidth to the cloud; NaN if unknown."
    rate = GaugeMetricFamily("upwell_link_bytes_per_second", text, labels=labels)
    text = "1 while the breaker is open and the cloud is not asked."
    breakers = GaugeMetricFamily("upwell_breaker_open", text, labels=["model", *labels])
    now_s = time.monotonic()
    for interface in (state.interface, *state.others):
        over, named = state.over(interface), [interface] if labels else []
        inverse = over.link.inverse_bandwidth_s_per_byte
        rtt.add_metric(named, over.link.rtt_s)
        rate.add_metric(named, 1.0 / inverse if inverse > 0 else math.nan)
        for key, breaker in over.breakers.items():
            breakers.add_metric([key or "*", *named], float(breaker.is_open or state.is_held(key, now_s)))
    yield from (rtt, rate, breakers)
    yield from _audits(state)


def _audits(state: RouterState) -> Iterator[GaugeMetricFamily]:
    """How often the cloud disagrees with answers kept on the device, with an exact 95 % interval."""
    texts = {
        "disagreement": "Share of audited edge answers with which the cloud disagrees.",
        "disagreement_low": "Lower end of its 95 % interval.",
        "disagreement_high": "Upper end of its 95 % interval.",
        "alarm": "1 if audits show that the promised risk no longer holds.",
        "count": "Audits counted.",
    }
    families = {name: GaugeMetricFamily(f"upwell_audit_{name}", text, labels=["scope"]) for name, text in texts.items()}
    for scope, tally in state.audits.items():
        share = tally.disagreed / tally.n if tally.n else math.nan
        values = (share, tally.low, tally.high, float(tally.alarm), float(tally.n))
        for family, value in zip(families.values(), values, strict=True):
            family.add_metric([scope], value)
    yield from families.values()
