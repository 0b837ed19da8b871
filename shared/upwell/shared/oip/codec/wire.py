"""Raw tensor contents in and out of a serialized message, without the generated classes.

A request with one picture is a few dozen bytes of description and half a megabyte of raw contents, which the generated
classes copy two or three times each way. A protobuf message is a sequence of fields in any order, each a key (field
number and wire type) and a value; so raw contents can be appended to a serialized description, and cut out again before
the rest is parsed. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from upwell.shared.errors import InvalidRequest

Span: TypeAlias = "tuple[int, int]"
"""The start and end of a value in a message."""

MAX_MESSAGE_BYTES = 2**31 - 1
"""Maximum size of a message in protobuf (bytes)."""

MIN_SPLIT_BYTES = 64 << 10
"""Size below which copying costs less than taking a message apart here (bytes)."""

MAX_DESCRIPTION_BYTES = 4 << 20
"""Maximum bytes of a request besides raw contents. Typed value lists take thirty times their size when parsed."""

MAX_UNUSUAL_BYTES = 1 << 20
"""Maximum size of a request that is not taken apart here, which may have a million tiny fields (bytes)."""

MAX_PLAIN_BYTES = 2048
"""Maximum bytes besides id and raw contents of a message worth caching."""

_LENGTH_DELIMITED = 2
_MAX_FIELDS = 1024
_MAX_VARINT_BYTES = 5
_HEADS_KEPT = 4096


def refuse_larger(what: str, size_bytes: int) -> None:
    """Raise `InvalidRequest` if `size_bytes` exceeds the limit of a message."""
    if size_bytes > MAX_MESSAGE_BYTES:
        raise InvalidRequest(f"{what} would take {size_bytes} bytes; a message can have at most {MAX_MESSAGE_BYTES}")


def refuse_costly(description: bytes, *, is_split: bool) -> None:
    """Raise `InvalidRequest` for a part of a request that would cost far more to parse than to send.

    `is_split` says that it went through `split_raw_contents`, and so has few fields.
    """
    most_bytes = MAX_DESCRIPTION_BYTES if is_split else MAX_UNUSUAL_BYTES
    if len(description) > most_bytes:
        raise InvalidRequest(
            f"the request takes {len(description)} bytes besides raw contents; at most {most_bytes} are allowed: "
            "send tensors in raw_input_contents"
        )


def append_raw_contents(description: bytes, field: int, raws: Sequence[bytes | memoryview]) -> bytes:
    """The serialized `description` with `raws` as the repeated bytes field of number `field`; copies each once."""
    parts: list[bytes | memoryview] = [description]
    for raw in raws:
        parts += (before_value(field, len(raw)), raw)
    return join(parts)


@lru_cache(_HEADS_KEPT)
def before_value(field: int, size_bytes: int) -> bytes:
    """The bytes before a value of `size_bytes` in the length-delimited field of number `field`."""
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(size_bytes)


def join(parts: Sequence[bytes | memoryview], within: int | None = None) -> bytes:
    """The parts joined into a message or, with `within`, into its length-delimited field of that number.

    Raises `InvalidRequest` if it would be too large.
    """
    size_bytes = sum(map(len, parts))
    if size_bytes > MAX_MESSAGE_BYTES:
        refuse_larger("the message", size_bytes)
    return b"".join(parts if within is None else (before_value(within, size_bytes), *parts))


def take_apart(data: bytes, field: int, id_field: int | None = None) -> tuple[bytes, Span, list[Span]] | None:
    """The message without its fields `field` and `id_field`, and the positions of their values.

    For `id_field` the position is that of the last one, (0, 0) if there is none; `field` may occur several times. None
    if the message is unlike the protocol's: few fields, all length-delimited.
    """
    kept: list[bytes] = []
    found, values = (0, 0), list[Span]()
    start = kept_from = 0
    try:
        for _ in range(_MAX_FIELDS):
            if start == len(data):
                kept.append(data[kept_from:])
                return b"".join(kept), found, values
            key, at = data[start], start + 1
            if key > 0x7F:
                key, at = _read_varint(data, start)
            length, at = data[at], at + 1
            if length > 0x7F:
                length, at = _read_varint(data, at - 1)
            number, end = key >> 3, at + length
            if key & 7 != _LENGTH_DELIMITED:
                return None
            if number in (field, id_field):
                if number == field:
                    values.append((at, end))
                else:
                    found = at, end
                kept.append(data[kept_from:start])
                kept_from = end
            start = end
    except IndexError:  # the last value does not end here
        return None
    return None


def split_raw_contents(data: bytes, field: int) -> tuple[bytes, list[memoryview]] | None:
    """The serialized message without the repeated bytes field of number `field`, and views of that field's values.

    None if that does not pay, or if the generated classes must parse, or refuse, the whole (`take_apart`).
    """
    taken = take_apart(data, field) if len(data) >= MIN_SPLIT_BYTES else None
    if taken is None:
        return None
    description, _, values = taken
    view = memoryview(data)
    return description, [view[start:end] for start, end in values]


def _varint(value: int) -> bytes:
    """Base-128 encoding: seven bits per byte, lowest first, the high bit set on all but the last."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and its end; beyond the end of `data` if there is no number of at most five bytes."""
    value = 0
    for index, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return 0, len(data) + 1
