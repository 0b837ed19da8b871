"""What `upwell policy simulate` shows at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from upwell.shared.routing.simulation.served import Report

_TITLES = MappingProxyType(
    {
        "policy": "policy",
        "compare": "other",
        "edge_only": "edge only",
        "cloud_only": "cloud only",
        "random_share": "random",
        "oracle": "oracle",
    }
)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value * 1e3:.0f} ms"


_ROWS: Mapping[str, Callable[[Report], str]] = MappingProxyType(
    {
        "requests": lambda report: str(report.requests),
        "answered": lambda report: str(report.answered),
        "in time": lambda report: _share(report.deadline_hit_rate),
        "right and in time": lambda report: _share(report.accuracy),
        "median": lambda report: _ms(report.p50_s),
        "95th percentile": lambda report: _ms(report.p95_s),
        "99th percentile": lambda report: _ms(report.p99_s),
        "sent up": lambda report: _share(report.cloud_share),
        "bytes up": lambda report: f"{report.bytes_up / 1e6:.1f} MB",
        "cost": lambda report: f"{report.cost:.4g}",
        "energy": lambda report: f"{report.energy_j:.4g} J",
    }
)


def show(reports: Mapping[str, Report], swept: Sequence[Mapping[str, Any]] | None, plot: Path | None) -> None:
    """Print the ways side by side, the reasons of the policies, and the sweep."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in reports:
        table.add_column(_TITLES[name], justify="right", no_wrap=True)
    for title, cell in _ROWS.items():
        table.add_row(title, *map(cell, reports.values()))
    console.print(table)
    for name in ("policy", "compare"):
        if name in reports:
            reasons = ", ".join(f"{reason} {count}" for reason, count in reports[name].reasons.items())
            console.print(Text(f"\nreasons ({_TITLES[name]}): {reasons}"))
    if swept is not None:
        console.print()
        console.print(_sweep(swept))
    if plot is not None:
        console.print(Text(f"\nwrote {plot}"), soft_wrap=True)


def _sweep(swept: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("fixed threshold", "right and in time", "in time", "sent up", box=None, pad_edge=False)
    for one in swept:
        shares = (_share(one[key]) for key in ("accuracy", "deadline_hit_rate", "cloud_share"))
        table.add_row(f"{one['threshold']:.4g}", *shares)
    return table
