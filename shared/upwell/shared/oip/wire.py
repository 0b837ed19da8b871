"""Raw tensor contents in and out of a serialized message, past the generated classes.

A request of one picture is a few dozen bytes of description and half a megabyte of raw contents, which the
generated classes copy two or three times each way. In protobuf's encoding a message is its fields one after
another in any order, each a key (field number and wire type) and its value; so the raw contents can be put
behind a serialized description, and taken out again before the rest is parsed.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence

from upwell.shared.errors import InvalidRequest

MAX_MESSAGE_BYTES = 2**31 - 1
"""protobuf reads no larger message."""

MIN_SPLIT_BYTES = 64 << 10
"""Below this size, copying costs less than taking the message apart here."""

_LENGTH_DELIMITED = 2
_MAX_FIELDS = 256
_MAX_VARINT_BYTES = 5


def refuse_larger(what: str, size_bytes: int) -> None:
    """Raise `InvalidRequest` if `size_bytes` is more than a message holds."""
    if size_bytes > MAX_MESSAGE_BYTES:
        raise InvalidRequest(f"{what} would take {size_bytes} bytes; a message holds at most {MAX_MESSAGE_BYTES}")


def append_raw_contents(description: bytes, field: int, raws: Sequence[bytes | memoryview]) -> bytes:
    """The serialized `description` with `raws` as the repeated bytes field of number `field`; one copy of each."""
    parts: list[bytes | memoryview] = [description]
    key = _varint(field << 3 | _LENGTH_DELIMITED)
    for raw in raws:
        parts += (key, _varint(len(raw)), raw)
    refuse_larger("the message", sum(len(part) for part in parts))
    return b"".join(parts)


def split_raw_contents(data: bytes, field: int) -> tuple[bytes, list[memoryview]] | None:
    """The serialized message without the repeated bytes field of number `field`, and views of that field's values.

    None where that is not worth while, or `data` is not as plain as the messages of the protocol are:
    length-delimited fields only, and few of them. Then the generated classes must read the whole, or refuse it.
    """
    if len(data) < MIN_SPLIT_BYTES:
        return None
    view = memoryview(data)
    kept: list[memoryview] = []
    raws: list[memoryview] = []
    start = 0
    for _ in range(_MAX_FIELDS):
        key, at = _read_varint(data, start)
        size_bytes, at = _read_varint(data, at)
        end = at + size_bytes
        if key & 7 != _LENGTH_DELIMITED or end > len(data):
            return None
        if key >> 3 == field:
            raws.append(view[at:end])
        else:
            kept.append(view[start:end])
        if end == len(data):
            return b"".join(kept), raws
        start = end
    return None


def _varint(value: int) -> bytes:
    """Base-128 encoding: seven bits a byte, lowest first, the high bit set on all but the last."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends; beyond the end of `data` where there is none of five bytes at most."""
    value = 0
    for index, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return 0, len(data) + 1
