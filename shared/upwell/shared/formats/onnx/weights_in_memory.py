"""External weights of an ONNX model, copied into memory when it is opened.

ONNX Runtime on the CPU maps such files and serves from the mapping, so copying new weights over old ones would change
the answers of the running model, or end the process with a bus error while the file is shorter.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.file import external_places

_METHOD = "add_external_initializers_from_files_in_memory"

_MAX_COPIED_BYTES = 256 << 20
"""Larger files are mapped while ONNX Runtime copies from them, since a copy of our own takes as much memory again."""

_MAX_FILE_BYTES = (1 << 31) - 1
"""Maximum size of a tensor in memory (bytes); a larger file is left to ONNX Runtime, which maps it."""


@contextmanager
def weights_in_memory(options: Any, path: Path) -> Iterator[None]:
    """Make a session with these `options` copy the weights of the model at `path` within the block.

    The offsets are checked against the file sizes. ONNX Runtime before 1.24 cannot copy, and maps. Raises
    `BadOnnxFile` for files that are missing or lie outside the model's folder, and `OSError` for one that cannot be
    read.
    """
    with ExitStack() as held:
        files: dict[str, bytes | mmap.mmap] = {}
        places = external_places(path)
        for location, weights in places.items() if hasattr(options, _METHOD) else ():
            with open_plain(weights) as file:
                size = os.fstat(file.fileno()).st_size
                if 0 < size <= _MAX_COPIED_BYTES:
                    files[location] = file.read(_MAX_COPIED_BYTES)
                elif 0 < size <= _MAX_FILE_BYTES:
                    files[location] = held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if files:
            getattr(options, _METHOD)(list(files), list(files.values()), [len(data) for data in files.values()])
        yield
