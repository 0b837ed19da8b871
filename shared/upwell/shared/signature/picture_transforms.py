"""Decodes, resizes and crops pictures with numpy and Pillow; the same code runs on both sides."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import Crop, Decode, Resize
from upwell.shared.signature.picture_codec import Box, Color, EncodedPicture, decode, recolored
from upwell.shared.signature.pixel_budget import DEFAULT_MAX_PIXELS
from upwell.shared.signature.step_values import Geometry, Pictures, Value, array_of
from upwell.shared.tensors import Array

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


_WORTH_A_THREAD = 1 << 18
_MOST_THREADS = 4
"""Minimum total pixels for decoding and scaling the pictures of a request in parallel."""


def decode_pictures(value: Value, color: Color, max_pixels: int) -> Pictures:
    """BYTES [rows] of encoded pictures, or UINT8 [rows, height, width, 1 or 3] -> pictures of one color.

    `max_pixels` limits all pictures of the request together. Raises `InvalidRequest`.
    """
    array = array_of(value)
    if array.dtype == np.uint8:
        pictures = pictures_of(array)
        return Pictures([recolored(pixels, color) for pixels in array], pictures.geometry, max_pixels)
    left = max_pixels
    decoded = []
    for row, data in enumerate(array):
        with _in_row(row):
            decoded.append(decode(data, color, left))
        left -= decoded[-1].shape[0] * decoded[-1].shape[1]
    return Pictures(decoded, Geometry.of([(one.shape[1], one.shape[0]) for one in decoded]), max_pixels)


def pictures_of(value: Value) -> Pictures:
    """The value as pictures; an array is UINT8 [rows, height, width, 1 or 3]. Raises `InvalidRequest` if it has no
    pixels."""
    if isinstance(value, Pictures):
        return value
    array = array_of(value)
    if array.size == 0:
        raise InvalidRequest(f"expected pictures with pixels, got shape {list(array.shape)}")
    return Pictures(array, Geometry.of([(array.shape[2], array.shape[1])] * len(array)), DEFAULT_MAX_PIXELS)


def resize(pictures: Pictures, op: Resize) -> Pictures:
    """Pictures of one size, [height, width] = `op.to`.

    stretch: each side separately. cover: scaled to fill, the excess cut off evenly. contain: scaled to fit, centred on
    `fill`. Shrinking averages (Pillow's antialiasing), except with `nearest`.
    """
    return _resized([_Pixels(picture) for picture in pictures.rows], pictures.geometry, op, pictures.max_pixels)


def decode_resized(value: Value, decode: Decode, op: Resize) -> Pictures:
    """`decode_pictures` and `resize` in one: decodes no larger than needed, several pictures at a time.

    Raises `InvalidRequest`.
    """
    array = array_of(value)
    if array.dtype == np.uint8:
        return resize(decode_pictures(array, decode.color, decode.max_pixels), op)
    left = decode.max_pixels
    sources = []
    for row, data in enumerate(array):
        with _in_row(row):
            sources.append(EncodedPicture(data, decode.color, left, exact=decode.exact))
        left -= sources[-1].pixels
    geometry = Geometry.of([(one.width, one.height) for one in sources])
    return _resized(sources, geometry, op, decode.max_pixels)


class _Source(Protocol):
    """A picture of which parts can be had in another size."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def channels(self) -> int: ...
    def scaled(self, size: tuple[int, int], box: Box, resample: Image.Resampling) -> Array: ...


class _Pixels:
    """Pixels as a source."""

    def __init__(self, pixels: Array) -> None:
        self._pixels = pixels
        self.height, self.width, self.channels = pixels.shape

    def scaled(self, size: tuple[int, int], box: Box, resample: Image.Resampling) -> Array:
        if (self.width, self.height) == size and box == (0.0, 0.0, float(size[0]), float(size[1])):
            return self._pixels
        gray = self.channels == 1
        image = Image.fromarray(self._pixels[:, :, 0] if gray else self._pixels)
        pixels = np.asarray(image.resize(size, resample, box=box))
        return pixels[:, :, None] if gray else pixels


def _resized(sources: Sequence[_Source], geometry: Geometry, op: Resize, max_pixels: int) -> Pictures:
    height, width = op.to
    if len(sources) * height * width > max_pixels:
        raise InvalidRequest(
            f"{len(sources)} pictures of {width} x {height} pixels exceed the limit of {max_pixels} pixels per request"
        )
    for one in sources:
        if one.height * width > max_pixels:  # Pillow scales the width first, at full height
            tall = f"{one.width} x {one.height}"
            raise InvalidRequest(f"a picture of {tall} pixels is too tall to become {width} wide")
    pixels = np.empty((len(sources), height, width, sources[0].channels if sources else 3), np.uint8)
    maps = np.empty((2, len(sources), 2))

    def fit(row: int) -> None:
        with _in_row(row):
            pixels[row], maps[0, row], maps[1, row] = _FITS[op.fit](sources[row], op)

    if len(sources) > 1 and sum(one.width * one.height for one in sources) >= _WORTH_A_THREAD:
        list(_threads().map(fit, range(len(sources))))
    else:
        for row in range(len(sources)):
            fit(row)
    size = np.broadcast_to(np.array([width, height], dtype=np.float64), maps[0].shape)
    return Pictures(pixels, geometry.then(maps[0], maps[1], size), max_pixels)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads for decoding and scaling, during which Pillow releases the GIL."""
    return ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "upwell-pictures")


@contextmanager
def _in_row(row: int) -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"row {row}: {error}") from None


_Pair = tuple[float, float]


def _stretch(picture: _Source, op: Resize) -> tuple[Array, _Pair, _Pair]:
    (height, width), rows, columns = op.to, picture.height, picture.width
    pixels = picture.scaled((width, height), (0.0, 0.0, float(columns), float(rows)), FILTERS[op.filter])
    return pixels, (width / columns, height / rows), (0.0, 0.0)


def cover_box(columns: int, rows: int, op: Resize) -> tuple[float, Box]:
    """The scale at which a picture fills the size, and the part that remains."""
    height, width = op.to
    scale = max(width / columns, height / rows)
    left, top = (columns - width / scale) / 2, (rows - height / scale) / 2
    box = (max(left, 0.0), max(top, 0.0), min(left + width / scale, columns), min(top + height / scale, rows))
    return scale, box


def _cover(picture: _Source, op: Resize) -> tuple[Array, _Pair, _Pair]:
    height, width = op.to
    scale, box = cover_box(picture.width, picture.height, op)
    pixels = picture.scaled((width, height), box, FILTERS[op.filter])
    return pixels, (scale, scale), (-box[0] * scale, -box[1] * scale)


def _contain(picture: _Source, op: Resize) -> tuple[Array, _Pair, _Pair]:
    (height, width), rows, columns = op.to, picture.height, picture.width
    scale = min(width / columns, height / rows)
    inner = (min(width, max(1, round(columns * scale))), min(height, max(1, round(rows * scale))))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    pixels = np.full((height, width, picture.channels), op.fill, dtype=np.uint8)
    box = (0.0, 0.0, float(columns), float(rows))
    pixels[top : top + inner[1], left : left + inner[0]] = picture.scaled(inner, box, FILTERS[op.filter])
    return pixels, (inner[0] / columns, inner[1] / rows), (float(left), float(top))


_FITS: dict[Literal["stretch", "cover", "contain"], Callable[[_Source, Resize], tuple[Array, _Pair, _Pair]]] = {
    "stretch": _stretch,
    "cover": _cover,
    "contain": _contain,
}


def crop(pictures: Pictures, op: Crop) -> Pictures:
    """The central [height, width] of each picture. Raises `InvalidRequest` for a smaller picture."""
    height, width = op.to
    cropped, offsets = [], []
    for picture in pictures.rows:
        rows, columns = picture.shape[:2]
        top, left = (rows - height) // 2, (columns - width) // 2
        if top < 0 or left < 0:
            raise InvalidRequest(f"a picture of {columns} x {rows} pixels is smaller than the crop, {width} x {height}")
        cropped.append(picture[top : top + height, left : left + width])
        offsets.append((-left, -top))
    offset = np.array(offsets, dtype=np.float64)
    size = np.broadcast_to(np.array([width, height], dtype=np.float64), offset.shape)
    return Pictures(np.stack(cropped), pictures.geometry.then(np.ones_like(offset), offset, size), pictures.max_pixels)
