"""Files that can run code as they are opened: read only if the operator has named them by their digest.

A jax.export artifact may call any function that is registered in the serving process, so whoever can put one into the
repository runs code in the service. `serve.trusted` of cloud.yaml lists the SHA-256 of those that the operator vouches
for; weights, ONNX and safetensors files need no such thing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from upwell.shared.errors import ModelFailed
from upwell.shared.files import open_plain

MAX_FILE_BYTES = 2 << 30
"""A larger artifact is refused before it is read; the FlatBuffers format ends there too."""


def read_trusted(path: Path, trusted: Collection[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of the file at `path`, if their SHA-256 in hex is among `trusted`.

    The file is read once and its digest is that of the very bytes returned, so replacing it meanwhile changes nothing.
    Raises `ModelFailed`, naming the digest that would have to be listed, and `OSError`.
    """
    with open_plain(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ModelFailed(f"{path.name} is larger than {max_bytes} bytes, the limit for such a file")
    digest = hashlib.sha256(data).hexdigest()
    if digest not in trusted:
        raise ModelFailed(
            f"{path.name} can run code as it is loaded, so it must be listed under serve.trusted in cloud.yaml; "
            f"if you know who made it, add {digest}"
        )
    return data
