"""`upwell devices`: what each runtime really offers here, and what could be installed for the rest."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.errors import ConfigError
from upwell.tools.devices.runtime_probe import DeviceCheck, Row, installed, row_of_library, rows_of
from upwell.tools.devices.system_findings import CpuInfo, SystemFindings, device_files, libraries, processor
from upwell.tools.terminal import AsJson, stderr_console, stdout_console

_LINUX, _WINDOWS, _MACOS = "linux", "win32", "darwin"
_X86, _ARM = ("x86_64", "amd64"), ("aarch64", "arm64")


@dataclass(frozen=True)
class Recipe:
    """An accelerator, the runtime, systems and machines that it needs, and how to install it."""

    accelerator: str
    runtime: str
    how: str
    systems: Sequence[str]
    machines: Sequence[str] = (*_X86, *_ARM)


RECIPES = (
    Recipe("qnn", "onnxruntime", "pip install 'upwell[qnn]' (Qualcomm Hexagon; on x86-64 without a device)",
           (_LINUX, _WINDOWS)),
    Recipe("openvino", "onnxruntime", "pip install 'upwell[openvino]' in an environment of its own: it replaces "
           "onnxruntime (Intel CPU, GPU, NPU)", (_LINUX, _WINDOWS), _X86),
    Recipe("litert_npu", "ai-edge-litert", "pip install 'ai-edge-litert>=2.3' openvino (Intel; others need the "
           "vendor's compiler and dispatch libraries)", (_LINUX, _WINDOWS)),
    Recipe("coreml", "onnxruntime", "pip install 'upwell[onnx]': the wheels for macOS have it", (_MACOS,)),
    Recipe("cuda", "onnxruntime", "pip install onnxruntime-gpu in place of onnxruntime; on a Jetson NVIDIA's own wheel",
           (_LINUX, _WINDOWS)),
    Recipe("tensorrt", "onnxruntime", "onnxruntime-gpu as for cuda, and TensorRT's libraries", (_LINUX, _WINDOWS)),
    Recipe("dml", "onnxruntime", "pip install onnxruntime-directml in place of onnxruntime", (_WINDOWS,)),
    Recipe("vitisai", "onnxruntime", "AMD's Ryzen AI software includes its own onnxruntime",
           (_WINDOWS, _LINUX), _X86),
    Recipe("cann", "onnxruntime", "pip install onnxruntime-cann in place of onnxruntime, and Huawei's CANN toolkit",
           (_LINUX,)),
    Recipe("rknpu", "onnxruntime", "an onnxruntime built from source with Rockchip's DDK (RK1808 only)",
           (_LINUX,), _ARM),
    Recipe("edge_tpu", "tflite", "Coral's libedgetpu.so.1, as `library`", (_LINUX,)),
    Recipe("vx", "tflite", "libvx_delegate.so of the board's system, as `library`", (_LINUX,), _ARM),
    Recipe("ethosu", "tflite", "libethosu_delegate.so of the board's system, as `library`", (_LINUX,), _ARM),
    Recipe("armnn", "tflite", "libarmnnDelegate.so of Arm NN, as `library` (Mali, Ethos-N)", (_LINUX,), _ARM),
)  # fmt: skip


def missing(rows: Sequence[Row], libraries: Sequence[str], machine: str, system: str = sys.platform) -> Sequence[Row]:
    """The recipes for this system and machine that have neither a row nor an installed library."""
    offered = {row.accelerator for row in rows}
    return [
        Row(recipe.runtime, recipe.accelerator, "not installed", reason=recipe.how)
        for recipe in RECIPES
        if recipe.accelerator not in offered
        and system in recipe.systems
        and machine.lower() in recipe.machines
        and not any(library in recipe.how for library in libraries)
    ]


def missing_packages(installed: Sequence[str]) -> Sequence[Row]:
    """The runtimes that are not installed, and the extras that bring them."""
    extras = {"onnxruntime": "onnx", "ai_edge_litert": "litert", "tflite_runtime": "tflite"}
    return [
        Row(package.replace("_", "-"), "", "not installed", reason=f"pip install 'upwell[{extra}]'")
        for package, extra in extras.items()
        if package not in installed
    ]


def devices(
    library: Annotated[
        list[Path] | None,
        typer.Option("--library", metavar="LIB", help="Also try this provider plugin or delegate; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the accelerators that the installed runtimes really offer here, with evidence, and how to get the others.

    Each is tried on two small models in its own process. The status is `executed` only if the runtime's own node
    assignment shows nodes there and the answers are right. Vendors' libraries are not opened unless named.
    """
    wanted = [_existing(path) for path in library or ()]
    packages = installed()
    if wanted and not packages:
        raise ConfigError.at(wanted[0], "no runtime is installed to try it: pip install 'upwell[edge]'")
    machine, found, files = processor(), libraries(), device_files()
    rows = _tried(packages, wanted)
    rows += missing_packages(packages)
    rows += missing(rows, [Path(one.path).name for one in found], machine.machine)
    if not as_json:
        _show(machine, rows, found, files)
        return
    document = {
        "processor": asdict(machine),
        "accelerators": [asdict(row) for row in rows],
        "libraries": [asdict(one) | {"status": "found, not probed"} for one in found],
        "device_files": [asdict(one) for one in files],
    }
    typer.echo(json.dumps(document))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError.at(path, "no such file; expected a library")
    return path.resolve()


def _tried(packages: Sequence[str], libraries: Sequence[Path]) -> list[Row]:
    with stderr_console().status("") as status:  # shows nothing outside a terminal

        def trying(name: str) -> None:
            status.update(f"trying {name}")

        rows = [row for package in packages for row in rows_of(package, trying)]
        for path in libraries:
            trying(path.name)
            rows.append(row_of_library(path, packages))
    return rows


def _show(
    machine: CpuInfo, rows: Sequence[Row], found: Sequence[SystemFindings], files: Sequence[SystemFindings]
) -> None:
    console = stdout_console()
    features = ", ".join(machine.features) or "no features known"
    console.print(Text(f"{machine.model or machine.machine}: {machine.cores} cores usable, {features}"))
    console.print()
    console.print(_table([row for row in rows if row.status != "not installed"]))
    _list(console, "Found but not opened; try one with --library", [(one.path, one.means) for one in found])
    _list(console, "Device files that hint at an accelerator", [(one.path, one.means) for one in files])
    absent = [(row.accelerator or row.runtime, row.reason) for row in rows if row.status == "not installed"]
    _list(console, "Not installed", absent)


def _table(rows: Sequence[Row]) -> Table:
    columns = "accelerator", "status", Column("evidence", overflow="fold")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    runtime = ""
    for alike in folded(rows):
        first = alike[0]
        if first.runtime != runtime:
            runtime = first.runtime
            table.add_row(Text(runtime, style="bold"))
        said = "; ".join(part for part in (_options(alike), evidence(first)) if part)
        table.add_row(*map(Text, (f"  {first.accelerator}", first.status, said)))
    return table


def folded(rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
    """The rows, with those merged that differ only in their options."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.runtime, row.accelerator, row.status, evidence(row), *row.options), []).append(row)
    return list(alike.values())


def _options(alike: Sequence[Row]) -> str:
    """For example `device_type=NPU, GPU`; `or` between rows that differ in several options."""
    values = {key: list(dict.fromkeys(row.options[key] for row in alike)) for key in alike[0].options}
    if sum(len(one) > 1 for one in values.values()) <= 1:
        return " ".join(f"{key}={', '.join(one)}" for key, one in values.items())
    return " or ".join(" ".join(f"{key}={value}" for key, value in row.options.items()) for row in alike)


def _list(console: Console, title: str, lines: Sequence[tuple[str, str]]) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(title, style="bold"))
    grid = Table.grid(padding=(0, 2))
    for left, right in lines:
        grid.add_row(Text(f"  {left}"), Text(right))
    console.print(grid)


def evidence(row: Row) -> str:
    """The evidence of the row: nodes of each model there, and the answers; otherwise the reason."""
    parts = []
    if row.status == "executed":
        right = [_counted(check) for check in row.checks if check.agrees]
        parts = [
            f"{', '.join(right)}: answers right",
            *(f"{one.model}: refused" for one in row.checks if not one.agrees),
        ]
    parts += [row.reason] if row.reason else []
    if row.devices:
        parts.append(f"devices: {', '.join(row.devices)}")
    return "; ".join(parts)


def _counted(check: DeviceCheck) -> str:
    return f"{check.model} {check.on_accelerator} of {check.nodes} nodes" if check.nodes else check.model
