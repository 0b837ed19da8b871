"""The requests that golden vectors are recorded from: the user's own, or seeded random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from upwell.edge.bundle.golden import Labels
from upwell.shared.errors import ConfigError
from upwell.shared.oip.dataplane import ModelMetadata
from upwell.shared.signature.signature import LogicalInput, Signature
from upwell.shared.signature.tokenization import synthetic_bytes
from upwell.shared.tensors import Array, numpy_dtype
from upwell.tools.infer.request_inputs import read_inputs
from upwell.tools.terminal import share

_ROWS = 8
_VARYING = 8
_PICTURE_SIDE = 64
_PATCH = 8  # pixels per side: noise of single pixels would be averaged away
_BELOW = 2  # random indexes stay within the smallest table


def read_requests(path: Path) -> Mapping[str, Array]:
    """The arrays of a .npz by the names of the signature's inputs. Raises `ConfigError`."""
    if path.suffix.lower() != ".npz":
        raise ConfigError.at(path, "expected a .npz with an array for each input of the model, rows first", "--golden")
    return read_inputs([str(path)], _nobody)


def read_labelled(
    path: Path | None, labels: str | None, right: str
) -> tuple[Mapping[str, Array] | None, Labels | None]:
    """The requests of `--golden`, and its array `labels`, which is no input. Raises `ConfigError`."""
    if path is None:
        if labels is not None:
            raise ConfigError.at(None, "expected --golden as well: labels refer to its requests", "--labels")
        return None, None
    requests = dict(read_requests(path))
    if labels is None:
        return requests, None
    classes = requests.pop(labels, None)
    if classes is None or classes.dtype.kind not in "iu" or classes.ndim != 1 or not classes.size:
        raise ConfigError.at(path, f"expected an array {labels!r} of whole numbers, one per row", "--labels")
    return requests, Labels(classes.astype(np.int64), share("--right", right))


def _nobody() -> ModelMetadata:
    raise AssertionError("a .npz names its inputs itself, so they are not asked of the model")


def random_requests(signature: Signature) -> Mapping[str, Array]:
    """Random rows for every input, the same at each call: pictures of coloured patches, texts of made-up words,
    normally distributed numbers, integers 0 and 1. A dimension that varies is 8. Raises `ConfigError` for an input of
    bytes.
    """
    random = np.random.default_rng(0)
    return {one.name: _random(one, signature.has_rows, random) for one in signature.inputs}


def _random(one: LogicalInput, has_rows: bool, random: np.random.Generator) -> Array:
    if one.kind == "image":
        count = _PICTURE_SIDE // _PATCH
        patches = random.integers(0, 256, (_ROWS, count, count, 3), np.uint8)
        return np.kron(patches, np.ones((1, _PATCH, _PATCH, 1), np.uint8))
    if one.kind in ("text", "record"):
        return synthetic_bytes(one, _ROWS, random)
    if one.spec.datatype == "BYTES":
        problem = f"input {one.name!r} takes bytes, which cannot be generated; give requests with --golden"
        raise ConfigError.at(None, problem, "--golden")
    rows = _ROWS if has_rows else _VARYING
    shape = [
        rows if axis == 0 and size < 0 else _VARYING if size < 0 else size for axis, size in enumerate(one.spec.shape)
    ]
    dtype = numpy_dtype(one.spec.datatype)
    if dtype.kind in "iub":
        return random.integers(0, _BELOW, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
