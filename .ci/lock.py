"""Resolve the tested sets for every supported Python and platform: constraints.txt, and constraints-tflite.txt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# The tested set{}, for `pip install -c {}`. Written by `make lock`; do not edit.\n"
# Dependencies of CUDA builds of torch. Constraining them would bind users of another build.
LEFT_OUT = ("nvidia-", "cuda-", "triton==")
# tflite-runtime is built for numpy 1, so it cannot share an environment with the rest.
APART = "tflite"


def resolve(about: str, name: str, extras: list[str], group: str) -> bool:
    """Run the resolver and write one set; whether it succeeded."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.10",
               "--no-header", "--no-annotate", "--group", group, "pyproject.toml"]  # fmt: skip
    command += [word for extra in extras for word in ("--extra", extra)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  a fixed command
    if result.returncode != 0:
        print(result.stderr, file=sys.stderr)
        return False
    lines = [line for line in result.stdout.splitlines() if not line.startswith(LEFT_OUT)]
    (ROOT / name).write_text(HEADER.format(about, name) + "\n".join(lines) + "\n")
    print(f"{name}: {len(lines)} packages")
    return True


def main() -> int:
    """Write both sets; returns the exit code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [extra for extra in project["optional-dependencies"] if extra != APART]
    done = resolve("", "constraints.txt", extras, "dev")
    done &= resolve(" with tflite-runtime", "constraints-tflite.txt", ["edge", "quantize", APART], "test")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
