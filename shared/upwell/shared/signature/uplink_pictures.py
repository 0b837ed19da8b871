"""Prepares pictures for the uplink: shrunk to what the cloud's model sees, and encoded as `model.yaml` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.picture_headers import form_of, header_pixels, header_size
from upwell.shared.signature.pixel_budget import BUDGET, DEFAULT_MAX_PIXELS
from upwell.shared.signature.signature import LogicalInput, OutputKind, Signature, UplinkEncoding, in_rgb
from upwell.shared.tensors import Array

if TYPE_CHECKING:  # imported for models of pictures
    from PIL import Image

    from upwell.shared.signature.model_yaml import Resize
    from upwell.shared.signature.picture_codec import Box

Resizes: TypeAlias = "Mapping[str, Resize]"
"""Input -> the resize that the cloud's model applies to its pictures."""

NO_RESIZES: Resizes = MappingProxyType({})

AS_SEEN = UplinkEncoding(None, quality=95, whole_color=True)
"""The encoding of pictures that are shrunk without a configured encoding: photographs of 224 pixels a side differ by at
most 19 of 255 in any pixel, by 1.7 on average, from those not encoded again. PNG is lossless."""

_DENSER: Mapping[str, float] = {"jpeg": 2.0, "webp": 2.0, "png": 1.0}
"""Factor by which a shrunk photograph has more bytes per pixel."""

_WITHOUT_PLACES: frozenset[OutputKind] = frozenset({"probabilities", "logits", "embedding"})

_Size: TypeAlias = tuple[int, int]
"""(width, height)."""


def encode_for_uplink(
    signature: Signature, inputs: Mapping[str, Array], resizes: Resizes = NO_RESIZES
) -> Mapping[str, Array]:
    """The inputs for the uplink: pixels as RGB, shrunk and encoded as the signature says, all else unchanged.

    Without `max_side`, pictures that the signature encodes are shrunk as the cloud's model would. The signature is that
    of this side; the cloud's is unknown here.
    """
    inputs = in_rgb(signature, inputs)
    if all(one.uplink is None for one in signature.inputs):
        return inputs
    sent = dict(inputs)
    for one in signature.inputs:
        if one.uplink is not None and one.kind == "image":
            seen = None if one.uplink.max_side else _seen(signature, one, resizes)
            sent[one.name] = _sent(sent[one.name], one.uplink, seen)
    return sent


def shrink_for_uplink(signature: Signature, inputs: Mapping[str, Array], resizes: Resizes) -> Mapping[str, Array]:
    """Shrink what `encode_for_uplink` leaves unchanged, as the cloud's model would, which then sees the same.

    Both sides resize with the same code. Pictures that would grow, in size or in bytes, stay unchanged.
    """
    plain = [(one, seen) for one, seen in _plain(signature, resizes) if one.name in inputs]
    return {**inputs, **{one.name: _sent(inputs[one.name], AS_SEEN, seen) for one, seen in plain}} if plain else inputs


def saved_bytes(signature: Signature, inputs: Mapping[str, Array], resizes: Resizes) -> tuple[int, ...]:
    """Expected bytes saved by `shrink_for_uplink` for each row, from the pictures' headers; () if none."""
    saved: list[int] = []
    for one, seen in _plain(signature, resizes):
        each = [_saved(data, seen) for data in inputs[one.name]]
        saved = [a + b for a, b in zip(saved, each, strict=True)] if saved else each
    if not any(saved):
        return ()
    return tuple(saved) if signature.has_rows else (sum(saved),)


def with_uplink(signature: Signature, encoding: UplinkEncoding | None) -> Signature:
    """The signature with this encoding for all pictures; None: as given."""
    inputs = (replace(one, uplink=encoding) if one.kind == "image" else one for one in signature.inputs)
    return replace(signature, inputs=tuple(inputs))


def at_quality(signature: Signature, quality: int) -> Signature:
    """The signature with this quality for all pictures that it encodes in a format with a quality."""
    inputs = (
        replace(one, uplink=replace(one.uplink, quality=quality, recode=True))
        if one.uplink is not None and one.uplink.encode in ("jpeg", "webp")
        else one
        for one in signature.inputs
    )
    return replace(signature, inputs=tuple(inputs))


def _plain(signature: Signature, resizes: Resizes) -> list[tuple[LogicalInput, Resize]]:
    """The pictures for which the signature has no encoding, and how the cloud's model resizes them."""
    if not resizes:
        return []
    plain = [one for one in signature.inputs if one.kind == "image" and one.uplink is None]
    return [(one, seen) for one in plain if (seen := _seen(signature, one, resizes)) is not None]


def _seen(signature: Signature, one: LogicalInput, resizes: Resizes) -> Resize | None:
    """How the cloud's model resizes this input. None if an answer depends on the size of the picture sent, or if boxes
    would refer to a picture that was cropped to its middle."""
    seen, kinds = resizes.get(one.name), {output.kind for output in signature.outputs}
    if seen is None or not kinds.isdisjoint(("masks", "segments")):
        return None
    return None if seen.fit == "cover" and not kinds.issubset(_WITHOUT_PLACES) else seen


def _sent(given: Array, encoding: UplinkEncoding, seen: Resize | None) -> Array:
    if given.dtype == np.uint8:
        from upwell.shared.signature.picture_codec import encode

        pixels = _shrunk_pixels(given, encoding, seen)
        encoded = [encode(picture, encoding) for picture in pixels]
        return pixels if None in encoded else _elements(encoded)
    if encoding.recode or encoding.max_side or seen is not None:
        return _elements([_recoded(data, encoding, seen) for data in given])
    return given


def _recoded(data: object, encoding: UplinkEncoding, seen: Resize | None) -> object:
    """An encoded picture for the uplink: shrunk or encoded again if that is wanted and makes it smaller."""
    if not isinstance(data, bytes):  # a caller's array may have any elements
        return data
    from upwell.shared.signature.picture_codec import EncodedPicture, encode

    form = form_of(data)
    try:
        with BUDGET.holding(header_pixels(data)):
            picture = EncodedPicture(data, "rgb", DEFAULT_MAX_PIXELS, exact=False)
            size, box = _shrunk((picture.width, picture.height), encoding, seen)
            if form is None or not (encoding.recode or size != (picture.width, picture.height)):
                return data
            pixels = picture.scaled(size, box, _filter(seen))
        made = encode(
            pixels[:, :, :1] if picture.is_gray else pixels, replace(encoding, encode=encoding.encode or form)
        )
    except InvalidRequest:  # the model reports it
        return data
    return made if made is not None and len(made) < len(data) else data


def _shrunk_pixels(pictures: Array, encoding: UplinkEncoding, seen: Resize | None) -> Array:
    """Pixels [rows, height, width, 1 or 3], shrunk."""
    if not pictures.size:
        return pictures
    from PIL import Image

    (width, height), box = _shrunk((pictures.shape[2], pictures.shape[1]), encoding, seen)
    if (height, width) == pictures.shape[1:3]:
        return pictures
    images = (Image.fromarray(one[:, :, 0] if one.shape[2] == 1 else one) for one in pictures)
    shrunk = (np.asarray(image.resize((width, height), _filter(seen), box=box)) for image in images)
    return np.stack([one if one.ndim == 3 else one[:, :, None] for one in shrunk])


def _shrunk(size: _Size, encoding: UplinkEncoding, seen: Resize | None) -> tuple[_Size, Box]:
    """The size to send, and the part of the picture."""
    if seen is not None:
        return _as_seen(size, seen)
    whole = (0.0, 0.0, float(size[0]), float(size[1]))
    longest = max(size)
    if not encoding.max_side or longest <= encoding.max_side:
        return size, whole
    width, height = (max(1, round(side * encoding.max_side / longest)) for side in size)
    return (width, height), whole


def _as_seen(size: _Size, seen: Resize) -> tuple[_Size, Box]:
    """The size that the model does not resize any more, and the part of the picture. No side grows."""
    (columns, rows), (height, width) = size, seen.to
    whole = (0.0, 0.0, float(columns), float(rows))
    if seen.fit == "stretch":
        return (min(columns, width), min(rows, height)), whole
    if seen.fit == "cover":
        from upwell.shared.signature.picture_transforms import cover_box

        scale, box = cover_box(columns, rows, seen)
        return ((width, height), box) if scale < 1.0 else (size, whole)
    scale = min(width / columns, height / rows)
    if scale >= 1.0:
        return size, whole
    return (min(width, max(1, round(columns * scale))), min(height, max(1, round(rows * scale)))), whole


def _saved(data: object, seen: Resize) -> int:
    """Expected bytes saved by shrinking a picture, encoded or pixels."""
    if isinstance(data, np.ndarray):
        height, width, channels = data.shape
        size, size_bytes, density = (int(width), int(height)), int(height * width * channels), 1.0
    elif isinstance(data, bytes) and (form := form_of(data)) is not None:
        size, size_bytes, density = header_size(data), len(data), _DENSER[form]
    else:
        return 0
    pixels = size[0] * size[1]
    made = _as_seen(size, seen)[0] if pixels else size
    if made == size:
        return 0
    return max(0, size_bytes - round(density * size_bytes * made[0] * made[1] / pixels))


def _filter(seen: Resize | None) -> Image.Resampling:
    from upwell.shared.signature.picture_transforms import FILTERS

    return FILTERS["bilinear" if seen is None else seen.filter]


def _elements(encoded: Sequence[object]) -> Array:
    made = np.empty(len(encoded), dtype=np.object_)
    made[:] = encoded
    return made
