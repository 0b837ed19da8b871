"""Weights of an ONNX model that lie in files of their own, copied into memory as the model is opened.

ONNX Runtime on the CPU maps such files and serves from the mapping: whoever copied new weights over old ones changed
the answers of the model in force, or ended the whole service with a bus error while the file was shorter.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from upwell.cloud.engines.steady import MAX_COPIED_BYTES
from upwell.shared.confinement import open_plain
from upwell.shared.errors import ModelFailed
from upwell.shared.onnx_bytes import BadOnnxFile
from upwell.shared.onnx_files import external_places

_METHOD = "add_external_initializers_from_files_in_memory"
_MAX_FILE_BYTES = (1 << 31) - 1
"""A tensor in memory may have no more; a file that may hold a larger one is left to ONNX Runtime, which maps it."""


@contextmanager
def copied_weights(options: Any, path: Path) -> Iterator[None]:
    """In this block a session with these `options` copies the weights of the model at `path`.

    It checks their places against the sizes of their files. ONNX Runtime before 1.24 cannot, and maps them. Raises
    `ModelFailed` where a file cannot be read or lies outside the model's folder.
    """
    with ExitStack() as held:
        try:
            files = dict(_contents(path, held)) if hasattr(options, _METHOD) else {}
        except BadOnnxFile as error:
            raise ModelFailed(f"ONNX Runtime cannot load {path.name}: {error}") from None
        except OSError as error:
            raise ModelFailed(f"weights of {path.name} cannot be read: {error.strerror}") from error
        if files:
            getattr(options, _METHOD)(list(files), list(files.values()), [len(data) for data in files.values()])
        yield


def _contents(path: Path, held: ExitStack) -> Iterator[tuple[str, bytes | mmap.mmap]]:
    """Each location that the model names, as written there, with what lies there."""
    for location, weights in external_places(path).items():
        with open_plain(weights) as file:
            size = os.fstat(file.fileno()).st_size
            if 0 < size <= MAX_COPIED_BYTES:
                yield location, file.read(MAX_COPIED_BYTES)
            elif 0 < size <= _MAX_FILE_BYTES:
                yield location, held.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
