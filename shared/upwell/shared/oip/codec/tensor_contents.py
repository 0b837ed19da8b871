"""Tensor contents between numpy and messages: raw bytes, in and out without the generated classes, and typed lists.

Raw contents are the elements in row-major order, little-endian; a BYTES element is a 4-byte length and that many bytes.
Sizes are computed with Python integers and checked before any memory is allocated.

A request with one picture is a few dozen bytes of description and half a megabyte of raw contents, which the generated
classes copy two or three times each way. A protobuf message is a sequence of fields in any order, each a key (field
number and wire type) and a value; so raw contents can be appended to a serialized description, and cut out again before
the rest is parsed. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

import numpy as np

from upwell.shared.errors import InvalidRequest, NotOffered
from upwell.shared.tensors import DTYPES, Array, numpy_dtype, oip_datatype

MAX_DIMENSIONS = 32
"""numpy 1's limit, which also bounds the cost of a hostile shape."""

MAX_BYTES_ELEMENTS = 1 << 18
"""Maximum number of BYTES elements: as Python objects, so many take tens of megabytes."""

MAX_ID_CHARACTERS = 1000
"""Maximum length of a request's ID, which appears in its answer, in logs and in traces."""

_UNSUPPORTED: Mapping[str, str] = {
    "shared_memory_region": "send plain contents; on the same machine, over a unix socket"
}
"""Unsupported parameters of tensors, with the alternative. Ignoring them would give a wrong answer."""

_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")

_LARGEST_BYTES = 2**63 - 1
SMALL_BYTES = 4096
"""Size below which a copy costs less than a view (bytes)."""
_LENGTH = struct.Struct("<I")

PLAIN = MappingProxyType({name: dtype for name, dtype in DTYPES.items() if name not in ("BYTES", "BOOL")})
"""Datatypes for which any bytes are valid elements."""

TYPED_FIELDS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The field of `InferTensorContents` for each datatype. FP16 and BF16 have none: raw contents only."""


def count_elements(name: str, datatype: str, shape: tuple[int, ...]) -> int:
    """The number of elements in a shape. Raises `InvalidRequest` for shapes that no array can have."""
    if len(shape) > MAX_DIMENSIONS:
        refuse_dimensions(name, len(shape))
    if min(shape, default=0) < 0:
        raise InvalidRequest(f"tensor {name!r} has the shape {list(shape)}; a dimension cannot be negative")
    elements = math.prod(shape)
    if datatype == "BYTES" and elements > MAX_BYTES_ELEMENTS:
        raise InvalidRequest(f"tensor {name!r} has {elements} BYTES elements; at most {MAX_BYTES_ELEMENTS} are allowed")
    # An empty dimension does not make the others harmless: numpy refuses [0, 2**40, 2**40] too.
    extent = elements or math.prod(size for size in shape if size)
    if extent * numpy_dtype(datatype).itemsize > _LARGEST_BYTES:
        raise InvalidRequest(f"tensor {name!r} has the shape {list(shape)}, more than can be addressed")
    return elements


def refuse_long_id(request_id: str) -> None:
    """Raise `InvalidRequest` for an ID that is too long."""
    if len(request_id) > MAX_ID_CHARACTERS:
        raise InvalidRequest(f"the id has {len(request_id)} characters; at most {MAX_ID_CHARACTERS} are allowed")


def refuse_unsupported(name: str, parameters: Iterable[str]) -> None:
    """Raise `NotOffered` if a tensor has an unsupported parameter that would change its contents."""
    for key in parameters:
        if key in _UNSUPPORTED:
            raise NotOffered(f"tensor {name!r}: the parameter {key!r} is not supported here; {_UNSUPPORTED[key]}")


def refuse_sequence(parameters: Mapping[str, object]) -> None:
    """Raise `NotOffered` for a request in a sequence: no state is kept between requests."""
    for key in _SEQUENCES:
        if parameters.get(key):
            raise NotOffered(
                f"the parameter {key!r} is not supported here, where no model keeps a state between requests; send "
                "each request with the state as inputs and outputs of the model"
            )


def refuse_dimensions(name: str, count: int) -> NoReturn:
    """Raise `InvalidRequest` for a tensor with too many dimensions."""
    raise InvalidRequest(f"tensor {name!r} has {count} dimensions; at most {MAX_DIMENSIONS} are allowed")


def decode_raw(name: str, datatype: str, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """The tensor with the raw contents `data`: a read-only view, copied only for BYTES and if not aligned.

    Raises `InvalidRequest` if the size or, for BYTES and BOOL, the contents do not fit.
    """
    elements = count_elements(name, datatype, shape)
    if datatype == "BYTES":
        return _object_array(_split_bytes(name, elements, data), shape)
    dtype = numpy_dtype(datatype)
    expected_bytes = elements * dtype.itemsize
    if len(data) != expected_bytes:
        what = f"{datatype} of shape {list(shape)}"
        raise InvalidRequest(f"tensor {name!r} ({what}) takes {expected_bytes} bytes of raw contents, got {len(data)}")
    if datatype == "BOOL" and elements and np.frombuffer(data, np.uint8).max() > 1:
        raise InvalidRequest(f"tensor {name!r}: expected bytes of 0 or 1 as BOOL elements, got another value")
    array = np.frombuffer(data, dtype)
    # Runtimes use the address as it is, and not every processor can read from an unaligned one.
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def _split_bytes(name: str, elements: int, data: bytes | memoryview) -> list[bytes]:
    """The elements of a raw BYTES tensor, which must fill `data` exactly."""
    if elements * _LENGTH.size > len(data):
        least = elements * _LENGTH.size
        raise InvalidRequest(
            f"tensor {name!r}: {elements} BYTES elements take at least {least} bytes of raw contents, got {len(data)}"
        )
    found: list[bytes] = []
    at = 0
    for index in range(elements):
        start = at + _LENGTH.size
        size = _LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0
        if start + size > len(data):
            raise InvalidRequest(
                f"tensor {name!r}: raw contents end inside element {index} of {elements}: "
                f"expected {start + size} bytes so far, got {len(data)}"
            )
        at = start + size
        found.append(bytes(data[start:at]))
    if at != len(data):
        raise InvalidRequest(f"tensor {name!r}: {elements} BYTES elements take {at} bytes, got {len(data)}")
    return found


def decode_typed(name: str, datatype: str, shape: tuple[int, ...], fields: Mapping[str, Sequence[Any]]) -> Array:
    """The tensor with the values in `fields`, the non-empty lists of `InferTensorContents` by name.

    Raises `InvalidRequest` for a wrong field, a wrong count, a value out of range, or a datatype without a typed form.
    """
    elements = count_elements(name, datatype, shape)
    field = TYPED_FIELDS.get(datatype)
    wrong = [given for given in fields if given != field]
    if field is None and (wrong or elements):
        raise InvalidRequest(f"tensor {name!r}: {datatype} has no typed form; send it in raw_input_contents")
    if wrong:
        raise InvalidRequest(f"tensor {name!r}: {datatype} values belong in {field}, got {', '.join(wrong)}")
    values = fields.get(field or "", ())
    if len(values) != elements:
        raise InvalidRequest(f"tensor {name!r} of shape {list(shape)} takes {elements} elements, got {len(values)}")
    if datatype == "BYTES":
        return _object_array(values, shape)
    return _narrow(name, datatype, values).reshape(shape)


def _narrow(name: str, datatype: str, values: Sequence[Any]) -> Array:
    """The values as an array of the datatype. 8- and 16-bit types are sent as 32 bits, so values may not fit."""
    dtype = DTYPES[datatype]
    if dtype.kind not in "iu" or dtype.itemsize >= 4 or not len(values):
        return np.array(values, dtype=dtype)
    wide = np.array(values, dtype=np.int64)
    low, high = int(wide.min()), int(wide.max())
    limits = np.iinfo(dtype)
    if low < limits.min or high > limits.max:
        raise InvalidRequest(
            f"tensor {name!r}: {datatype} values must be in {limits.min}..{limits.max}, got "
            f"{low if low < limits.min else high}"
        )
    return wide.astype(dtype)


def _object_array(elements: Sequence[bytes], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)


def encode_raw(name: str, array: Array) -> tuple[str, bytes | memoryview]:
    """Datatype and raw contents of a tensor, as a view if it is contiguous in row-major order.

    `str` elements are sent as UTF-8. Raises `InvalidRequest` for a dtype that the protocol lacks.
    """
    datatype = oip_datatype(array.dtype)
    if datatype == "BYTES":
        return datatype, _join_bytes(name, array)
    if array.nbytes <= SMALL_BYTES and array.dtype == DTYPES[datatype]:
        return datatype, array.tobytes()
    # The dtype may have the other byte order, which the protocol lacks.
    packed = np.ascontiguousarray(array, dtype=DTYPES[datatype])
    return datatype, packed.reshape(-1).view(np.uint8).data if packed.size else b""


def _join_bytes(name: str, array: Array) -> bytes:
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        try:
            data = element.encode() if isinstance(element, str) else element
        except UnicodeEncodeError:
            raise InvalidRequest(f"tensor {name!r}: expected Unicode text, got half a surrogate pair") from None
        if not isinstance(data, bytes):
            kind = type(element).__name__
            raise InvalidRequest(f"tensor {name!r}: expected bytes or str as elements of a BYTES tensor, got {kind}")
        parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


Span: TypeAlias = "tuple[int, int]"
"""The start and end of a value in a message."""

MAX_MESSAGE_BYTES = 2**31 - 1
"""Maximum size of a message in protobuf (bytes)."""

DEFAULT_MAX_MESSAGE_BYTES = 64 << 20
"""Default limit of a message (bytes); gRPC's 4 MiB is too small for a batch of pictures."""

MIN_SPLIT_BYTES = 64 << 10
"""Size below which copying costs less than taking a message apart here (bytes)."""

MAX_DESCRIPTION_BYTES = 4 << 20
"""Maximum bytes of a message besides raw contents. Typed value lists take thirty times their size when parsed."""

MAX_UNUSUAL_BYTES = 1 << 20
"""Maximum size of a message that is not taken apart here, which may have a million tiny fields (bytes)."""

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


def refuse_costly(what: str, size_bytes: int, *, is_split: bool) -> None:
    """Raise `InvalidRequest` for a part of a message that would cost far more to parse than to send.

    `is_split` says that the message went through `split_raw_contents`, and so has few fields.
    """
    most_bytes = MAX_DESCRIPTION_BYTES if is_split else MAX_UNUSUAL_BYTES
    if size_bytes > most_bytes:
        raise InvalidRequest(
            f"the {what} takes {size_bytes} bytes besides raw contents; at most {most_bytes} are allowed: "
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

    For `id_field`, which may occur once, the position is (0, 0) if there is none; `field` may occur several times.
    None if the message is unlike the protocol's: few fields, all length-delimited.
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
                elif found == (0, 0):
                    found = at, end
                else:  # all but the last one would count as known bytes, and be remembered
                    return None
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
