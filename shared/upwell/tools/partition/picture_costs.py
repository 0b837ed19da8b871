"""The cost of a compressed picture in place of a model's raw input: its bytes, and the time to encode and decode it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.files import read_file
from upwell.shared.partition.model_graph import element_bytes
from upwell.shared.partition.split_advice import Encoded
from upwell.shared.partition.tier_profile import Profile
from upwell.shared.signature.picture_codec import Color, decode, encode
from upwell.shared.signature.signature import UplinkEncoding
from upwell.shared.tensors import Array

MAX_PICTURE_BYTES = 64 << 20
MAX_PIXELS = 100_000_000
QUALITY = 85
MAX_SIDE = 16_383
"""WebP's size limit."""
_RUNS = 9
T = TypeVar("T")


def measure(
    path: Path, profile: Profile, size: tuple[int, int] | None, quality: int, stretch: float
) -> Sequence[Encoded]:
    """Measure the picture at the size of the model's largest input, as JPEG and WebP of that quality and as PNG.

    `size` is width and height if they do not follow from the bytes of the input. Times are medians on this machine;
    those to encode are multiplied by `stretch`. Raises `ConfigError`.
    """
    pixels = _decoded(path)
    tensor, samples = _picture_input(profile)
    width, height, channels = _shape(samples, size, tensor)
    color: Color = "gray" if channels == 1 else "rgb"
    image = Image.fromarray(pixels).convert("L" if channels == 1 else "RGB").resize((width, height))
    small = np.asarray(image).reshape(height, width, channels)
    rows, found = profile.model.rows, list[Encoded]()
    for name, encoding in _encodings(quality):
        size_bytes, encode_s, decode_s = _measured(small, encoding, name, color)
        found.append(Encoded(name, tensor, float(rows * size_bytes), rows * stretch * encode_s, rows * decode_s))
    return found


def _encodings(quality: int) -> Iterator[tuple[str, UplinkEncoding]]:
    yield f"JPEG {quality}", UplinkEncoding("jpeg", quality)
    yield f"WebP {quality}", UplinkEncoding("webp", quality)
    yield "PNG", UplinkEncoding("png")


def _measured(pixels: Array, encoding: UplinkEncoding, name: str, color: Color) -> tuple[int, float, float]:
    """Bytes of one picture, and seconds to encode and to decode it."""
    data, encode_s = _timed(lambda: encode(pixels, encoding))
    if data is None:
        raise ConfigError.at(
            None, f"a picture of {pixels.shape[1]} x {pixels.shape[0]} cannot be encoded as {name}", "--picture-size"
        )
    encoded = data
    _, decode_s = _timed(lambda: decode(encoded, color, MAX_PIXELS))
    return len(encoded), encode_s, decode_s


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    """The result of the function, and the median time of its warm runs in seconds."""
    result = run()
    times_s = []
    for _ in range(_RUNS):
        start_s = time.perf_counter()
        result = run()
        times_s.append(time.perf_counter() - start_s)
    return result, statistics.median(times_s)


def _decoded(path: Path) -> Array:
    try:
        return decode(read_file(path, "a picture", MAX_PICTURE_BYTES), "rgb", MAX_PIXELS)
    except InvalidRequest as error:
        raise ConfigError.at(path, str(error), "--picture") from None


def _picture_input(profile: Profile) -> tuple[str, int]:
    """The largest input, and how many numbers one of its rows has."""
    known = {name: profile.tensors[name] for name in profile.inputs if profile.tensors[name].bytes}
    if not known:
        raise ConfigError.at(None, "the model has no input of known size", "--picture")
    name = max(known, key=lambda one: known[one].bytes or 0)
    one_row = (known[name].bytes or 0) // profile.model.rows
    return name, one_row // max(1, element_bytes(known[name].datatype))


def _shape(samples: int, size: tuple[int, int] | None, tensor: str) -> tuple[int, int, int]:
    """Width, height and channels of an input of so many numbers: a square unless `size` says otherwise."""
    for channels in (3, 1):
        side = math.isqrt(samples // channels)
        width, height = size if size is not None else (side, side)
        if width * height * channels == samples and 0 < max(width, height) <= MAX_SIDE:
            return width, height, channels
    message = f"one row of the input {tensor!r} has {samples} numbers, which is not a picture with 1 or 3 channels"
    if size is None:
        raise ConfigError.at(None, f"{message} and equal sides; --picture-size gives its size", "--picture")
    raise ConfigError.at(None, f"{message} of {size[0]} x {size[1]} pixels", "--picture-size")
