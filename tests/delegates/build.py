"""Builds the software delegate, a TFLite external delegate in plain C that stands in for an accelerator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("software_delegate.c")
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]


class CannotBuild(Exception):
    """There is no C compiler, or this is not Linux."""


def build_software_delegate(folder: Path) -> Path:
    """Compile the software delegate into `folder` and give the library's path. Raises `CannotBuild`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        raise CannotBuild("the software delegate needs Linux and a C compiler")
    library = folder / "libsoftware_delegate.so"
    subprocess.run([compiler, *FLAGS, "-o", str(library), str(SOURCE)], check=True)
    return library
