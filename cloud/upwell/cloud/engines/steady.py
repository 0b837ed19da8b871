"""Weights as they are at one moment, whatever is copied over their file meanwhile."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from upwell.shared.files import open_plain

MAX_COPIED_BYTES = 256 << 20
"""Larger files are not copied before they are read, which would take as much memory again."""


@contextmanager
def steady(path: Path) -> Iterator[Path]:
    """A path of the file at `path` for what maps files: where a mapped one is made shorter, the process ends.

    In this block it leads to a copy in memory; elsewhere than on Linux, and of a large file, it is `path` itself.
    Raises `OSError` where the file cannot be read.
    """
    if sys.platform != "linux" or path.stat().st_size > MAX_COPIED_BYTES:
        yield path
        return
    with open_plain(path) as file, os.fdopen(os.memfd_create("weights"), "wb") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        yield Path(f"/proc/self/fd/{copy.fileno()}")
