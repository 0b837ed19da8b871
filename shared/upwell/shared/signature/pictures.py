"""Decoding, resizing and cropping pictures. Pure numpy and Pillow, the same on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from PIL import Image

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.image_codec import Color, decode, recolored
from upwell.shared.signature.keys import DEFAULT_MAX_PIXELS, Crop, Resize
from upwell.shared.signature.values import Geometry, Pictures, Value, array_of
from upwell.shared.tensors import Array

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def decode_pictures(value: Value, color: Color, max_pixels: int) -> Pictures:
    """BYTES [rows] of encoded pictures, or UINT8 [rows, height, width, 1 or 3] -> pictures of one color.

    `max_pixels` bounds all pictures of the request together. Raises `InvalidRequest`.
    """
    array = array_of(value)
    if array.dtype == np.uint8:
        pictures = pictures_of(array)
        return Pictures([recolored(pixels, color) for pixels in array], pictures.geometry, max_pixels)
    left = max_pixels
    decoded = []
    for row, data in enumerate(array):
        try:
            decoded.append(decode(data, color, left))
        except InvalidRequest as error:
            raise InvalidRequest(f"row {row}: {error}") from None
        left -= decoded[-1].shape[0] * decoded[-1].shape[1]
    return Pictures(decoded, Geometry.of([(one.shape[1], one.shape[0]) for one in decoded]), max_pixels)


def pictures_of(value: Value) -> Pictures:
    """The value as pictures; an array is UINT8 [rows, height, width, 1 or 3]. Raises `InvalidRequest` for no pixels."""
    if isinstance(value, Pictures):
        return value
    array = array_of(value)
    if array.size == 0:
        raise InvalidRequest(f"pictures without pixels: {list(array.shape)}")
    return Pictures(array, Geometry.of([(array.shape[2], array.shape[1])] * len(array)), DEFAULT_MAX_PIXELS)


def resize(pictures: Pictures, op: Resize) -> Pictures:
    """Pictures of one size, [height, width] = `op.to`.

    stretch: each side on its own. cover: scaled to fill, what stands over is cut evenly. contain: scaled to fit,
    centered on `fill`. Shrinking averages (Pillow's antialiasing), except with `nearest`.
    """
    height, width = op.to
    if len(pictures.rows) * height * width > pictures.max_pixels:
        raise InvalidRequest(
            f"{len(pictures.rows)} pictures of {width} x {height} pixels are more than the {pictures.max_pixels} "
            "that one request may have"
        )
    resized, maps = [], []
    for picture in pictures.rows:
        if picture.shape[0] * width > pictures.max_pixels:  # Pillow scales the width first, at the full height
            tall = f"{picture.shape[1]} x {picture.shape[0]}"
            raise InvalidRequest(f"a picture of {tall} pixels is too tall to become {width} wide")
        pixels, scale, offset = _FITS[op.fit](picture, op)
        resized.append(pixels)
        maps.append((scale, offset))
    scales, offsets = np.array(maps, dtype=np.float64).transpose(1, 0, 2)
    size = np.broadcast_to(np.array([width, height], dtype=np.float64), scales.shape)
    return Pictures(np.stack(resized), pictures.geometry.then(scales, offsets, size), pictures.max_pixels)


_Pair = tuple[float, float]


def _stretch(picture: Array, op: Resize) -> tuple[Array, _Pair, _Pair]:
    (height, width), (rows, columns) = op.to, picture.shape[:2]
    pixels = _scaled(picture, width, height, (0.0, 0.0, columns, rows), op)
    return pixels, (width / columns, height / rows), (0.0, 0.0)


def _cover(picture: Array, op: Resize) -> tuple[Array, _Pair, _Pair]:
    (height, width), (rows, columns) = op.to, picture.shape[:2]
    scale = max(width / columns, height / rows)
    left, top = (columns - width / scale) / 2, (rows - height / scale) / 2
    box = (max(left, 0.0), max(top, 0.0), min(left + width / scale, columns), min(top + height / scale, rows))
    return _scaled(picture, width, height, box, op), (scale, scale), (-box[0] * scale, -box[1] * scale)


def _contain(picture: Array, op: Resize) -> tuple[Array, _Pair, _Pair]:
    (height, width), (rows, columns) = op.to, picture.shape[:2]
    scale = min(width / columns, height / rows)
    inner = (min(width, max(1, round(columns * scale))), min(height, max(1, round(rows * scale))))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    pixels = np.full((height, width, picture.shape[2]), op.fill, dtype=np.uint8)
    pixels[top : top + inner[1], left : left + inner[0]] = _scaled(picture, *inner, (0.0, 0.0, columns, rows), op)
    return pixels, (inner[0] / columns, inner[1] / rows), (float(left), float(top))


_FITS: dict[Literal["stretch", "cover", "contain"], Callable[[Array, Resize], tuple[Array, _Pair, _Pair]]] = {
    "stretch": _stretch,
    "cover": _cover,
    "contain": _contain,
}


def _scaled(picture: Array, width: int, height: int, box: tuple[float, float, float, float], op: Resize) -> Array:
    """The part `box` (left, top, right, bottom) of a picture as `width` x `height`."""
    if picture.shape[:2] == (height, width) and box == (0.0, 0.0, float(width), float(height)):
        return picture
    gray = picture.shape[2] == 1
    image = Image.fromarray(picture[:, :, 0] if gray else picture)
    pixels = np.asarray(image.resize((width, height), _FILTERS[op.filter], box=box))
    return pixels[:, :, None] if gray else pixels


def crop(pictures: Pictures, op: Crop) -> Pictures:
    """The middle [height, width] of each picture. Raises `InvalidRequest` for a picture smaller than that."""
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
