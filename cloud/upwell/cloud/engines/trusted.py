"""Files that can run code when loaded: read only if the operator has listed their digest.

A jax.export artifact may call any function registered in the serving process, so anyone who can write to the repository
could run code in the service. `serve.trusted` in cloud.yaml lists the SHA-256 of the files that the operator trusts;
ONNX and safetensors files do not need this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from upwell.shared.errors import ModelFailed
from upwell.shared.files import open_plain

MAX_FILE_BYTES = 2 << 30
"""Maximum size of an artifact (bytes), also the limit of the FlatBuffers format."""


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
