"""Brightness and sharpness of pictures, which tell a dirty or dark camera from a changed scene."""

from __future__ import annotations

import numpy as np
from PIL import Image

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.picture_codec import EncodedPicture, recolored
from upwell.shared.signature.picture_headers import header_pixels
from upwell.shared.signature.pixel_budget import BUDGET, DEFAULT_MAX_PIXELS
from upwell.shared.tensors import Array

_LONGEST_SIDE = 128
_FILTER = Image.Resampling.BILINEAR


def picture_quality(picture: bytes | Array) -> tuple[float, float]:
    """Brightness from 0 (black) to 1 (white), and sharpness: ln(1 + variance of the Laplacian) of 8-bit luma.

    The variance of the Laplacian measures focus: Pech-Pacheco et al. 2000 ("Diatom autofocusing in brightfield
    microscopy"). The picture is encoded, or pixels UINT8 [height, width, 1 or 3]; larger ones are reduced to 128 pixels
    on the longer side. Raises `InvalidRequest` if it cannot be decoded.
    """
    luma = _luma(picture).astype(np.float64)
    brightness = float(luma.mean()) / 255
    if min(luma.shape) < 3:
        return brightness, 0.0
    laplacian = (
        luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * luma[1:-1, 1:-1]
    )  # fmt: skip
    return brightness, float(np.log1p(laplacian.var()))


def thumbnail(picture: bytes, side_px: int) -> Array:
    """Grey levels FP64 [side, side] of an encoded picture. Raises `InvalidRequest`."""
    with BUDGET.holding(header_pixels(picture)):
        opened = EncodedPicture(picture, "gray", DEFAULT_MAX_PIXELS, exact=False)
        box = (0.0, 0.0, float(opened.width), float(opened.height))
        return opened.scaled((side_px, side_px), box, _FILTER)[:, :, 0].astype(np.float64)


def _luma(picture: bytes | Array) -> Array:
    """Luma [height, width], at most `_LONGEST_SIDE` on a side."""
    if isinstance(picture, bytes):
        with BUDGET.holding(header_pixels(picture)):
            opened = EncodedPicture(picture, "gray", DEFAULT_MAX_PIXELS, exact=False)
            box = (0.0, 0.0, float(opened.width), float(opened.height))
            return opened.scaled(_small(opened.width, opened.height), box, _FILTER)[:, :, 0]
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (1, 3) or not picture.size:
        raise InvalidRequest(f"expected pixels UINT8 [height, width, 1 or 3], got {picture.dtype} {picture.shape}")
    gray = Image.fromarray(np.ascontiguousarray(recolored(picture, "gray")[:, :, 0]))
    return np.asarray(gray.resize(_small(gray.width, gray.height), _FILTER))


def _small(width: int, height: int) -> tuple[int, int]:
    step = max(1.0, max(width, height) / _LONGEST_SIDE)
    return max(1, round(width / step)), max(1, round(height / step))
