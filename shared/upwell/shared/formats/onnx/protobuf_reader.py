"""The bytes of an ONNX file: opens it, and walks protobuf's wire format without a protobuf package.

All readers of ONNX files use this module, so that what one of them has checked is what another reads.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias, overload

from upwell.shared.files import open_plain

_CUT_SHORT = "not an ONNX file, or truncated"
_BLOCK_BYTES = 1 << 14
_MAX_TAG_BITS = 32
_MAX_FILE_BYTES = (1 << 31) - 1  # likewise
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class BadOnnxFile(Exception):
    """The file is not an ONNX file, or its weights are not where they must be; the text says why, without the file."""


class Contents:
    """The bytes of an open file, read and kept block by block.

    Not a memory map: reading one kills the process if the file has become shorter meanwhile.
    """

    def __init__(self, file: BufferedReader, size: int) -> None:
        self.size = size
        self._file = file
        self._start = 0
        self._block = b""

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> bytes: ...
    def __getitem__(self, at: int | slice) -> int | bytes:
        """A byte, or the existing part of a slice. Raises `BadOnnxFile` for a byte that is gone."""
        if isinstance(at, slice):
            self._file.seek(at.start)
            return self._file.read(at.stop - at.start)
        offset = at - self._start
        if not 0 <= offset < len(self._block):
            self._block, self._start, offset = self[at : at + _BLOCK_BYTES], at, 0
        if not self._block:
            raise BadOnnxFile(_CUT_SHORT)
        return self._block[offset]


Bytes: TypeAlias = "Contents | mmap.mmap | bytes"

Span: TypeAlias = "tuple[int, int]"
"""The start and end of a part of the file."""

Value: TypeAlias = "int | Span | None"
"""The number of a varint, the span of a length-delimited field, or None for a field of fixed width."""


@contextmanager
def opened(path: Path) -> Iterator[Contents]:
    """Open the ONNX file at `path`. Raises `BadOnnxFile` if it is empty or too large, and `OSError`."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise BadOnnxFile("the file is empty")
        if size > _MAX_FILE_BYTES:  # before anything reads it whole: a sparse file of huge size would take days
            raise BadOnnxFile(
                f"it has {size} bytes; expected at most 2 GiB; larger models keep their weights in separate files"
            )
        yield Contents(file, size)


def length_delimited(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each length-delimited field of the message in `data[start:end]`."""
    for number, value, _ in fields(data, start, end):
        if isinstance(value, tuple):
            yield number, *value


def fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, Value, Span]]:
    """Number, value and extent (with the tag) of each field of the message in `data[start:end]`.

    Raises `BadOnnxFile` if it is not a protobuf message.
    """
    position = start
    while position < end:
        begin = position
        value: Value = None
        tag, position = varint(data, position, end)
        # C++ drops bits above 32: a longer tag would be an unknown field here, but a weight's path there.
        if tag >> _MAX_TAG_BITS or not tag >> 3:
            raise BadOnnxFile("not an ONNX file: it has an invalid field number")
        wire = tag & 7
        if wire == _VARINT:
            value, position = varint(data, position, end)
        elif wire == _LENGTH:
            size, position = varint(data, position, end)
            value = position, position + size
            position += size
        elif wire in _FIXED_BYTES:
            position += _FIXED_BYTES[wire]
        else:
            raise BadOnnxFile(f"not an ONNX file: it has a field of wire type {wire}")
        if position > end:
            raise BadOnnxFile(_CUT_SHORT)
        yield tag >> 3, value, (begin, position)


def varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position`, and its end. Raises `BadOnnxFile`."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise BadOnnxFile(_CUT_SHORT)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadOnnxFile("not an ONNX file: it has a number of more than ten bytes")
