"""Tensor values between numpy and JSON.

The number of values is checked against the shape before an array is made. Types are strict: no text for a number, no
fraction for an integer, no value out of the datatype's range.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.tensor_contents import count_elements
from upwell.shared.oip.http.replies import write_json
from upwell.shared.tensors import DTYPES, Array, oip_datatype

_INTEGER_KINDS = "iu"
_PIECE = 8192
"""Number of values written at once, which takes some milliseconds."""


class NamedNumber(float):
    """A NaN or an infinity that the JSON names (`NaN`, `Infinity`). A plain infinite `float` was a number that is too
    large to be read, such as `1e400`.
    """


def was_too_large(value: object) -> bool:
    """Whether a number of the JSON was too large to be read."""
    return type(value) is float and math.isinf(value)


def decode_json(name: str, datatype: str, shape: tuple[int, ...], data: object, *, is_base64: bool) -> Array:
    """The tensor with the values `data`: lists nested like the shape, or one flat list in row-major order.

    A BYTES element is a string, as UTF-8 or, with `is_base64`, as base64. Raises `InvalidRequest`.
    """
    elements = count_elements(name, datatype, shape)
    values = _flat(name, shape, elements, data)
    if datatype == "BYTES":
        array = np.empty(elements, dtype=np.object_)
        array[:] = [_bytes(name, value, is_base64) for value in values]
    elif datatype == "BOOL":
        _check_types(name, datatype, values, {bool})
        array = np.array(values, dtype=np.bool_)
    elif DTYPES[datatype].kind in _INTEGER_KINDS:
        array = _integers(name, datatype, values)
    else:
        array = _floats(name, datatype, values)
    return array.reshape(shape)


def _flat(name: str, shape: tuple[int, ...], elements: int, data: object) -> list[Any]:
    if not isinstance(data, list):
        raise InvalidRequest(f"tensor {name!r}: expected `data` to be a list of values")
    if not (data and isinstance(data[0], list)):
        if len(data) != elements:
            raise InvalidRequest(f"tensor {name!r} of shape {list(shape)} takes {elements} elements, got {len(data)}")
        return data
    rows: list[Any] = [data]
    for size in shape:
        if not all(isinstance(row, list) and len(row) == size for row in rows):
            raise InvalidRequest(f"tensor {name!r}: the lists in `data` are not nested like the shape {list(shape)}")
        rows = list(itertools.chain.from_iterable(rows))
    return rows


def _check_types(name: str, datatype: str, values: list[Any], allowed: set[type]) -> None:
    wrong = {float if kind is NamedNumber else kind for kind in set(map(type, values))} - allowed
    if wrong:
        expected = " or ".join(sorted(kind.__name__ for kind in allowed))
        raise InvalidRequest(f"tensor {name!r}: expected {expected} as {datatype} elements, got {wrong.pop().__name__}")


def _integers(name: str, datatype: str, values: list[Any]) -> Array:
    _check_types(name, datatype, values, {int})
    limits = np.iinfo(DTYPES[datatype])
    for value in (min(values), max(values)) if values else ():
        if not limits.min <= value <= limits.max:
            # The number is not shown, since it may have thousands of digits.
            raise InvalidRequest(f"tensor {name!r}: {datatype} values must be in {limits.min}..{limits.max}")
    return np.array(values, dtype=DTYPES[datatype])


def _floats(name: str, datatype: str, values: list[Any]) -> Array:
    _check_types(name, datatype, values, {int, float})
    too_large = f"tensor {name!r}: a value is too large for {datatype}"
    try:
        wide = np.array(values, dtype=np.float64)
    except OverflowError:
        raise InvalidRequest(too_large) from None
    with np.errstate(over="ignore"):
        array: Array = wide.astype(DTYPES[datatype])
    is_infinite = np.isinf(wide)
    if (np.isinf(array) != is_infinite).any() or (is_infinite.any() and any(map(was_too_large, values))):
        raise InvalidRequest(too_large)
    return array


def _bytes(name: str, value: object, is_base64: bool) -> bytes:
    if not isinstance(value, str):
        raise InvalidRequest(f"tensor {name!r}: expected strings as BYTES elements, got {type(value).__name__}")
    try:
        return base64.b64decode(value, validate=True) if is_base64 else value.encode()
    except (binascii.Error, ValueError):
        what = "base64" if is_base64 else "Unicode text"
        raise InvalidRequest(f"tensor {name!r}: an element cannot be read as {what}") from None


def encode_json(array: Array) -> tuple[str, list[Any], bool]:
    """Datatype, values in row-major order, and whether they are base64: BYTES of which one is not UTF-8 text.

    NaN and infinities become null, as JSON lacks them and browsers write null. Raises `InvalidRequest` for a dtype that
    the protocol lacks.
    """
    datatype = oip_datatype(array.dtype)
    if datatype == "BYTES":
        return (datatype, *_texts(array))
    if array.dtype.kind in _INTEGER_KINDS or datatype == "BOOL":
        return datatype, array.ravel().tolist(), False
    wide = array.astype(np.float64).ravel()
    finite = np.isfinite(wide)
    values = wide.tolist()
    if not finite.all():
        values = [value if fine else None for value, fine in zip(values, finite.tolist(), strict=True)]
    return datatype, values, False


def write_values(array: Array) -> tuple[str, Iterator[bytes], bool]:
    """As `encode_json`, but the values are text, without the list's brackets, in pieces that are made one by one.

    So an answer that turns out too large costs no more than one that may be sent, and other threads run between two
    pieces: the encoder does not let go of the interpreter's lock.
    """
    datatype, is_base64 = oip_datatype(array.dtype), False
    if datatype == "BYTES":  # whole, since one element decides how all are written
        values, is_base64 = _texts(array)
        pieces = (values[start : start + _PIECE] for start in range(0, len(values), _PIECE))
    else:
        flat = array.ravel()
        pieces = (encode_json(flat[start : start + _PIECE])[1] for start in range(0, flat.size, _PIECE))
    texts = (write_json(piece)[1:-1] for piece in pieces)
    return datatype, (b"," + text if index else text for index, text in enumerate(texts)), is_base64


def _texts(array: Array) -> tuple[list[Any], bool]:
    elements = [one.encode() if isinstance(one, str) else bytes(one) for one in array.ravel().tolist()]
    try:
        return [one.decode() for one in elements], False
    except UnicodeDecodeError:
        return [base64.b64encode(one).decode() for one in elements], True
