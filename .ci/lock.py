"""Resolve the tested set for every supported Python and platform and write constraints.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# The tested set, for `pip install -c constraints.txt`. Written by `make lock`; do not edit.\n"
# What CUDA builds of torch bring along. Constraining them would bind people who choose another build.
LEFT_OUT = ("nvidia-", "cuda-", "triton==")


def main() -> int:
    """Run the resolver and write the file; returns the exit code."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.10",
               "--no-header", "--no-annotate", "--all-extras", "--group", "dev", "pyproject.toml"]  # fmt: skip
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  a fixed command
    if result.returncode != 0:
        print(result.stderr, file=sys.stderr)
        return 1
    lines = [line for line in result.stdout.splitlines() if not line.startswith(LEFT_OUT)]
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")
    print(f"constraints.txt: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
