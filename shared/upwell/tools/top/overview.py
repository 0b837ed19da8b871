"""The changes between two readings of a metrics page, for agent and service. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from upwell.tools.top.metrics_scrape import Scrape

_DEADLINE = "DeadlineExceeded"
_NOT_GIVEN = math.nan


@dataclass(frozen=True)
class ModelRow:
    """One model between two readings. Rates are per second; unknown values are NaN.

    `up_share`: the share of answers in which the cloud took part. For a service it is NaN, and `queue_p99_s`,
    `batch_rows` and `waiting` are known instead.
    """

    model: str
    state: str
    rate: float
    failed_rate: float
    p50_s: float = _NOT_GIVEN
    p99_s: float = _NOT_GIVEN
    up_share: float = _NOT_GIVEN
    degraded_rate: float = _NOT_GIVEN
    queue_p99_s: float = _NOT_GIVEN
    batch_rows: float = _NOT_GIVEN
    waiting: float = _NOT_GIVEN


@dataclass(frozen=True)
class Overview:
    """The activity of a server within `interval_s`. `facts` are single figures by name, `reasons` rates by reason."""

    kind: str
    interval_s: float
    models: Sequence[ModelRow]
    in_time: float
    reasons: Mapping[str, float]
    facts: Mapping[str, float] = field(default_factory=dict)


def overview(before: Scrape, after: Scrape) -> Overview:
    """The changes between the two. A counter that fell was restarted, and counts from zero."""
    is_agent = any(name.startswith("upwell_model_state") for name in after.samples)
    return (_agent if is_agent else _service)(_Change(before, after))


class _Change:
    def __init__(self, before: Scrape, after: Scrape) -> None:
        self.after = after
        self.interval_s = max(after.at_s - before.at_s, 1e-3)
        self._before = before

    def of(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """The growth of each sample with that name."""
        was = self._before.samples.get(name, {})
        grown: list[tuple[Mapping[str, str], float]] = []
        for labels, value in self.after.samples.get(name, {}).items():
            former = was.get(labels, 0.0)
            grown.append((dict(labels), value - former if value >= former else value))
        return grown

    def rate(self, name: str, **labels: str) -> float:
        """Growth per second of the samples with these labels."""
        return sum(value for own, value in self.of(name) if labels.items() <= own.items()) / self.interval_s

    def rates(self, name: str, label: str) -> dict[str, float]:
        """Growth per second by the value of that label, the largest first, without those that did not grow."""
        found: dict[str, float] = defaultdict(float)
        for own, value in self.of(name):
            found[own.get(label, "")] += value
        ordered = sorted(found.items(), key=lambda one: -one[1])
        return {key: value / self.interval_s for key, value in ordered if value > 0}

    def quantile_s(self, name: str, share: float, **labels: str) -> float:
        """The quantile of a histogram's growth, interpolated within its bucket as in Prometheus; NaN if nothing was
        counted.
        """
        buckets: dict[float, float] = defaultdict(float)
        for own, value in self.of(f"{name}_bucket"):
            if labels.items() <= own.items():
                buckets[float(own["le"])] += value
        return quantile(sorted(buckets.items()), share)


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float:
    """The quantile of cumulative `buckets` (upper bound, count), linear within a bucket; NaN if nothing was counted.

    Like Prometheus' `histogram_quantile`: above the last finite bound, it is that bound.
    """
    if not buckets or buckets[-1][1] <= 0:
        return math.nan
    rank, low, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
        low, below = bound if math.isfinite(bound) else low, count
    return low


def _agent(change: _Change) -> Overview:
    states = {own["model"]: own["state"] for own, value in change.after.of("upwell_model_state") if value}
    names = sorted({own["model"] for own, _ in change.after.of("upwell_requests_total")} | {*states})
    lines = []
    for name in names:
        rate = change.rate("upwell_requests_total", model=name)
        alone = change.rate("upwell_requests_total", model=name, route="edge")
        lines.append(
            ModelRow(
                name,
                states.get(name, "cloud"),
                rate,
                change.rate("upwell_failed_total", model=name),
                change.quantile_s("upwell_request_seconds", 0.5, model=name),
                change.quantile_s("upwell_request_seconds", 0.99, model=name),
                1 - alone / rate if rate else math.nan,
                change.rate("upwell_degraded_total", model=name),
            )
        )
    after = change.after
    facts = {
        "link rtt": max((value for _, value in after.of("upwell_link_rtt_seconds")), default=math.nan),
        "link bytes/s": max((value for _, value in after.of("upwell_link_bytes_per_second")), default=math.nan),
        "breakers open": after.total("upwell_breaker_open"),
        "uplink bytes/s": change.rate("upwell_uplink_bytes_total"),
        "spool waiting": after.total("upwell_spool_waiting"),
        "spool bytes": after.total("upwell_spool_bytes"),
    }
    late = change.rate("upwell_failed_total", error=_DEADLINE)
    return Overview(
        "agent", change.interval_s, lines, _in_time(lines, late), change.rates("upwell_requests_total", "reason"), facts
    )


def _service(change: _Change) -> Overview:
    ready = {(own["model"], own["version"]): value for own, value in change.after.of("upwell_cloud_model_ready")}
    lines = []
    for (model, version), is_ready in sorted(ready.items()):
        of = {"model": model, "version": version}
        rate = change.rate("upwell_cloud_requests_total", status="OK", **of)
        runs = change.rate("upwell_cloud_batch_rows_count", **of)
        lines.append(
            ModelRow(
                f"{model}/{version}",
                "ready" if is_ready else "not ready",
                rate,
                change.rate("upwell_cloud_requests_total", **of) - rate,
                change.quantile_s("upwell_cloud_request_seconds", 0.5, **of),
                change.quantile_s("upwell_cloud_request_seconds", 0.99, **of),
                queue_p99_s=change.quantile_s("upwell_cloud_queue_seconds", 0.99, **of),
                batch_rows=change.rate("upwell_cloud_batch_rows_sum", **of) / runs if runs else math.nan,
                waiting=change.after.total("upwell_cloud_waiting_requests", **of),
            )
        )
    after = change.after
    facts = {
        "workers": after.total("upwell_cloud_workers"),
        "cpu": change.rate("upwell_cloud_cpu_seconds_total"),
        "memory bytes": after.total("upwell_cloud_resident_memory_bytes"),
        "bytes in/s": change.rate("upwell_cloud_client_bytes_total", direction="in"),
        "bytes out/s": change.rate("upwell_cloud_client_bytes_total", direction="out"),
    }
    late = change.rate("upwell_cloud_requests_total", status="DEADLINE_EXCEEDED")
    statuses = change.rates("upwell_cloud_requests_total", "status")
    return Overview("service", change.interval_s, lines, _in_time(lines, late), statuses, facts)


def _in_time(lines: Sequence[ModelRow], late_rate: float) -> float:
    """The share of requests that did not fail by timeout; NaN if there were none."""
    every = sum(line.rate + line.failed_rate for line in lines)
    return 1 - late_rate / every if every else math.nan
