"""The report as a person reads it, in 80 columns."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from upwell.edge.demo.cases import DIGITS, PAGES
from upwell.edge.demo.summary import OutageSummary, Summary

_KINDS: Mapping[str, str] = {DIGITS: "single digits", PAGES: "pages of 60"}


def runs_table(runs: Mapping[str, Summary]) -> RenderableType:
    """The three runs, each with its two kinds of requests, the reasons, and what the latencies are."""
    named = {name.replace("_", " "): run for name, run in runs.items()}
    table = _table("requests", "digits right", "p50", "p95", "sent up", "bytes up")
    for name, run in named.items():
        table.add_row(Text(name, style="bold"), *_cells(run))
        for kind, part in run.kinds.items():
            table.add_row(f"  {_KINDS[kind]}", *_cells(part), style="dim")
        table.add_section()
    note = (
        f"Latency: what the caller of Agent.infer waits, one request at a time, on {os.cpu_count()} cores. The cloud "
        "is a process of its own on loopback, as near as can be: a real link adds its round trip to what goes up."
    )
    heading = Text("Handwritten digits that no model has seen", style="bold")
    return Group(heading, table, _reasons(named), "", Text(note, style="dim"))


def outage_table(outage: OutageSummary) -> RenderableType:
    """What callers got before and after the cloud died, and the outcome in one sentence."""
    parts = {"before": outage.before, "after": outage.after}
    table = _table("requests", "answered", "degraded", "digits right", "p50", "p95")
    for name, part in parts.items():
        counts = (str(part.requests), str(part.answered), str(part.degraded))
        times = (_milliseconds(part.p50_s), _milliseconds(part.p95_s))
        table.add_row(Text(name, style="bold"), *counts, _percent(part.accuracy), *times)
    all_well = outage.answered == outage.requests and not outage.late
    outcome = Text.assemble(
        (f"{outage.answered} of {outage.requests} requests answered", "bold green" if all_well else "bold red"),
        f", {outage.late} later than the deadline of {outage.deadline_s * 1e3:.0f} ms; the slowest took "
        f"{outage.slowest_s * 1e3:.0f} ms.",
    )
    return Group(Text("The cloud is killed mid-run", style="bold"), table, _reasons(parts), "", outcome)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _reasons(runs: Mapping[str, Summary]) -> Table:
    """Which reasons the answers gave, and how often."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, run in runs.items():
        table.add_row(f" {name}:", ", ".join(f"{count} {reason}" for reason, count in run.reasons.items()))
    return table


def _cells(run: Summary) -> tuple[str, ...]:
    times = (_milliseconds(run.p50_s), _milliseconds(run.p95_s))
    return (str(run.requests), _percent(run.accuracy), *times, f"{run.cloud_share * 100:.0f} %", _size(run.bytes_up))


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _milliseconds(time_s: float | None) -> str:
    return "none" if time_s is None else f"{time_s * 1e3:.1f} ms"


def _size(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < 1000 else f"{size_bytes / 1000:.0f} kB"
