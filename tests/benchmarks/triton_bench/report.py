"""From samples to the table, and what is missed of what is asked of us."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.benchmarks.triton_bench.h2load import Sample

TRITON = "Triton"
"""The server that all others are compared to."""

START, END = "<!-- bench-triton -->", "<!-- /bench-triton -->"


@dataclass(frozen=True)
class Cell:
    """What one sample is of."""

    work: str
    load: str
    server: str


Samples: TypeAlias = Mapping[Cell, Sequence[Sample]]
"""One for each round; the same number for every cell."""


@dataclass(frozen=True)
class Spread:
    """A median, and the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One server under one load. The ratios to Triton are of each round, then the median of them."""

    cell: Cell
    per_s: Spread
    p50_ms: float
    p99_ms: Spread
    rate_ratio: Spread
    p99_ratio: Spread


@dataclass(frozen=True)
class Target:
    """What is asked of the best of `servers` under one load: ratios to Triton of the same round."""

    work: str
    load: str
    servers: Sequence[str]
    least_rate: float
    most_p99: float = float("inf")


def rows(samples: Samples) -> list[Row]:
    """One for each cell, beside Triton under the same load."""
    made = []
    for cell, own in samples.items():
        beside = samples[Cell(cell.work, cell.load, TRITON)]
        pairs = list(zip(own, beside, strict=True))
        made.append(
            Row(
                cell,
                per_s=Spread.of([one.per_s for one in own]),
                p50_ms=1e3 * statistics.median(one.p50_s for one in own),
                p99_ms=Spread.of([1e3 * one.p99_s for one in own]),
                rate_ratio=Spread.of([one.per_s / other.per_s for one, other in pairs]),
                p99_ratio=Spread.of([one.p99_s / other.p99_s for one, other in pairs]),
            )
        )
    return made


def misses(rows: Sequence[Row], targets: Sequence[Target]) -> list[str]:
    """Each target that none of its servers meets, with what they have."""
    found = []
    for target in targets:
        own = [
            row
            for row in rows
            if (row.cell.work, row.cell.load) == (target.work, target.load) and row.cell.server in target.servers
        ]
        if any(row.rate_ratio.median >= target.least_rate and row.p99_ratio.median <= target.most_p99 for row in own):
            continue
        asked = f"rate at least {target.least_rate}" + (
            f" and p99 at most {target.most_p99}" if target.most_p99 < float("inf") else ""
        )
        have = "; ".join(f"{row.cell.server} {row.rate_ratio.median:.2f} and {row.p99_ratio.median:.2f}" for row in own)
        found.append(f"{target.work}, {target.load}: {asked} of Triton's; {have or 'not measured'}")
    return found


def table(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """The rows as Markdown, a table for each work of `titles`."""
    parts = []
    for work, title in titles.items():
        lines = [
            f"{title}:\n",
            "| load | server | answers/s (least to greatest) | of Triton's rate | p50 ms | p99 ms | of Triton's p99 |",
            "|---|---|---|---|---|---|---|",
        ]
        last = ""
        for row in rows:
            if row.cell.work != work:
                continue
            load, last = ("" if row.cell.load == last else row.cell.load), row.cell.load
            lines.append(f"| {load} | {_line(row)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}–{spread.high:.2f})"


def _line(row: Row) -> str:
    is_triton = row.cell.server == TRITON
    ratio, p99_ratio = ("", "") if is_triton else (_ratio(row.rate_ratio), _ratio(row.p99_ratio))
    per_s = f"{_rounded(row.per_s.median)} ({_rounded(row.per_s.low)}–{_rounded(row.per_s.high)})"
    times = f"{_rounded(row.p50_ms)} | {_rounded(row.p99_ms.median)}"
    return f"{row.cell.server} | {per_s} | {ratio} | {times} | {p99_ratio}"


def _rounded(value: float) -> str:
    """Three digits or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def machine() -> str:
    """Processors and system, in words."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores, {model}, {platform.system()} {platform.release()}"


def around_table(path: Path) -> tuple[str, str]:
    """What stands before and after the table in the page at `path`. Raises `ValueError` where it has no marks."""
    before, start, rest = path.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{path}: expected the marks {START} and {END}")
    return before, after


def write(path: Path, text: str) -> None:
    """Put `text` between the marks of the page at `path`. Raises `ValueError` where it has none."""
    before, after = around_table(path)
    path.write_text(f"{before}{START}\n\n{text}\n{END}{after}", encoding="utf-8")
