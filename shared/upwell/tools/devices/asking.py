"""Asking child processes what each installed runtime offers, so that no vendor's library can end this one."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upwell.edge.runtimes import device_lock
from upwell.tools.devices.rows import DeviceCheck, Row

PACKAGES = ("onnxruntime", "ai_edge_litert", "tflite_runtime")
TIMEOUT_S = 120.0
"""For everything that one package offers: a provider that takes longer to load three nodes hangs."""


@dataclass(frozen=True)
class _Said:
    """What a child wrote before it ended: whole rows, and the attempt that it had begun (empty if none)."""

    rows: Sequence[Row]
    trying: str


def installed() -> Sequence[str]:
    """The runtime packages that this Python has."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is not None]


def rows_of(package: str, trying: Callable[[str], object], timeout_s: float = TIMEOUT_S) -> Iterator[Row]:
    """Every accelerator of an installed package. One that takes the process down is a row, and the rest are tried."""
    done = 0
    while True:
        trying(package)
        said, ending = _ask(package, done, "", timeout_s)
        yield from said.rows
        done += len(said.rows)
        if not ending:
            return
        yield Row(package, said.trying, "not usable", reason=f"trying it {ending}")
        if not said.trying:
            return
        done += 1


def row_of_library(library: Path, packages: Sequence[str], timeout_s: float = TIMEOUT_S) -> Row:
    """A library of the user's, tried while nobody has its device open."""
    package = next((name for name in packages if name != "onnxruntime"), "onnxruntime")
    try:
        lock = device_lock.try_out(str(library), {}, timeout_s)
    except device_lock.DeviceBusy as busy:
        return Row("", library.name, "found, not probed", reason=str(busy))
    try:
        said, ending = _ask(package, 0, str(library), timeout_s)
    finally:
        lock.release()
    return said.rows[0] if said.rows else Row("", library.name, "not usable", reason=f"trying it {ending}")


def _ask(package: str, left_out: int, library: str, timeout_s: float) -> tuple[_Said, str]:
    """What a child says, and how it ended where it did not end well."""
    with tempfile.TemporaryDirectory(prefix="upwell-devices-") as folder:
        answer = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "upwell.tools.devices.look", str(answer), package, str(left_out), library]
        try:
            # In the root folder, since Python looks for modules where it is started.
            done = subprocess.run(  # noqa: S603  no shell; the library is a path that the user named
                command, cwd=Path(sys.executable).anchor, capture_output=True, timeout=timeout_s, check=False
            )
            ending = "" if done.returncode == 0 else _ending(done.returncode)
        except subprocess.TimeoutExpired:
            ending = f"took longer than {timeout_s:g} s"
        # The last line is cut short where the child could not write it.
        lines = answer.read_text(encoding="utf-8").split("\n")[:-1] if answer.exists() else []
    return _read(lines), ending


def _read(lines: Sequence[str]) -> _Said:
    rows, trying = [], ""
    for line in lines:
        said = json.loads(line)
        if "trying" in said:
            trying = str(said["trying"])
        else:
            rows.append(_row(said))
            trying = ""
    return _Said(rows, trying)


def _row(said: dict[str, Any]) -> Row:
    return Row(**{**said, "checks": tuple(DeviceCheck(**check) for check in said["checks"])})


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended its process with exit code {code}"
    try:
        return f"crashed its process with {signal.Signals(-code).name}"
    except ValueError:
        return f"crashed its process with signal {-code}"
