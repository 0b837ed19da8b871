"""`upwell release wheelhouse`: collects what a device without a network needs to install Upwell.

The wheels are collected by pip, for the Python and processor of the devices, with digests and an SBOM.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email import message_from_bytes
from email.message import Message
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from upwell.shared.config.yaml import read_text
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.files import write_whole
from upwell.shared.formats.model_digest import sha256_of
from upwell.shared.units import count_of
from upwell.tools.terminal import AsJson, plain, progress, stdout_console

SCRIPT, UNIT, SBOM = "upwell-device", "upwell-agent.service", "sbom.cdx.json"
"""Files beside the wheels: the installer, the agent's unit, and an SBOM (CycloneDX)."""

MACHINES = {"x86_64": (1, 5, 12, 17), "aarch64": (17,), "armv7l": (17,)}
"""The minor versions of glibc by processor with legacy names (manylinux1, 2010, 2014) for pip."""

_OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
_PYTHON = b"#!/usr/bin/env python3\n"
_LONGEST_S = 3600.0
_ROUNDS = 6
_MOST_METADATA = 4 << 20


class CannotCollect(UpwellError):
    """Something has no wheel for the device, or could not be downloaded."""


@dataclass(frozen=True)
class UpwellAsked:
    """Which Upwell to install: a `wheel`, or without one that `version` from the index; and its extras."""

    version: str
    wheel: Path | None
    extras: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The requirement as pip takes it."""
        extras = f"[{','.join(self.extras)}]"
        return f"upwell{extras}=={self.version}" if self.wheel is None else f"{self.wheel.resolve()}{extras}"


@dataclass(frozen=True)
class DeviceTarget:
    """The target of the wheels: a Python version such as 3.11, a processor as in `uname -m`, and the minimum glibc
    2.x of the device.
    """

    python: str
    machine: str
    glibc: int

    @property
    def tag(self) -> str:
        """The target's name in the list of requirements."""
        return f"cp{self.python.replace('.', '')}-{self.machine}"

    def takes(self, requirement: Requirement, extras: Iterable[str] = ()) -> bool:
        """Whether the requirement's marker holds on the device, for a package requested with these extras."""
        environment = {
            "implementation_name": "cpython", "implementation_version": f"{self.python}.0", "os_name": "posix",
            "platform_machine": self.machine, "platform_python_implementation": "CPython", "platform_release": "",
            "platform_system": "Linux", "platform_version": "", "python_full_version": f"{self.python}.0",
            "python_version": self.python, "sys_platform": "linux",
        }  # fmt: skip
        marker = requirement.marker
        return marker is None or any(marker.evaluate({**environment, "extra": one}) for one in ("", *extras))

    def platforms(self) -> Iterator[str]:
        """The platform tags (PEP 600) that the device accepts, the newest first; pip itself does not expand them."""
        for minor in range(self.glibc, 4, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _OLD_NAMES and minor in MACHINES[self.machine]:
                yield f"{_OLD_NAMES[minor]}_{self.machine}"
        yield f"linux_{self.machine}"


@dataclass(frozen=True)
class Wheel:
    """A wheel in the folder, described by its own metadata."""

    path: Path
    name: str
    version: str
    licenses: tuple[str, ...]
    summary: str
    sha256: str
    needs: tuple[Requirement, ...]


def collect(folder: Path, asked: UpwellAsked, target: DeviceTarget, constraint: Path | None) -> list[Wheel]:
    """Put into `folder` the wheels of Upwell and all its dependencies on the target, pip's own wheel, a list of them
    with digests, the install script, the unit and the SBOM. Wheels of other targets stay.

    Raises `CannotCollect`; the folder then has no list for the target, so no device takes it for complete.
    """
    listed = folder / f"requirements-{target.tag}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        listed.unlink(missing_ok=True)
        fresh = folder / ".fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        try:
            found = _complete(fresh, asked, target, _constraints(constraint, target, fresh), folder)
            for wheel in found:
                wheel.path.replace(folder / wheel.path.name)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        lines = [f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in found if one.name != "pip"]
        write_whole(listed, "".join(lines).encode(), 0o644)
        here = files("upwell.tools.wheelhouse")
        write_whole(folder / SCRIPT, _PYTHON + here.joinpath("device_installer.py").read_bytes(), 0o755)
        write_whole(folder / UNIT, here.joinpath(UNIT).read_bytes(), 0o644)
        whole = [_wheel(path) for path in sorted(folder.glob("*.whl"))]
        document = sbom(whole, datetime.now(timezone.utc), uuid.uuid4())
        write_whole(folder / SBOM, json.dumps(document, indent=2).encode(), 0o644)
    except OSError as error:
        raise ConfigError.at(error.filename or folder, f"cannot be written: {error.strerror}") from None
    return found


def _complete(
    fresh: Path, asked: UpwellAsked, target: DeviceTarget, constraint: Path | None, known: Path
) -> list[Wheel]:
    """The wheels that the target needs, and no others.

    pip evaluates markers for the Python and the machine that it runs on. So what else the target needs is requested
    by name until nothing is missing, and what only this machine would need is left out.
    """
    besides: dict[str, str] = {}
    for _ in range(_ROUNDS):
        for path in fresh.glob("*.whl"):
            path.unlink()
        _download(fresh, [asked.requirement, "pip", *besides.values()], target, constraint, known)
        found = {one.name: one for one in map(_wheel, sorted(fresh.glob("*.whl")))}
        needed, missing = _needed(found, asked.extras, target)
        if not missing:
            return [one for name, one in found.items() if name in needed or name == "pip"]
        besides |= missing
    raise CannotCollect(f"the dependencies of {', '.join(besides)} cannot be resolved")


def _needed(found: Mapping[str, Wheel], extras: Sequence[str], target: DeviceTarget) -> tuple[set[str], dict[str, str]]:
    """The names of Upwell's dependencies on the target, and the requirements among them without a wheel."""
    needed: dict[str, set[str]] = {"upwell": set(extras)}
    missing: dict[str, str] = {}
    open_names = ["upwell"]
    while open_names:
        name = open_names.pop()
        for one in found[name].needs:
            if not target.takes(one, needed[name]):
                continue
            other = canonicalize_name(one.name)
            if other not in found:
                missing[other] = str(one).partition(";")[0].strip()
            elif other not in needed or not one.extras <= needed[other]:
                needed.setdefault(other, set()).update(one.extras)
                open_names.append(other)
    return set(needed), missing


def _constraints(path: Path | None, target: DeviceTarget, fresh: Path) -> Path | None:
    """The constraints that hold on the target, in their own file."""
    if path is None:
        return None
    kept = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "-")):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ConfigError.at(path, f"line {number} is not a constraint: {str(error).splitlines()[0]}") from None
        if target.takes(requirement):
            kept.append(text.partition(";")[0].strip() + "\n")
    made = fresh / "constraints.txt"
    write_whole(made, "".join(kept).encode(), 0o600)
    return made


def _download(
    into: Path, requirements: Sequence[str], target: DeviceTarget, constraint: Path | None, known: Path
) -> None:
    words = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(into),
        "--only-binary", ":all:", "--implementation", "cp", "--python-version", target.python, "--find-links",
        str(known), *(word for one in target.platforms() for word in ("--platform", one)),
        *(("--constraint", str(constraint)) if constraint is not None else ()), *requirements,
    ]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603  our own Python's pip, and no shell
            words, capture_output=True, text=True, check=False, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired:
        raise CannotCollect(f"pip did not end within {_LONGEST_S / 60:.0f} minutes") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()][-6:]
        raise CannotCollect(
            f"pip has no wheels for Python {target.python} on {target.machine} with glibc 2.{target.glibc}:\n"
            + "\n".join(said)
        )


def _wheel(path: Path) -> Wheel:
    """A wheel's metadata. Raises `CannotCollect` for an invalid file."""
    try:
        with zipfile.ZipFile(path) as archive:
            (entry,) = (
                one for one in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one.filename)
            )  # fmt: skip
            if entry.file_size > _MOST_METADATA:
                raise CannotCollect(f"{path.name}: its metadata is too large")
            metadata = message_from_bytes(archive.read(entry))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise CannotCollect(f"{path.name} is not a wheel: {error}") from None
    needs = tuple(Requirement(str(one)) for one in metadata.get_all("Requires-Dist", ()))
    summary, licenses = str(metadata["Summary"] or ""), tuple(_licenses(metadata))
    digest = sha256_of(path).hex()
    return Wheel(
        path, canonicalize_name(str(metadata["Name"])), str(metadata["Version"]), licenses, summary, digest, needs
    )


def _licenses(metadata: Message) -> Iterable[str]:
    """Its licence: the expression (PEP 639), or else the classifiers, or else the first line of free text."""
    if expression := metadata["License-Expression"]:
        return [str(expression)]
    all_classifiers = map(str, metadata.get_all("Classifier", ()))
    classifiers = [one.rpartition(" :: ")[2] for one in all_classifiers if one.startswith("License ::")]
    text = str(metadata["License"] or "").strip().splitlines()
    return [one for one in classifiers if one != "OSI Approved"] or [one[:200] for one in text[:1] if one != "UNKNOWN"]


def sbom(wheels: Sequence[Wheel], now: datetime, serial: uuid.UUID) -> Mapping[str, Any]:
    """The contents of the folder, as CycloneDX 1.5 in JSON: name, version, digest and licence of each wheel."""
    components = []
    for one in wheels:
        component: dict[str, Any] = {
            "type": "library", "bom-ref": one.path.name, "name": one.name, "version": one.version,
            "purl": f"pkg:pypi/{one.name}@{one.version}?file_name={one.path.name}",
            "hashes": [{"alg": "SHA-256", "content": one.sha256}],
        }  # fmt: skip
        if one.summary:
            component["description"] = one.summary
        if one.licenses:
            component["licenses"] = [{"license": {"name": name}} for name in one.licenses]
        components.append(component)
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {
            "timestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "bom-ref": "wheelhouse", "name": "upwell wheelhouse",
                          "version": version("upwell")},
        },
        "components": components,
    }  # fmt: skip


BOXES: Mapping[str, DeviceTarget] = {
    "debian-12": DeviceTarget("3.11", "x86_64", 36),
    "debian-13": DeviceTarget("3.13", "x86_64", 41),
    "debian-12-arm": DeviceTarget("3.11", "aarch64", 36),
    "raspberry-pi-os-12": DeviceTarget("3.11", "aarch64", 36),
    "raspberry-pi-os-13": DeviceTarget("3.13", "aarch64", 41),
    "jetpack-6": DeviceTarget("3.10", "aarch64", 35),
    "ubuntu-24.04": DeviceTarget("3.12", "x86_64", 39),
}
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
        raise ConfigError.at(None, f"expected names of extras, separated by commas, got {extras!r}", "--extras")
    for option, path in (("--upwell", upwell), ("--constraint", constraint)):
        if path is not None and not path.is_file():
            raise ConfigError.at(path, "no such file", option)
    asked = UpwellAsked(version("upwell"), upwell, tuple(extras.split(",")))
    with progress() as bar:
        bar.add_task(f"wheels for {target.tag}", total=None)
        found = collect(folder, asked, target, constraint)
    size_bytes = sum(one.stat().st_size for one in folder.glob("*.whl"))
    if as_json:
        wheels = [{"name": one.name, "version": one.version, "sha256": one.sha256} for one in found]
        typer.echo(json.dumps({"target": target.tag, "wheels": wheels, "size_bytes": size_bytes}))
        return
    stdout_console().print(
        plain(f"{count_of(len(found), 'wheel')} for {target.tag}, {size_bytes / 1e6:.0f} MB in {folder}; "
              f"on the device: sudo {folder.name}/{SCRIPT} install SETTINGS")
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
