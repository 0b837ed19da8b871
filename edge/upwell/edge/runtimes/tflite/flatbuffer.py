"""A bounds check for TFLite files, for the runtime that makes none.

tflite_runtime 2.14 follows every offset of a file as it stands, so a file that was cut short loads, and answers
with garbage or takes the process down. This walk follows the tables, vectors and strings of the TFLite schema
(file identifier `TFL3`) and proves that each of them lies within the file. It proves nothing about values.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from typing import TypeAlias

Data: TypeAlias = "bytes | mmap.mmap"
Check: TypeAlias = Callable[[Data, int], None]

_IDENTIFIER = b"TFL3"
_EXTERNAL_GROUPS = 8
"""Slot of the schema's field in the table of the model."""


class Broken(Exception):
    """The file is no TFLite model, or a part of it lies outside the file."""


def check_flatbuffer(data: Data) -> None:
    """Raise `Broken` unless `data` is a TFLite model with every part inside it."""
    if len(data) < 8 or data[4:8] != _IDENTIFIER:
        raise Broken("it is not a TFLite file")
    try:
        _table(_MODEL)(data, _number(data, 0, "<I"))
    except struct.error:
        raise Broken("it is damaged or cut short") from None


def names_other_files(data: Data) -> bool:
    """Whether a TFLite model has weights in files that it names (`external_buffer_groups`), as LiteRT would read them.

    Raises `Broken` where the file ends before it tells.
    """
    try:
        model = _number(data, 0, "<I")
        vtable = model - _number(data, model, "<i")
        slots = (_number(data, vtable, "<H") - 4) // 2
        return slots > _EXTERNAL_GROUPS and _number(data, vtable + 4 + 2 * _EXTERNAL_GROUPS, "<H") != 0
    except struct.error:
        raise Broken("it is damaged or cut short") from None


def _number(data: Data, position: int, layout: str) -> int:
    if position < 0:
        raise Broken("it is damaged: a part lies outside the file")
    value: int = struct.unpack_from(layout, data, position)[0]
    return value


def _table(fields: Mapping[int, Check]) -> Check:
    """A table: a vtable of field offsets, and for each field in `fields` a check of what it refers to."""

    def check(data: Data, position: int) -> None:
        vtable = position - _number(data, position, "<i")
        slots = (_number(data, vtable, "<H") - 4) // 2
        _within(data, vtable, 4 + 2 * slots)
        _within(data, position, _number(data, vtable + 2, "<H"))
        for slot, check_field in fields.items():
            offset = _number(data, vtable + 4 + 2 * slot, "<H") if slot < slots else 0
            if offset:
                field = position + offset
                check_field(data, field + _number(data, field, "<I"))

    return check


def _within(data: Data, position: int, size_bytes: int) -> None:
    if position < 0 or size_bytes < 0 or position + size_bytes > len(data):
        raise Broken("it is damaged or cut short: a part lies outside the file")


def _scalars(item_bytes: int) -> Check:
    """A vector of plain numbers."""

    def check(data: Data, position: int) -> None:
        _within(data, position, 4 + item_bytes * _number(data, position, "<I"))

    return check


def _string(data: Data, position: int) -> None:
    _within(data, position, 4 + _number(data, position, "<I") + 1)


def _tables(fields: Mapping[int, Check]) -> Check:
    """A vector of tables."""
    check_one = _table(fields)

    def check(data: Data, position: int) -> None:
        count = _number(data, position, "<I")
        _within(data, position, 4 + 4 * count)
        for item in range(position + 4, position + 4 + 4 * count, 4):
            check_one(data, item + _number(data, item, "<I"))

    return check


_QUANTIZATION = {0: _scalars(4), 1: _scalars(4), 2: _scalars(4), 3: _scalars(8)}
_TENSOR = {0: _scalars(4), 3: _string, 4: _table(_QUANTIZATION), 7: _scalars(4)}
_OPERATOR = {1: _scalars(4), 2: _scalars(4), 4: _table({}), 5: _scalars(1), 7: _scalars(1), 8: _scalars(4)}
_SUBGRAPH = {0: _tables(_TENSOR), 1: _scalars(4), 2: _scalars(4), 3: _tables(_OPERATOR), 4: _string}
_TENSOR_MAP = {0: _string}
_SIGNATURE = {0: _tables(_TENSOR_MAP), 1: _tables(_TENSOR_MAP), 2: _string}
_MODEL = {
    1: _tables({1: _string}),  # operator codes
    2: _tables(_SUBGRAPH),
    3: _string,
    4: _tables({0: _scalars(1)}),  # buffers
    5: _scalars(4),
    6: _tables({0: _string}),  # metadata
    7: _tables(_SIGNATURE),
}
"""Slot numbers of the fields that refer to something, from the TFLite schema."""
