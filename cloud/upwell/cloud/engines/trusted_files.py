"""Reading model files, which may be overwritten meanwhile, and some of which can run code when they are loaded.

A jax.export artifact may call any function registered in the serving process, so anyone who can write to the repository
could run code in the service. `serve.trusted` in cloud.yaml lists the SHA-256 of the files that the operator trusts;
ONNX and safetensors files do not need this.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from upwell.shared.errors import ModelFailed
from upwell.shared.files import open_plain

MAX_FILE_BYTES = 2 << 30
"""Maximum size of an artifact (bytes), also the limit of the FlatBuffers format."""

MAX_COPIED_BYTES = 256 << 20
"""Maximum size of files to copy before reading (bytes), since a copy takes as much memory again."""


def read_trusted(path: Path, trusted: Collection[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read the file at `path` if its SHA-256 in hex is in `trusted`.

    The file is read once and the digest is of the bytes returned, so replacing it meanwhile has no effect. Raises
    `ModelFailed`, which names the digest to list, and `OSError`.
    """
    with open_plain(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ModelFailed(f"{path.name} is larger than the limit of {max_bytes} bytes")
    digest = hashlib.sha256(data).hexdigest()
    if digest not in trusted:
        raise ModelFailed(
            f"{path.name} can run code when loaded, so it must be listed under serve.trusted in cloud.yaml; "
            f"if you trust its author, add {digest}"
        )
    return data


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
