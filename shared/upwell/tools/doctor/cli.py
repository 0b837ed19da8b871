"""`upwell doctor`: one report of all checks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from upwell.shared.errors import EXIT_FAILED
from upwell.tools.devices.cli import evidence, folded
from upwell.tools.devices.runtime_probe import installed, rows_of
from upwell.tools.doctor.doctor_checks import DoctorFinding, Level, configuration, machine, packages
from upwell.tools.terminal import AsJson, plain, stderr_console, table_console

_MARKS: Mapping[Level, str] = MappingProxyType({"ok": "  ", "warning": "? ", "problem": "! "})


def doctor(
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", help="An agent.yaml or cloud.yaml to check; may be repeated."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not try the accelerators, which takes seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine: packages, accelerators, clock and, for each file, ports, disk, certificates and the cloud.

    Changes nothing. Exit code 1 if there is a problem. The report holds no secrets, but names and paths.
    """
    findings = [*machine(), *packages(), *([] if quick else _accelerators())]
    for path in config or ():
        findings += configuration(path, time.time())
    problems = sum(one.level == "problem" for one in findings)
    if as_json:
        typer.echo(json.dumps({"problems": problems, "findings": [asdict(one) for one in findings]}))
    else:
        _show(findings, problems)
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _accelerators() -> list[DoctorFinding]:
    found = []
    with stderr_console().status("") as status:
        for package in installed():
            rows = list(rows_of(package, lambda name: status.update(f"trying {name}")))
            for alike in folded(rows):
                first = alike[0]
                level: Level = "warning" if first.status == "not usable" else "ok"
                found.append(
                    DoctorFinding(f"{first.runtime} {first.accelerator}", level, f"{first.status}: {evidence(first)}")
                )
    return found


def _show(findings: Sequence[DoctorFinding], problems: int) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for one in findings:
        grid.add_row(plain(_MARKS[one.level] + one.subject), plain(one.text))
    console = table_console()
    console.print(grid)
    console.print()
    warnings = sum(one.level == "warning" for one in findings)
    console.print(Text(f"{problems} problems (!), {warnings} warnings (?)"))
