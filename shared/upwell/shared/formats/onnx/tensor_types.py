"""ONNX's tensors in Upwell: element types, specifications, and strings, which are text in ONNX and bytes here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.tensors import DTYPES, Array, TensorSpec

DATATYPES: Mapping[str, str] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
"""Maps ONNX types, as ONNX Runtime writes them, to OIP datatypes."""

_MOST_BYTES = (1 << 31) - 1
"""Size up to which a row of a tensor fits into a message of protobuf; a file may declare any size."""

_ZIPMAP = (
    "; convert the model without ZipMap: `options={'zipmap': False}` of skl2onnx.to_onnx, `zipmap=False` of onnxmltools"
)


class UnsupportedTensor(Exception):
    """The model has an input or output that cannot be served; the text says which and why."""


class Argument(Protocol):
    """An input or output of an ONNX Runtime session; a variable dimension is a name or None."""

    @property
    def name(self) -> str:
        """The argument's name."""

    @property
    def type(self) -> str:
        """The type, such as `tensor(float)`."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """The dimensions."""


def spec_of(argument: Argument) -> TensorSpec:
    """The specification of an input or output. Raises `UnsupportedTensor` unless it is a tensor of a plain datatype
    that fits into a message."""
    datatype = DATATYPES.get(argument.type)
    if datatype is None:
        hint = _ZIPMAP if str(argument.type).startswith("seq(map(") else ""
        raise UnsupportedTensor(
            f"{argument.name!r} is {argument.type}; only tensors of plain datatypes are supported{hint}"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in argument.shape)
    row_bytes = math.prod(map(abs, shape)) * (DTYPES[datatype].itemsize if datatype in DTYPES else 1)
    if row_bytes > _MOST_BYTES:
        raise UnsupportedTensor(f"{argument.name!r} takes {row_bytes} bytes; at most {_MOST_BYTES} fit into a message")
    return TensorSpec(argument.name, datatype, shape)


def text_of(name: str, array: Array) -> Array:
    """The BYTES input `name` as `str` elements of the same shape. Raises `InvalidRequest` if it is not UTF-8."""
    try:
        return _per_element(bytes.decode, array)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"input {name!r} must be UTF-8 text: {error.reason}") from None


def bytes_of(array: Array) -> Array:
    """`str` elements as BYTES of the same shape."""
    return _per_element(str.encode, array)


def _per_element(function: Callable[[Any], Any], array: Array) -> Array:
    return np.fromiter(map(function, array.flat), dtype=np.object_, count=array.size).reshape(array.shape)
