"""Tries what each installed runtime offers, in child processes, so that no vendor's library can end this one.

A row holds the findings about one accelerator in one runtime.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from upwell.edge.runtimes import device_lock
from upwell.shared.errors import ConfigError

Status = Literal["executed", "offered, not executed", "not usable", "not installed", "found, not probed"]
"""`executed` only if the runtime's own node assignment shows nodes there and the answers are right."""


@dataclass(frozen=True)
class DeviceCheck:
    """The result of one sample model: how many of its nodes the accelerator ran, and whether it computes correctly.

    `agrees` is None if it did not run; `reason` says why, or what was wrong.
    """

    model: str
    nodes: int = 0
    on_accelerator: int = 0
    agrees: bool | None = None
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One accelerator as one runtime package offers it here.

    `accelerator` and `options` are what `accelerator:` of agent.yaml takes (`CPU` and `XNNPACK` need none); `devices`
    are those that the runtime lists for it; `reason` says why it is not usable, how to install it, or what to watch
    out for.
    """

    runtime: str
    accelerator: str
    status: Status
    checks: Sequence[DeviceCheck] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    reason: str = ""


@dataclass(frozen=True)
class DeviceAttempt:
    """Something to try: its name, and the function that tries it."""

    name: str
    run: Callable[[], Row]


CPU = "CPU"


def judged(runtime: str, accelerator: str, checks: Sequence[DeviceCheck]) -> Row:
    """The row for these checks: executed if nodes of some model ran there and no answer was wrong.

    For the CPU, right answers suffice: nothing else could have given them.
    """
    wrong = [check for check in checks if check.agrees is False]
    executed = not wrong and any(check.agrees and (check.on_accelerator or accelerator == CPU) for check in checks)
    reason = "" if executed else next((check.reason for check in wrong or checks if check.reason), "")
    return Row(runtime, accelerator, "executed" if executed else "not usable", checks, reason=reason)


def with_options(row: Row, options: Mapping[str, str], devices: Sequence[str] = ()) -> Row:
    """The row of an accelerator with these options. One that ran on the processor says so, whatever its name."""
    on_processor = CPU in options.values() or (devices and all(device.startswith(CPU) for device in devices))
    minded = row.status == "executed" and on_processor
    reason = "in software on this processor: not a measure of an NPU's speed" if minded else row.reason
    return replace(row, options=options, devices=devices, reason=reason)


PACKAGES = ("onnxruntime", "ai_edge_litert", "tflite_runtime")
TIMEOUT_S = 120.0
"""Time limit for everything in one package: a provider that takes longer to load three nodes counts as hung."""

_PLUGIN_ENTRY, _DELEGATE_ENTRY = "CreateEpFactories", "tflite_plugin_create_delegate"


def installed() -> Sequence[str]:
    """The installed runtime packages of this Python."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is not None]


def rows_of(package: str, trying: Callable[[str], object], timeout_s: float = TIMEOUT_S) -> Iterator[Row]:
    """Every accelerator of an installed package. One that crashes the process is a row, and the rest are still
    tried.
    """
    done = 0
    while True:
        trying(package)
        rows, started, ending = _ask(package, done, "", timeout_s)
        yield from rows
        if not ending:
            return
        yield Row(package, started, "not usable", reason=f"trying it {ending}")
        if not started:
            return
        done += len(rows) + 1


def row_of_library(library: Path, packages: Sequence[str]) -> Row:
    """A library of the user's, tried while no other process has its device open."""
    package = next((name for name in packages if name != "onnxruntime"), "onnxruntime")
    try:
        lock = device_lock.try_out(str(library), {}, TIMEOUT_S)
    except device_lock.DeviceBusy as busy:
        return Row("", library.name, "found, not probed", reason=str(busy))
    try:
        rows, _, ending = _ask(package, 0, str(library), TIMEOUT_S)
    finally:
        lock.release()
    return rows[0] if rows else Row("", library.name, "not usable", reason=f"trying it {ending}")


def _ask(package: str, left_out: int, library: str, timeout_s: float) -> tuple[Sequence[Row], str, str]:
    """The child's complete rows, the attempt in progress when it ended, and the cause of its end; empty if all went
    well.
    """
    with tempfile.TemporaryDirectory(prefix="upwell-devices-") as folder:
        answer = Path(folder) / "rows.jsonl"
        command = [
            sys.executable,
            "-m",
            "upwell.tools.devices.runtime_probe",
            str(answer),
            package,
            str(left_out),
            library,
        ]
        try:
            # In the root folder, since Python looks for modules where it is started.
            done = subprocess.run(  # noqa: S603  no shell; the library is a path that the user named
                command, cwd=Path(sys.executable).anchor, capture_output=True, timeout=timeout_s, check=False
            )
            ending = "" if done.returncode == 0 else _ending(done.returncode)
        except subprocess.TimeoutExpired:
            ending = f"took longer than {timeout_s:g} s"
        # The last line is incomplete if the child ended while writing it.
        lines = answer.read_text(encoding="utf-8").split("\n")[:-1] if answer.exists() else []
    rows: list[Row] = []
    started = ""
    for said in map(json.loads, lines):
        started = said.get("trying", "")
        if not started:
            checks = tuple(DeviceCheck(**check) for check in said["checks"])
            rows.append(Row(**{**said, "checks": checks}))
    return rows, started, ending


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended its process with exit code {code}"
    try:
        return f"crashed its process with {signal.Signals(-code).name}"
    except ValueError:
        return f"crashed its process with signal {-code}"


def _attempts(package: str, library: Path | None) -> Sequence[DeviceAttempt]:
    """The child's attempts: the user's library, or else all that the package offers."""
    if library is not None:
        return [DeviceAttempt(library.name, partial(_try_library, library, package))]
    return list(_module("onnx").attempts() if package == "onnxruntime" else _module("tflite").attempts(package))


def _module(runtime: str) -> Any:
    """The module for a runtime; importing it needs the runtime's package."""
    return importlib.import_module(f"upwell.tools.devices.{runtime}_attempts")


def _try_library(library: Path, package: str) -> Row:
    """Try a library of the user's, which is a plugin of ONNX Runtime or a delegate of TFLite by its symbols."""
    try:
        opened = ctypes.CDLL(str(library))
    except OSError as error:
        return Row(package, library.name, "not usable", reason=f"it cannot be loaded: {error}")
    reason = f"it is neither a provider plugin ({_PLUGIN_ENTRY}) nor an external delegate ({_DELEGATE_ENTRY})"
    row = Row(package, library.name, "not usable", reason=reason)
    if hasattr(opened, _PLUGIN_ENTRY):
        row = _module("onnx").plugin(library)
    elif hasattr(opened, _DELEGATE_ENTRY):
        row = _module("tflite").delegate(package, library)
    return row


def _run(attempt: DeviceAttempt, package: str) -> Row:
    try:
        return attempt.run()
    except Exception as error:  # noqa: BLE001  vendors' code raises anything; one failure must not hide the others
        return Row(package, attempt.name, "not usable", reason=f"{type(error).__name__}: {error}")


def main() -> None:
    """Try what the arguments say."""
    target, package, left_out, library = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with target.open("w", encoding="utf-8") as file:

        def say(line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        try:
            attempts = _attempts(package, Path(library) if library else None)
        except (ImportError, ConfigError) as error:
            say({"trying": package})
            say(asdict(Row(package, "", "not usable", reason=str(error))))
            return
        for attempt in attempts[left_out:]:
            say({"trying": attempt.name})
            say(asdict(_run(attempt, package)))


if __name__ == "__main__":
    main()
    # Some libraries crash when the process unloads them; everything needed is already written.
    os._exit(0)
