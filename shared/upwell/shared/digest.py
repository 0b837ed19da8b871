"""What a model is made of, as one digest: answers, calibrations and reports name a model by it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.files import external_weights

_CHUNK_BYTES = 1 << 20


def model_digest(path: Path) -> str:
    """`sha256:` and 64 hexadecimal digits.

    Of the file, or, for a model with weights in files of their own, of the digests of all of them: the file's and then,
    by location, theirs. Raises `BadOnnxFile` where the file is no ONNX file or such a file is missing or
    outside the model's folder, before anything has read it, and `OSError`.
    """
    weights = _weights(path)
    if not weights:
        return f"sha256:{sha256_of(path).hex()}"
    parts = [sha256_of(path), *map(sha256_of, weights)]
    return f"sha256:{hashlib.sha256(b''.join(parts)).hexdigest()}"


def jax_weights(path: Path) -> Path | None:
    """The weights beside a program of JAX, if it has any there; None for a file of another kind."""
    weights = path.with_suffix(".safetensors")
    return weights if path.suffix == ".jax" and os.path.lexists(weights) else None


def _weights(path: Path) -> tuple[Path, ...]:
    if path.suffix == ".onnx":
        return external_weights(path)
    beside = jax_weights(path)
    return () if beside is None else (beside,)


def sha256_of(path: Path) -> bytes:
    """Of a plain file, read in chunks. Raises `OSError`."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
