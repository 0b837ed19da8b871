"""`upwell top`: what a running agent or service does, second by second."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from upwell.edge.config import AgentConfig
from upwell.edge.observe.flight_recorder.log_segments import newest_lines
from upwell.edge.observe.flight_recorder.recorder import FOLDER_NAME, last, local_time
from upwell.edge.observe.flight_recorder.trace_text import outcome
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, Unavailable
from upwell.tools.terminal import AsJson, finite, percent, plain, stdout_console
from upwell.tools.top.metrics_scrape import Scrape, page_url, scrape
from upwell.tools.top.overview import ModelRow, Overview, overview

_RECENT, _SLOWEST = 500, 5
_REASONS = 6


def top(
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="HOST:PORT", help="The address of the metrics (`metrics` in its YAML file)."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The agent.yaml, for the metrics' address and the slowest answers."),
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a running agent or service: requests, where they went and why, latency, link, queues.

    Ctrl-C ends it. It only reads the metrics page and costs requests nothing.
    """
    url, folder = _places(at, config)
    console = stdout_console()
    before = scrape(url)
    if as_json or once or not console.is_terminal:
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
            raise ConfigError.at(None, "expected --at HOST:PORT of a metrics page, or -c agent.yaml", "top")
        return page_url(at), None
    section = load_yaml(config, AgentConfig).agent
    if at is None and section.metrics is None:
        raise ConfigError.at(config, "not set; expected an address such as 127.0.0.1:9101", "agent.metrics")
    folder = None if section.state_dir is None else section.state_dir / FOLDER_NAME
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
        cells += _agent_cells(line) if is_agent else _service_cells(line)
        table.add_row(plain(line.model), plain(line.state), *cells)
    return table


def _agent_cells(line: ModelRow) -> list[str]:
    return [_share(line.up_share), _number(line.degraded_rate)]


def _service_cells(line: ModelRow) -> list[str]:
    return [_ms(line.queue_p99_s), _number(line.batch_rows), _number(line.waiting)]


def _slow_table(slow: Sequence[dict[str, Any]]) -> Table:
    headings = ("slowest of the last", "id", "model", "route", "reason", Column("took", justify="right"))
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
