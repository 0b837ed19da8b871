"""Resolve the extras for each supported platform, without that hardware, and write the README's table.

The resolver picks wheels for a platform and Python version from their metadata; nothing is built or run. Exit code 1
if a row that should resolve does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
START, END = "<!-- platforms: written by make check-platforms -->", "<!-- end of platforms -->"


@dataclass(frozen=True)
class Platform:
    """A device or host that Upwell is installed on, and the extras that make sense there."""

    name: str
    python: str
    target: str
    extras: str
    note: str


PLATFORMS = (
    Platform("Raspberry Pi OS 12, 64 bit", "3.11", "aarch64-manylinux_2_36", "edge", ""),
    Platform(
        "Raspberry Pi OS 12, 64 bit",
        "3.11",
        "aarch64-manylinux_2_36",
        "tflite",
        "for vendor stacks such as Coral, with constraints-tflite.txt",
    ),
    Platform("Raspberry Pi OS 13, 64 bit", "3.13", "aarch64-manylinux_2_40", "edge", ""),
    Platform("NVIDIA JetPack 6", "3.10", "aarch64-manylinux_2_35", "", "with NVIDIA's own onnxruntime-gpu"),
    Platform("Ubuntu 24.04, x86-64", "3.12", "x86_64-manylinux_2_39", "edge", ""),
    Platform("Ubuntu 24.04, x86-64", "3.12", "x86_64-manylinux_2_39", "cloud", ""),
    Platform("macOS 14, Apple silicon", "3.12", "aarch64-apple-darwin", "edge", ""),
    Platform("macOS 14, Apple silicon", "3.12", "aarch64-apple-darwin", "cloud,demo", ""),
    Platform(
        "Windows 11, x64", "3.12", "x86_64-pc-windows-msvc", "edge", "ONNX Runtime only: LiteRT has no wheel there"
    ),
    Platform("Windows 11, x64", "3.12", "x86_64-pc-windows-msvc", "cloud", ""),
)


def resolve(platform: Platform) -> tuple[bool, list[str]]:
    """Whether the extras resolve from wheels alone, and the chosen packages (or the resolver's last output)."""
    extras = [word for extra in platform.extras.split(",") if extra for word in ("--extra", extra)]
    tested = "constraints-tflite.txt" if "tflite" in platform.extras else "constraints.txt"
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--only-binary", ":all:", "--no-header",
               "--no-annotate", "--python-version", platform.python, "--python-platform", platform.target,
               "--constraint", tested, *extras, "pyproject.toml"]  # fmt: skip
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"}
    result = subprocess.run(  # noqa: S603  a fixed command
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        return False, result.stderr.strip().splitlines()[-3:]
    return True, [line for line in result.stdout.splitlines() if "==" in line]


def row(platform: Platform, packages: list[str]) -> str:
    """One line of the table: which packages decide what runs there."""
    shown = [package.split(" ")[0] for package in packages if package.startswith(
        ("onnxruntime", "ai-edge-litert", "tflite-runtime", "grpcio==", "numpy"))]  # fmt: skip
    install = f"`upwell[{platform.extras}]`" if platform.extras else "`upwell`"
    return f"| {platform.name} | {platform.python} | {install} | {', '.join(shown)} | {platform.note} |"


def write_table(lines: list[str]) -> None:
    """Write the table between its marks in the README."""
    text = README.read_text()
    before, rest = text.split(START)
    after = rest.split(END)[1]
    head = "| platform | Python | install | what decides | note |\n|---|---|---|---|---|\n"
    README.write_text(f"{before}{START}\n{head}" + "\n".join(lines) + f"\n{END}{after}")


def main() -> int:
    """Resolve every row, write the table, and name what failed."""
    lines, failures = [], 0
    for platform in PLATFORMS:
        done, packages = resolve(platform)
        print(f"{'ok  ' if done else 'FAIL'} {platform.name}, Python {platform.python}, [{platform.extras}]")
        if not done:
            failures += 1
            print("     " + "\n     ".join(packages))
        else:
            lines.append(row(platform, packages))
    if not failures:
        write_table(lines)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
