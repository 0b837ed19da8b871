"""One digest for everything that makes up a model, by which answers, calibrations and reports name it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.file import external_weights

_CHUNK_BYTES = 1 << 20


def model_digest(path: Path) -> str:
    """`sha256:` and 64 hexadecimal digits.

    The digest of the file or, if the model has weights in separate files, of the digests of all files: the model file's
    first, the others by location. Raises `BadOnnxFile` if the file is not an ONNX file, or if a weight file is missing
    or outside the model's folder, before anything reads it, and `OSError`.
    """
    weights = _weights(path)
    if not weights:
        return f"sha256:{sha256_of(path).hex()}"
    parts = [sha256_of(path), *map(sha256_of, weights)]
    return f"sha256:{hashlib.sha256(b''.join(parts)).hexdigest()}"


def jax_weights(path: Path) -> Path | None:
    """The weights beside a program of JAX, if there are any; None for other kinds of files."""
    weights = path.with_suffix(".safetensors")
    return weights if path.suffix == ".jax" and os.path.lexists(weights) else None


def _weights(path: Path) -> tuple[Path, ...]:
    if path.suffix.lower() == ".onnx":
        return external_weights(path)
    beside = jax_weights(path)
    return () if beside is None else (beside,)


def sha256_of(path: Path) -> bytes:
    """The SHA-256 of a regular file, read in chunks. Raises `OSError`."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
