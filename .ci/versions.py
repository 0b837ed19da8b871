"""Resolve the lowest or the latest versions that pyproject.toml admits, for the running Python.

Usage: versions.py lowest|latest EXTRAS FOLDER; writes FOLDER/constraints.txt. Torch stays at the tested version,
since few versions have CPU builds at hand, and what only the tests need is as new as the rest allows.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Torch, and what the resolver does not know: from 1.3 on this package refuses Python 3.11 and later.
ALWAYS = "torch==2.13.0\nbackports-strenum<1.3\n"
# Dependencies of CUDA builds of torch.
LEFT_OUT = ("nvidia-", "cuda-", "triton==")


def resolve(constraints: Path, *options: str) -> str:
    """The resolver's choice within `constraints`, a line for each package; the tested set does not count."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate",
               "--constraint", str(constraints), *options, "pyproject.toml"]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603  a fixed command


def main(which: str, extras: str, folder: Path) -> None:
    """Write the constraints."""
    found = folder / "constraints.txt"
    found.write_text(ALWAYS)
    wanted = [word for extra in extras.split(",") for word in ("--extra", extra)]
    if which == "lowest":
        found.write_text(ALWAYS + resolve(found, *wanted, "--resolution", "lowest-direct"))
    lines = resolve(found, *wanted, "--group", "dev").splitlines()
    found.write_text("".join(f"{line}\n" for line in lines if not line.startswith(LEFT_OUT)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]).resolve())
