"""What a program may hand to `Agent.infer`, brought into the form that the signature describes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from upwell.edge.models.served import ServedModel
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.tags import checked_tags
from upwell.shared.tensors import Array

_CHANNELS = (1, 3)


def as_arrays(inputs: Mapping[str, Array | bytes], model: ServedModel) -> dict[str, Array]:
    """The inputs as arrays with rows. Raises `InvalidRequest` for what is neither an array nor bytes."""
    face = model.face
    pictures = face.pictures if face else ()
    arrays: dict[str, Array] = {}
    for name, value in inputs.items():
        if isinstance(value, np.ndarray) and name not in pictures:
            arrays[name] = value
        else:
            arrays[name] = _array(name, value, name in pictures)
    return arrays


def _array(name: str, value: object, is_picture: bool) -> Array:
    if isinstance(value, np.ndarray):
        return _with_rows(value) if is_picture and value.dtype == np.uint8 else value
    if isinstance(value, (bytes, bytearray, memoryview)):
        picture = np.empty(1, dtype=np.object_)
        picture[0] = bytes(value)
        return picture
    raise InvalidRequest(f"input {name!r}: expected a numpy array or bytes, got {type(value).__name__}")


def _with_rows(pixels: Array) -> Array:
    """Pixels as [rows, height, width, channels]; three dimensions that end in 1 or 3 are one picture with channels."""
    if pixels.ndim == 2:
        return pixels[None, :, :, None]
    if pixels.ndim == 3:
        return pixels[None] if pixels.shape[2] in _CHANNELS else pixels[..., None]
    return pixels


def as_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    """The tags as rules see them, in a copy: `checked_tags`. Raises `InvalidRequest`."""
    try:
        return checked_tags(tags)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
