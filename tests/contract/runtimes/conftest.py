"""Builds the software delegate once per test run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("software_delegate.c")
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]


@pytest.fixture(scope="session")
def software_delegate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the compiled software delegate."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the software delegate needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("delegate") / "libsoftware_delegate.so"
    subprocess.run([compiler, *FLAGS, "-o", str(library), str(SOURCE)], check=True)
    return library
