"""The report as a person reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from upwell.edge.demo.cases import DIGITS, PAGES
from upwell.edge.demo.summary import OutageSummary, Summary

_KINDS: Mapping[str, str] = {DIGITS: "single digits", PAGES: "pages of 60"}
_HEADINGS = ("requests", "digits right", "p50", "p95", "sent up", "bytes up")


def runs_table(runs: Mapping[str, Summary]) -> RenderableType:
    """The three runs, each with its two kinds of requests, and what the figures are."""
    table = _table((*_HEADINGS, "reasons"))
    for name, run in runs.items():
        table.add_row(Text(name.replace("_", " "), style="bold"), *_cells(run), _counts(run.reasons))
        for kind, part in run.kinds.items():
            table.add_row(f"  {_KINDS[kind]}", *_cells(part), _counts(part.reasons), style="dim")
        table.add_section()
    note = (
        f"Latency: what the caller of Agent.infer waits, one request at a time, on {os.cpu_count()} cores. The cloud\n"
        "is a process of its own on loopback, as near as can be: a real link adds its round trip to what goes up."
    )
    return Group(Text("Handwritten digits that no model has seen", style="bold"), table, Text(note, style="dim"))


def outage_table(outage: OutageSummary) -> RenderableType:
    """What callers got before and after the cloud died, and the verdict in one sentence."""
    table = _table(("requests", "answered", "degraded", "digits right", "p95", "reasons"))
    for name, part in (("before", outage.before), ("after", outage.after)):
        table.add_row(
            Text(name, style="bold"),
            str(part.requests),
            str(part.answered),
            str(part.degraded),
            _percent(part.accuracy),
            _milliseconds(part.p95_s),
            _counts(part.reasons),
        )
    kept = outage.answered == outage.requests and not outage.late
    verdict = Text.assemble(
        (f"{outage.answered} of {outage.requests} requests answered", "bold green" if kept else "bold red"),
        f", {outage.late} later than the deadline of {outage.deadline_s * 1e3:.0f} ms; the slowest took "
        f"{outage.slowest_s * 1e3:.0f} ms.",
    )
    return Group(Text("The cloud is killed mid-run", style="bold"), table, verdict)


def show(console: Console, *parts: RenderableType) -> None:
    """Print the parts with a line between them."""
    for part in parts:
        console.print(part)
        console.print()


def _table(headings: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in headings:
        is_text = heading == "reasons"
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    return table


def _cells(run: Summary) -> tuple[str, ...]:
    return (
        str(run.requests),
        _percent(run.accuracy),
        _milliseconds(run.p50_s),
        _milliseconds(run.p95_s),
        f"{run.cloud_share * 100:.0f} %",
        _size(run.bytes_up),
    )


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _milliseconds(time_s: float | None) -> str:
    return "none" if time_s is None else f"{time_s * 1e3:.1f} ms"


def _size(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < 1000 else f"{size_bytes / 1000:.0f} kB"
