"""Reads flatbuffers, and checks that each part lies within the file before it is read.

tflite_runtime 2.14 follows offsets unchecked, so a truncated file loads there, and then gives garbage or crashes the
process.
"""

from __future__ import annotations

import mmap
import struct
from typing import TypeAlias

Data: TypeAlias = "bytes | mmap.mmap"

_SHARED_TIMES = 4
"""Limit on the bytes read, as a multiple of the file's size, since equal parts may be shared."""


class BadTfliteFile(Exception):
    """The file is not a TFLite model, or a part of it lies outside the file; the text says why, without the file."""


class Flatbuffer:
    """A file, with a limit on the total bytes read: a hostile file may let its vectors overlap."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._left = _SHARED_TIMES * len(data)
        self._vtables: dict[int, tuple[int, ...]] = {}

    def root(self) -> Table:
        """The root table."""
        return Table(self, self.follow(0))

    def number(self, position: int, layout: str) -> int:
        """The number at `position`, in a layout of `struct`."""
        if position < 0:
            raise BadTfliteFile("it is damaged: a part is outside the file")
        try:
            value: int = struct.unpack_from(layout, self._data, position)[0]
        except struct.error:
            raise BadTfliteFile("it is damaged or truncated") from None
        return value

    def follow(self, position: int) -> int:
        """The target of the offset at `position`."""
        return position + self.number(position, "<I")

    def within(self, position: int, size_bytes: int) -> None:
        """Raise `BadTfliteFile` unless these bytes are in the file."""
        if position < 0 or size_bytes < 0 or position + size_bytes > len(self._data):
            raise BadTfliteFile("it is damaged or truncated: a part is outside the file")

    def take(self, position: int, size_bytes: int) -> bytes:
        """The bytes at `position`."""
        self.within(position, size_bytes)
        self._left -= size_bytes
        if self._left < 0:
            raise BadTfliteFile("its parts together are larger than the file")
        return self._data[position : position + size_bytes]

    def vtable(self, position: int) -> tuple[int, ...]:
        """The vtable at `position`, which many tables share: its size, the tables' size, and the offset of each
        slot."""
        if position not in self._vtables:
            count = max(2, self.number(position, "<H") // 2)
            self._vtables[position] = struct.unpack(f"<{count}H", self.take(position, 2 * count))
        return self._vtables[position]


class Table:
    """A table: fields by slot in the schema, each optional."""

    def __init__(self, file: Flatbuffer, position: int) -> None:
        self._file = file
        self._position = position
        self._vtable = file.vtable(position - file.number(position, "<i"))
        file.within(position, self._vtable[1])

    def has(self, slot: int) -> bool:
        """Whether the field is present."""
        return self._field(slot) is not None

    def number(self, slot: int, layout: str) -> int:
        """A number in a layout of `struct`; 0 if absent."""
        field = self._field(slot)
        return 0 if field is None else self._file.number(field, layout)

    def table(self, slot: int) -> Table | None:
        """A table; None if absent."""
        field = self._field(slot)
        return None if field is None else Table(self._file, self._file.follow(field))

    def tables(self, slot: int) -> list[Table]:
        """A vector of tables."""
        start, count = self._vector(slot)
        offsets = struct.unpack(f"<{count}I", self._file.take(start, 4 * count))
        return [Table(self._file, start + 4 * at + offset) for at, offset in enumerate(offsets)]

    def numbers(self, slot: int) -> tuple[int, ...]:
        """A vector of 32-bit integers."""
        start, count = self._vector(slot)
        return struct.unpack(f"<{count}i", self._file.take(start, 4 * count)) if count else ()

    def raw(self, slot: int) -> bytes:
        """A vector of bytes."""
        start, count = self._vector(slot)
        return self._file.take(start, count)

    def floats(self, slot: int) -> tuple[float, ...]:
        """A vector of 32-bit floats."""
        start, count = self._vector(slot)
        return struct.unpack(f"<{count}f", self._file.take(start, 4 * count)) if count else ()

    def text(self, slot: int) -> bytes:
        """A string; empty if absent."""
        start, count = self._vector(slot)
        if self.has(slot):
            self._file.within(start, count + 1)  # it ends with a zero
        return self._file.take(start, count)

    def check(self, slot: int, item_bytes: int = 1) -> None:
        """Raise `BadTfliteFile` unless a vector of numbers lies in the file; it is not read."""
        start, count = self._vector(slot)
        if count:
            self._file.within(start, item_bytes * count)

    def _vector(self, slot: int) -> tuple[int, int]:
        """First byte and number of items."""
        field = self._field(slot)
        if field is None:
            return 0, 0
        start = self._file.follow(field)
        return start + 4, self._file.number(start, "<I")

    def _field(self, slot: int) -> int | None:
        offset = self._vtable[slot + 2] if slot + 2 < len(self._vtable) else 0
        return self._position + offset if offset else None
