"""The agent's metrics as Prometheus exports them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version as package_version
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from upwell.edge.models.edge_model import ModelHealth, State
from upwell.edge.observe.request_counts import BUCKETS_S, AnswerTally, LabelledCounter, Times
from upwell.shared.platform.background_thread import restarts
from upwell.shared.routing.decide.router_state import RouterState

if TYPE_CHECKING:
    from upwell.edge.case_collection.case_collector import CaseCollector
    from upwell.edge.drift import DriftWatch
    from upwell.edge.spool.spool import Spool
    from upwell.edge.updates.releases.release_control import ReleaseControl
    from upwell.edge.updates.update_follower import UpdateStatus

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
_STATES: tuple[State, ...] = get_args(State)


class _Scraped(Collector):
    """Collects the metrics that a function returns."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Call the function."""
        return self._families()


class _Described(_Scraped):
    """Names its metrics beforehand, so that a scrape may ask for some by name."""

    def describe(self) -> Iterable[Metric]:
        """The metrics."""
        return self.collect()


def registry_of(own: Callable[[], Iterable[Metric]], parts: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """A registry with an agent's own metrics and those of its parts, of which there may be more later."""
    registry = CollectorRegistry()
    registry.register(_Described(own))
    registry.register(_Scraped(parts))
    return registry


def agent_families(
    agent: str, policy_problem: str, state: RouterState, health: Sequence[ModelHealth]
) -> Iterator[Metric]:
    """The agent and its version, its policy, threads, router and models."""
    build = {"agent": agent, "version": package_version("upwell")}
    yield InfoMetricFamily("upwell_build", "The agent and its version of Upwell; always 1.", build)
    text = "1 while the policy file is not in force."
    yield GaugeMetricFamily("upwell_policy_refused", text, float(bool(policy_problem)))
    yield counter_by("upwell_thread_restarts", "Background threads restarted after a failure.", "thread", restarts())
    yield from router_families(state)
    yield from health_families(health)


def _created(since_s: float) -> float | None:
    """The time for a series `_created`; None where the environment turns these off, as the library's counters do."""
    is_off = os.environ.get("PROMETHEUS_DISABLE_CREATED_SERIES", "").lower() in ("true", "1", "t")
    return None if is_off else since_s


def answer_families(tally: AnswerTally) -> Iterator[Metric]:
    """A counter and a histogram."""
    requests = CounterMetricFamily("upwell_requests", "Requests answered.", labels=["model", "route", "reason"])
    seconds = HistogramMetricFamily("upwell_request_seconds", "Time to the answer.", labels=["model", "route"])
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    routes: dict[tuple[str, str], Times] = {}
    for (model, route, reason), times in tally.times().items():
        requests.add_metric([model, str(route), str(reason)], sum(times.counts), created=_created(times.since_s))
        whole = routes.setdefault((model, str(route)), Times(times.since_s))
        whole.counts = [*map(add, whole.counts, times.counts)]
        whole.sum_s += times.sum_s
    for (model, name), times in routes.items():
        seconds.add_metric([model, name], [*zip(bounds, accumulate(times.counts), strict=True)], times.sum_s)
        if (since_s := _created(times.since_s)) is not None:
            seconds.add_sample("upwell_request_seconds_created", {"model": model, "route": name}, since_s)
    yield from (requests, seconds)


def labelled_families(counters: Iterable[LabelledCounter]) -> Iterator[Metric]:
    """Each counter as a family of the page."""
    for counter in counters:
        metric = CounterMetricFamily(counter.name, counter.text, labels=counter.labels)
        for values, count in counter.counts().items():
            metric.add_metric(values, count, created=_created(counter.since_s(values)))
        yield metric


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
    from upwell.edge.spool.spooled_request import READ_TIMEOUT_S, SpoolUnavailable

    counts = spool.counts()
    for name, text in _SPOOL_COUNTS.items():
        yield CounterMetricFamily(f"upwell_spool_{name}", text, getattr(counts, name))
    lost = {name: getattr(counts, name) for name in _SPOOL_LOST}
    yield counter_by("upwell_spool_lost", "Cases and results dropped or not accepted.", "why", lost)
    try:
        held = spool.held(READ_TIMEOUT_S)
    except SpoolUnavailable:
        return
    yield GaugeMetricFamily("upwell_spool_waiting", "Cases waiting for the cloud.", held.waiting)
    yield GaugeMetricFamily("upwell_spool_bytes", "Disk space of cases and results.", held.size_bytes)
    yield GaugeMetricFamily("upwell_spool_oldest_seconds", "Age of the oldest waiting case.", held.oldest_waiting_s)


def case_families(collector: CaseCollector) -> Iterator[Metric]:
    """Counters of collected cases and their size on disk, which is left out while the disk cannot be read."""
    from upwell.edge.spool.spooled_request import READ_TIMEOUT_S, SpoolUnavailable

    counts = collector.counts()
    yield CounterMetricFamily("upwell_cases_kept", "Rows stored as cases.", counts.get("kept", 0))
    text = "Cases that the cloud answered later."
    yield CounterMetricFamily("upwell_cases_answered", text, counts.get("answered", 0))
    lost = {name: counts.get(name, 0) for name in _CASES_LOST}
    yield counter_by("upwell_cases_lost", "Cases dropped or not accepted.", "why", lost)
    try:
        number, size_bytes = collector.held(READ_TIMEOUT_S)
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


def health_families(models: Sequence[ModelHealth]) -> Iterator[GaugeMetricFamily]:
    """The health as Prometheus metrics."""
    states = GaugeMetricFamily("upwell_model_state", "1 for the model's present state.", labels=["model", "state"])
    nodes = GaugeMetricFamily(
        "upwell_model_nodes", "Nodes of the model by the accelerator that runs them.", labels=["model", "accelerator"]
    )
    for one in models:
        for state in _STATES:
            states.add_metric([one.model, state], float(one.state == state))
        taken = one.placement.nodes_on_accelerator
        nodes.add_metric([one.model, "cpu"], one.placement.nodes - taken)
        if one.accelerator:
            nodes.add_metric([one.model, one.accelerator], taken)
    yield from (states, nodes)
    gauges: Mapping[str, tuple[str, Callable[[ModelHealth], float]]] = {
        "version": ("Version of the model's bundle; 0 without one.", lambda one: one.version),
        "load_seconds": ("Time taken by loading and testing.", lambda one: one.report.load_s),
        "warm_up_seconds": ("Time taken by the first run.", lambda one: one.report.warm_up_s),
        "uncalibrated": ("1 if no calibration fits a target of the model's policy.",
                         lambda one: float(bool(one.uncalibrated))),
        "memory_bytes": ("Memory that loading took; NaN if unknown.", lambda one: one.report.memory_bytes or math.nan),
    }  # fmt: skip
    for name, (text, value) in gauges.items():
        gauge = GaugeMetricFamily(f"upwell_model_{name}", text, labels=["model"])
        for one in models:
            gauge.add_metric([one.model], value(one))
        yield gauge
