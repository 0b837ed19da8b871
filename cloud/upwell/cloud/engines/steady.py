"""A stable view of a weights file while it may be overwritten."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from upwell.shared.files import open_plain

MAX_COPIED_BYTES = 256 << 20
"""Maximum size of files to copy before reading (bytes), since a copy takes as much memory again."""


@contextmanager
def steady(path: Path) -> Iterator[Path]:
    """A path for readers that map the file at `path`: truncating a mapped file would end the process.

    Within the block it is a copy in memory; for a large file, and on systems other than Linux, it is `path` itself.
    Raises `OSError` if the file cannot be read.
    """
    if sys.platform != "linux" or path.stat().st_size > MAX_COPIED_BYTES:
        yield path
        return
    with open_plain(path) as file, os.fdopen(os.memfd_create("weights"), "wb") as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        yield Path(f"/proc/self/fd/{copy.fileno()}")
