"""A body that is one input as it lies in a file: a picture, or the raw contents of a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.contents import decode_raw
from upwell.shared.oip.dataplane import ModelMetadata, Parameter
from upwell.shared.tensors import Array, numpy_dtype

PICTURES = ("image/jpeg", "image/png", "image/webp")
"""The kinds of picture that a body may be. What it really is, the model's own decoder finds out."""

_MAX_HEADER_CHARACTERS = 1000


def input_of(metadata: ModelMetadata, body: memoryview, *, is_picture: bool) -> dict[str, Array]:
    """The body as the model's only input: one element of BYTES, or a tensor whose shape the size decides.

    At most one dimension may vary. Raises `InvalidRequest` where the model takes something else.
    """
    if len(metadata.inputs) != 1:
        names = ", ".join(repr(spec.name) for spec in metadata.inputs)
        raise InvalidRequest(f"a raw body is one input, and {metadata.name!r} has {len(metadata.inputs)}: {names}")
    spec = metadata.inputs[0]
    if spec.datatype == "BYTES":
        if spec.shape not in ((-1,), (1,)):
            raise InvalidRequest(f"a raw body is one element, and {spec.name!r} has the shape {list(spec.shape)}")
        array = np.empty(1, dtype=np.object_)
        array[0] = bytes(body)
        return {spec.name: array}
    if is_picture:
        raise InvalidRequest(f"{metadata.name!r} takes {spec.datatype} tensors, not pictures; send their raw contents")
    shape = _fitting(spec.name, spec.datatype, spec.shape, len(body))
    return {spec.name: decode_raw(spec.name, spec.datatype, shape, body)}


def _fitting(name: str, datatype: str, shape: tuple[int, ...], size_bytes: int) -> tuple[int, ...]:
    unknown = [index for index, size in enumerate(shape) if size < 0]
    if len(unknown) > 1:
        raise InvalidRequest(
            f"{name!r} has the shape {list(shape)}: the size of a body does not say which one is meant"
        )
    row_bytes = math.prod(size for size in shape if size >= 0) * numpy_dtype(datatype).itemsize
    if not unknown or row_bytes == 0:
        return shape
    if size_bytes == 0 or size_bytes % row_bytes:
        raise InvalidRequest(
            f"{name!r} is {datatype} of shape {list(shape)}, a multiple of {row_bytes} bytes; the body has {size_bytes}"
        )
    return tuple(size_bytes // row_bytes if size < 0 else size for size in shape)


def fact_headers(parameters: Mapping[str, Parameter]) -> list[tuple[str, str]]:
    """The answer's facts as headers: `upwell.cloud_compute_ms` as `Upwell-Cloud-Compute-Ms`."""
    headers: list[tuple[str, str]] = []
    for key, value in parameters.items():
        name = key.replace(".", "-").replace("_", "-")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        plain = all(" " <= character <= "~" for character in text)
        if key.startswith("upwell.") and name.isascii() and name.replace("-", "").isalnum() and plain:
            headers.append((name.title(), text[:_MAX_HEADER_CHARACTERS]))
    return headers
