"""Decodes and encodes pictures safely.

Only JPEG, PNG and WebP are read, recognized by their first bytes. The size is read from the header and checked before
anything is decoded. Every failure is an `InvalidRequest`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.picture_headers import jpeg_segments, max_segments, png_size, webp_size
from upwell.shared.signature.signature import UplinkEncoding
from upwell.shared.tensors import Array

Color = Literal["rgb", "gray"]

MAX_DECODED_SIDE = 65_535
"""Maximum side of a decoded picture: JPEG's own limit. Resizing a taller picture would take memory in proportion to its
height."""

_MAX_SCANS = 64
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_MAX_ENCODED_SIDE = {"jpeg": 65_500, "webp": 16_383, "png": 65_535}

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

_LEFT_TO_SHRINK = 2
"""Factor left to the filter when a JPEG is decoded at reduced size."""

_ORIENTATION_TAG = 0x0112
_UPRIGHT, _FIRST_ON_ITS_SIDE = 1, 5
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transformation to upright for each EXIF orientation (CIPA DC-008, 4.6.5)."""

# A broken EXIF block is ignored. Pillow's warning about it quotes the sender's data, and must neither fill the log nor
# the list of warnings already shown.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")


def decode(data: bytes, color: Color, max_pixels: int) -> Array:
    """One encoded picture -> UINT8 [height, width, 3 or 1], EXIF orientation applied, alpha dropped.

    Only the first frame of an animation is used; 16-bit samples keep their high byte. Raises `InvalidRequest`.
    """
    with _refusing():
        return _array(_upright(_opened(data, max_pixels), color))


class EncodedPicture:
    """An encoded picture whose header was read and whose size was checked. Raises `InvalidRequest`.

    `width` and `height` are those of the upright picture, `pixels` the number of pixels to decode in full.
    """

    def __init__(self, data: bytes, color: Color, max_pixels: int, *, exact: bool) -> None:
        with _refusing():
            self._image = _opened(data, max_pixels)
            self._may_scale = isinstance(self._image, JpegImageFile) and not exact
            orientation = _orientation(self._image)
            self._is_turned = orientation != _UPRIGHT
            width, height = self._image.size
            self.pixels = width * height
        is_on_its_side = orientation >= _FIRST_ON_ITS_SIDE
        self.width, self.height = (height, width) if is_on_its_side else (width, height)
        self._color: Color = color

    @property
    def is_gray(self) -> bool:
        """Whether the file is grayscale."""
        return self._image.mode in ("1", "L", "LA")

    @property
    def channels(self) -> int:
        """3, or 1 for gray."""
        return 3 if self._color == "rgb" else 1

    def scaled(self, size: tuple[int, int], box: Box, resample: Image.Resampling) -> Array:
        """The part `box` of the upright picture (left, top, right, bottom), resized to `size`, (width, height).

        A JPEG that is shrunk by much is decoded at 1/2, 1/4 or 1/8 (libjpeg's transform of fewer coefficients, ITU-T
        T.81), still at least twice as large as `size` on both sides, so that the filter decides: photographs differ by
        at most 16 of 255 in any pixel from those decoded in full, by 0.7 on average.
        """
        with _refusing():
            step = self._scale(size, box) if resample != Image.Resampling.NEAREST else 1
            if step > 1:
                width, height = self._image.size
                self._image.draft(self._image.mode, (width // step, height // step))
            image = _upright(self._image, self._color)
            if image.size == size and box == (0.0, 0.0, float(size[0]), float(size[1])):
                return _array(image)
            left, top, right, bottom = (edge / step for edge in box)
            return _array(image.resize(size, resample, box=(left, top, right, bottom)))

    def _scale(self, size: tuple[int, int], box: Box) -> int:
        if not self._may_scale:
            return 1
        most = min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1]) / _LEFT_TO_SHRINK
        width, height = self._image.size
        for step in (8, 4, 2):
            # A size that is not divisible is padded at the right and bottom, which a rotation would move elsewhere.
            if step <= most and not (self._is_turned and (width % step or height % step)):
                return step
        return 1


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except InvalidRequest:
        raise
    except Exception as error:  # noqa: BLE001 (the decoder's boundary: Pillow raises anything for broken files)
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InvalidRequest(f"the picture is damaged and cannot be decoded: {reason}") from None


def recolored(pixels: Array, color: Color) -> Array:
    """Pixels UINT8 [height, width, 1 or 3] in the given color; gray is ITU-R 601 luma as computed by Pillow."""
    channels = 3 if color == "rgb" else 1
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]


def encode(pixels: Array, encoding: UplinkEncoding) -> bytes | None:
    """Pixels UINT8 [height, width, 1 or 3] -> an encoded picture, or None if the format cannot have that size."""
    form = encoding.encode
    if form is None or max(pixels.shape[:2]) > _MAX_ENCODED_SIDE[form]:
        return None
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    if form == "png":
        image.save(file, "PNG")
    else:
        whole_color = {"subsampling": 0} if form == "jpeg" and encoding.whole_color else {}
        image.save(file, form.upper(), quality=encoding.quality, **whole_color)
    return file.getvalue()


def _opened(data: bytes, max_pixels: int) -> ImageFile:
    """Open the picture: reads its header and checks its size.

    The format's own class is used instead of `Image.open`, which warns about large pictures by a limit of its own.
    """
    if not isinstance(data, bytes):
        raise InvalidRequest(f"expected an encoded picture as bytes, got {type(data).__name__}")
    file = io.BytesIO(data)
    if data.startswith(b"\xff\xd8\xff"):
        _check_segments(data)
        image: ImageFile = JpegImageFile(file)
    elif data.startswith(b"\x89PNG\r\n\x1a\n"):
        _check_size(png_size(data), max_pixels)
        _check_chunks(data)
        image = PngImageFile(file)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        _check_size(webp_size(data), max_pixels)
        image = WebPImageFile(file)
    else:
        raise InvalidRequest(f"expected a JPEG, PNG or WebP picture, got {len(data)} bytes of another format")
    _check_size(image.size, max_pixels)
    return image


def _check_segments(data: bytes) -> None:
    """Refuse JPEGs with too many segments, or fill bytes before the first scan, and with many scans: each scan costs a
    pass over all pixels, and may take only a few bytes.
    """
    scans, segments = 0, 0
    for code, _, skipped in jpeg_segments(data):
        if scans and code == _END_OF_IMAGE:  # before a scan it ends nothing
            return
        segments += 1 if scans else 1 + skipped
        _check_count(segments, data)
        scans += code == _START_OF_SCAN
        if scans > _MAX_SCANS:
            raise InvalidRequest(
                f"the picture is a JPEG of more than {_MAX_SCANS} scans, which takes too long to decode"
            )


def _check_chunks(data: bytes) -> None:
    """Refuse PNGs with too many chunks (PNG, 5.3: length, type, data and checksum)."""
    chunks, position = 0, 8
    while position < len(data) and data[position + 4 : position + 8] != b"IEND":
        chunks += 1
        _check_count(chunks, data)
        position += 12 + int.from_bytes(data[position : position + 4], "big")


def _check_count(segments: int, data: bytes) -> None:
    most = max_segments(data)
    if segments > most:
        raise InvalidRequest(f"the picture has more than {most} segments, which take too long to read")


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise InvalidRequest(f"the picture has no pixels: {width} x {height}")
    if max(size) > MAX_DECODED_SIDE:
        raise InvalidRequest(f"the picture is {width} x {height}; at most {MAX_DECODED_SIDE} pixels a side are decoded")
    if width * height > max_pixels:
        raise InvalidRequest(f"the picture has {width} x {height} pixels; at most {max_pixels} are decoded")


def _upright(image: ImageFile, color: Color) -> Image.Image:
    image.load()
    transposition = _TURNS.get(_orientation(image))
    upright = image if transposition is None else image.transpose(transposition)
    mode = "RGB" if color == "rgb" else "L"
    if upright.mode.startswith("I"):  # 16-bit gray, which Pillow would clip to 255 instead of scaling
        samples = np.asarray(upright).astype(np.uint32)
        upright = Image.fromarray((samples >> 8).astype(np.uint8))
    return upright if upright.mode == mode else upright.convert(mode)


def _array(image: Image.Image) -> Array:
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _orientation(image: ImageFile) -> int:
    """The EXIF orientation; upright if there is none that is known."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # noqa: BLE001 (a broken EXIF block says nothing about the pixels)
        return _UPRIGHT
    return orientation if isinstance(orientation, int) and orientation in _TURNS else _UPRIGHT
