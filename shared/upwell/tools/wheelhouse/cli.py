"""`upwell release wheelhouse`: collects what a device without a network needs to install Upwell."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from upwell.shared.errors import ConfigError
from upwell.tools.terminal import AsJson, plain, progress, stdout_console
from upwell.tools.wheelhouse.collect import MACHINES, SCRIPT, DeviceTarget, UpwellAsked, collect

BOXES: Mapping[str, DeviceTarget] = MappingProxyType(
    {
        "debian-12": DeviceTarget("3.11", "x86_64", 36),
        "debian-13": DeviceTarget("3.13", "x86_64", 41),
        "debian-12-arm": DeviceTarget("3.11", "aarch64", 36),
        "raspberry-pi-os-12": DeviceTarget("3.11", "aarch64", 36),
        "raspberry-pi-os-13": DeviceTarget("3.13", "aarch64", 41),
        "jetpack-6": DeviceTarget("3.10", "aarch64", 35),
        "ubuntu-24.04": DeviceTarget("3.12", "x86_64", 39),
    }
)
"""Names for targets."""


def wheelhouse(
    folder: Annotated[Path, typer.Argument(help="The folder for the wheels; it may already have some.")],
    box: Annotated[
        str | None, typer.Option("--for", help=f"The device's system: {', '.join(BOXES)}.  [default: this machine]")
    ] = None,
    python: Annotated[str | None, typer.Option(help="Another Python than that system's, such as 3.11.")] = None,
    machine: Annotated[str | None, typer.Option(help=f"Another processor: {', '.join(MACHINES)}.")] = None,
    extras: Annotated[str, typer.Option(help="Extras of Upwell, separated by commas.")] = "edge,bundle,release",
    upwell: Annotated[
        Path | None, typer.Option(help="A wheel of Upwell. Default: this version, from the index.")
    ] = None,
    constraint: Annotated[
        Path | None, typer.Option(help="A file of constraints, such as the tested set.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Collect the wheels of Upwell for devices, an SBOM, and the script that installs them without a network."""
    target = _target(box, python, machine)
    if not re.fullmatch(r"[a-z0-9-]+(,[a-z0-9-]+)*", extras):
        raise ConfigError.at(None, f"expected names of extras with commas between, got {extras!r}", "--extras")
    for option, path in (("--upwell", upwell), ("--constraint", constraint)):
        if path is not None and not path.is_file():
            raise ConfigError.at(path, "no such file", option)
    from importlib.metadata import version

    asked = UpwellAsked(version("upwell"), upwell, tuple(extras.split(",")))
    with progress() as bar:
        bar.add_task(f"wheels for {target.tag}", total=None)
        found = collect(folder, asked, target, constraint)
    size_bytes = sum(one.stat().st_size for one in folder.glob("*.whl"))
    if as_json:
        import json

        wheels = [{"name": one.name, "version": one.version, "sha256": one.sha256} for one in found]
        typer.echo(json.dumps({"target": target.tag, "wheels": wheels, "size_bytes": size_bytes}))
        return
    stdout_console().print(
        plain(f"{len(found)} wheels for {target.tag}, {size_bytes / 1e6:.0f} MB in {folder}; on the device: "
              f"sudo {folder.name}/{SCRIPT} install SETTINGS")
    )  # fmt: skip


def _target(box: str | None, python: str | None, machine: str | None) -> DeviceTarget:
    if box is not None and box not in BOXES:
        raise ConfigError.at(None, f"expected one of {', '.join(BOXES)}, got {box!r}", "--for")
    glibc = re.fullmatch(r"2\.(\d+)", platform.libc_ver()[1])
    here = DeviceTarget(
        f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine(), int(glibc[1]) if glibc else 28
    )
    base = here if box is None else BOXES[box]
    if python is not None and not re.fullmatch(r"3\.1[0-9]", python):
        raise ConfigError.at(None, f"expected a version from 3.10 on, such as 3.11, got {python!r}", "--python")
    chosen = machine or base.machine
    if chosen not in MACHINES:
        raise ConfigError.at(None, f"expected one of {', '.join(MACHINES)}, got {chosen!r}", "--machine")
    return DeviceTarget(python or base.python, chosen, base.glibc)
