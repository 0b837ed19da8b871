"""What is known of pictures before they are decoded: their format and their size."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Literal

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.tensors import Array

_FORMS: Mapping[bytes, Literal["jpeg", "png", "webp"]] = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"RIFF": "webp",
}
"""How a file of each format begins."""

_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""A marker (ITU-T T.81, B.1.1): not a stuffed 0xFF of a scan, nor fill, nor a restart."""
_BARE = frozenset({0x01, 0xC8, 0xD8, 0xD9, *range(0xF0, 0xFE)})
"""Codes of markers that no length follows: what is behind them is read like any other segment."""
_FRAMES = frozenset({*range(0xC0, 0xD0), 0xDE} - {0xC4, 0xC8, 0xCC})
"""Codes of the frame headers from which Pillow takes the size."""
_START_OF_SCAN = 0xDA
_MAX_SEGMENTS = 1000
_LEAST_SEGMENT_BYTES = 2048
"""Minimum average size of segments or chunks beyond `_MAX_SEGMENTS` (bytes): each costs Pillow some microseconds, so
64 MiB of empty ones would take a minute."""


def form_of(data: bytes) -> Literal["jpeg", "png", "webp"] | None:
    """The format of an encoded picture, by its first bytes; None if it is another."""
    return next((form for start, form in _FORMS.items() if data.startswith(start)), None)


def header_size(data: bytes) -> tuple[int, int]:
    """(width, height) of an encoded picture as stored, from its first bytes; 0 if unknown."""
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg_size(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return png_size(data)
        if data.startswith(b"RIFF"):
            return webp_size(data)
    except (InvalidRequest, struct.error):
        pass
    return 0, 0


def header_pixels(data: bytes) -> int:
    """The number of pixels according to the header; 0 if unknown."""
    width, height = header_size(data)
    return width * height


def max_segments(data: bytes) -> int:
    """The number of segments or chunks that a picture may have."""
    return _MAX_SEGMENTS + len(data) // _LEAST_SEGMENT_BYTES


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each segment of a JPEG: its marker's code, where its length is, and the number of bytes skipped before it.

    It reads as Pillow does before the first scan, which passes over any bytes between segments.
    """
    end = 2
    while (marker := _MARKER.search(data, end)) is not None:
        code, at = marker[0][1], marker.end()
        yield code, at, marker.start() - end
        end = at if code in _BARE else at + max(2, int.from_bytes(data[at : at + 2], "big"))


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """The size in the last frame header (ITU-T T.81, B.2.2) before the first scan, which is the one that counts."""
    width = height = 0
    segments = islice(jpeg_segments(data), max_segments(data))
    for code, at, _ in takewhile(lambda one: one[0] != _START_OF_SCAN, segments):
        if code in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
    return width, height


def png_size(data: bytes) -> tuple[int, int]:
    """The size in IHDR, which must come first (PNG, 5.6)."""
    if data[12:16] != b"IHDR" or len(data) < 24:
        raise InvalidRequest("the picture is damaged and cannot be decoded: a PNG without a header")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def webp_size(data: bytes) -> tuple[int, int]:
    """The size in the first chunk (WebP container specification, RFC 9649): libwebp allocates memory when opening."""
    kind, body = data[12:16], data[20:30]
    if len(body) == 10 and kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if len(body) == 10 and kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if len(body) == 10 and kind == b"VP8 ":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    raise InvalidRequest("the picture is damaged and cannot be decoded: a WebP without a header")


def encoded_pixels(inputs: Iterable[Array]) -> int:
    """The number of pixels in the headers of the pictures among these tensors; other elements count as 0."""
    return sum(map(header_pixels, _encoded(inputs)))


def encoded_forms(inputs: Iterable[Array]) -> str:
    """The formats of the pictures among these tensors, in order of name, joined by `+`."""
    return "+".join(sorted({form for data in _encoded(inputs) if (form := form_of(data)) is not None}))


def _encoded(inputs: Iterable[Array]) -> Iterator[bytes]:
    for array in inputs:
        if array.dtype == np.object_:
            yield from (element for element in array.ravel().tolist() if isinstance(element, bytes))
