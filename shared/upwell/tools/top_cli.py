"""`upwell top`: what a running agent or service does, second by second, from two readings of its metrics page."""

from __future__ import annotations

import json
import math
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.client import BadStatusLine, HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from upwell.edge.config import AgentConfig, AgentSection
from upwell.edge.observe.explain_text import outcome
from upwell.edge.observe.flight_recorder import FOLDER_NAME, last, local_time, newest_lines
from upwell.shared.errors import ConfigError, Unavailable
from upwell.tools.server_yaml import load_server_yaml
from upwell.tools.terminal import AsJson, finite, percent, plain, stdout_console

MAX_BYTES = 16 << 20
TIMEOUT_S = 3.0

Labels = tuple[tuple[str, str], ...]
_DEADLINE = "DeadlineExceeded"
_NOT_GIVEN = math.nan
_RECENT, _SLOWEST = 500, 5
_REASONS = 6
_SHORTEST_S, _LONGEST_S = 0.2, 3600.0


@dataclass(frozen=True)
class Scrape:
    """All samples of a page by name and labels, read at `at_s` (monotonic)."""

    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    def of(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """The samples of that name, each with its labels."""
        for labels, value in self.samples.get(name, {}).items():
            yield dict(labels), value

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples with that name and these labels."""
        return sum(value for own, value in self.of(name) if labels.items() <= own.items())


def page_url(at: str) -> str:
    """`HOST:PORT`, or a complete URL -> the URL of the metrics page. Raises `ConfigError`."""
    url = at if "://" in at else f"http://{at}"
    try:
        parts = urlsplit(url)
        is_readable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_readable = False
    if not is_readable:
        raise ConfigError.at(None, f"expected HOST:PORT of a metrics page, or its URL; got {at!r}", "--at")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/metrics"


def scrape(url: str) -> Scrape:
    """Read the page. Raises `Unavailable` if nobody answers there, or not with metrics of Upwell."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 (http or https, see `page_url`)
            text = answer.read(MAX_BYTES + 1)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, BadStatusLine):  # whose text is what a gRPC port sends: bytes of HTTP/2
            reason = "the port does not speak HTTP; it may be the one of `listen`"
        raise Unavailable(f"no metrics at {url}: {reason}; is `metrics` set in agent.yaml or cloud.yaml?") from None
    if len(text) > MAX_BYTES:
        raise Unavailable(f"the page at {url} has more than {MAX_BYTES} bytes")
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text.decode()):
            for one in family.samples:
                samples.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = float(one.value)
    except (UnicodeDecodeError, ValueError):
        raise Unavailable(f"the page at {url} has no readable metrics") from None
    if not any(name.startswith("upwell_") for name in samples):
        raise Unavailable(f"the page at {url} has no metrics of Upwell")
    return Scrape(time.monotonic(), samples)


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


def top(
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="HOST:PORT", help="The address of the metrics (`metrics` in its YAML file)."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="agent.yaml or cloud.yaml: has the address; an agent's slowest answers."),
    ] = None,
    every: Annotated[float, typer.Option("--every", help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a running agent or service: requests, where they went and why, latency, link, queues.

    Ctrl-C ends it. It only reads the metrics page and costs requests nothing.
    """
    if not _SHORTEST_S <= every <= _LONGEST_S:
        raise ConfigError.at(None, f"expected from {_SHORTEST_S} to {_LONGEST_S:g} seconds, got {every:g}", "--every")
    url, folder = _places(at, config)
    console = stdout_console()
    before = scrape(url)
    if as_json or once or not sys.stdout.isatty():
        time.sleep(every)
        seen = overview(before, scrape(url))
        slow = _slowest(folder)
        if as_json:
            typer.echo(json.dumps(_document(seen, slow)))
        else:
            console.print(_view(seen, slow, url))
        return
    try:
        _watch(url, folder, before, every, console)
    except KeyboardInterrupt:
        return


def _watch(url: str, folder: Path | None, before: Scrape, every_s: float, console: Console) -> None:
    with Live(Text(f"reading {url} …"), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every_s)
            try:
                after = scrape(url)
            except Unavailable as error:
                live.update(plain(error), refresh=True)  # it may come back
                continue
            live.update(_view(overview(before, after), _slowest(folder), url), refresh=True)
            before = after


def _places(at: str | None, config: Path | None) -> tuple[str, Path | None]:
    """The URL of the metrics, and the flight recorder's folder if it is known. Raises `ConfigError`."""
    if config is None:
        if at is None:
            text = "expected --at HOST:PORT of a metrics page, or -c agent.yaml or cloud.yaml"
            raise ConfigError.at(None, text, "top")
        return page_url(at), None
    server = load_server_yaml(config)
    key, section = ("agent", server.agent) if isinstance(server, AgentConfig) else ("serve", server.serve)
    if at is None and section.metrics is None:
        raise ConfigError.at(config, "not set; expected an address such as 127.0.0.1:9101", f"{key}.metrics")
    folder = section.state_dir / FOLDER_NAME if isinstance(section, AgentSection) and section.state_dir else None
    return page_url(at or section.metrics or ""), folder


def _slowest(folder: Path | None) -> list[dict[str, Any]]:
    """The slowest of the last answers, the slowest first; none if their folder is unknown."""
    if folder is None:
        return []
    try:
        recent = last(newest_lines(folder), _RECENT)
    except OSError:
        return []
    return sorted(recent, key=lambda one: -(one.get("took_s") or 0.0))[:_SLOWEST]


def _document(seen: Overview, slow: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **asdict(seen),
        "models": [{key: finite(value) for key, value in asdict(line).items()} for line in seen.models],
        "in_time": finite(seen.in_time),
        "facts": {name: finite(value) for name, value in seen.facts.items()},
        "slowest": [{"id": one.get("id"), "model": one.get("model"), "took_s": one.get("took_s")} for one in slow],
    }


def _view(seen: Overview, slow: Sequence[dict[str, Any]], url: str) -> Group:
    every = sum(line.rate + line.failed_rate for line in seen.models)
    head = f"{seen.kind} at {url}   {every:.1f} requests/s   in time {_share(seen.in_time)}"
    parts: list[Any] = [Text(head, style="bold"), Text(), _models(seen)]
    if seen.reasons:
        told = list(seen.reasons.items())[:_REASONS]
        parts += [Text(), plain("   ".join(f"{name} {rate:.1f}/s" for name, rate in told))]
    facts = [f"{name} {_fact(name, value)}" for name, value in seen.facts.items() if math.isfinite(value)]
    parts += [Text(), Text("   ".join(facts))]
    if slow:
        parts += [Text(), _slow_table(slow)]
    return Group(*parts)


def _models(seen: Overview) -> Table:
    is_agent = seen.kind == "agent"
    own = ("sent up", "degraded/s") if is_agent else ("queue p99", "rows/run", "waiting")
    numbers = [Column(name, justify="right") for name in ("req/s", "failed/s", "p50", "p99", *own)]
    table = Table("model", "state", *numbers, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for line in seen.models:
        cells = [_number(line.rate), _number(line.failed_rate), _ms(line.p50_s), _ms(line.p99_s)]
        if is_agent:
            cells += [_share(line.up_share), _number(line.degraded_rate)]
        else:
            cells += [_ms(line.queue_p99_s), _number(line.batch_rows), _number(line.waiting)]
        table.add_row(plain(line.model), plain(line.state), *cells)
    return table


def _slow_table(slow: Sequence[dict[str, Any]]) -> Table:
    headings = (f"slowest of the last {_RECENT}", "id", "model", "route", "reason", Column("took", justify="right"))
    table = Table(*headings, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for one in slow:
        cells = (local_time(one["time"]), one.get("id", ""), one.get("model", ""), *outcome(one))
        table.add_row(*map(plain, cells), _ms(one.get("took_s") or math.nan))
    return table


def _fact(name: str, value: float) -> str:
    if name == "link rtt":
        return _ms(value)
    if "bytes" in name:
        return _bytes(value)
    return f"{value:.0%}" if name == "cpu" else _number(value)


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _share(value: float) -> str:
    return percent(value) if math.isfinite(value) else "-"


def _ms(value_s: float) -> str:
    return f"{1e3 * value_s:.1f} ms" if math.isfinite(value_s) else "-"


def _number(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.1f}" if value % 1 else f"{value:.0f}"
