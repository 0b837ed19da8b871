"""Tensors in Upwell: numpy arrays, their Open Inference Protocol datatypes and their specifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from upwell.shared.errors import InvalidRequest
from upwell.shared.value_classes import value_class

try:
    import ml_dtypes
except ImportError:
    _BF16: dict[str, np.dtype[Any]] = {}
else:
    _BF16 = {"BF16": np.dtype(ml_dtypes.bfloat16)}

Array: TypeAlias = npt.NDArray[Any]
"""A tensor. BF16 is `ml_dtypes.bfloat16`; BYTES is dtype `object` with `bytes` elements."""


@value_class
class TensorSpec:
    """Name, OIP datatype (`FP32`, `BYTES`, ...) and shape of a tensor; -1 is a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    **_BF16,
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
"""The numpy dtype of each OIP datatype (native byte order). BF16 needs the package ml-dtypes."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The numpy dtype of an OIP datatype. Raises `InvalidRequest`, which lists the known ones."""
    try:
        return DTYPES[datatype]
    except KeyError:
        if datatype == "BF16":
            raise InvalidRequest("BF16 tensors need an extra: pip install 'upwell[bf16]'") from None
        raise InvalidRequest(f"unknown datatype {datatype!r}; expected one of {', '.join(DTYPES)}") from None


def oip_datatype(dtype: np.dtype[Any]) -> str:
    """The OIP datatype of a numpy dtype. `S` and `U` arrays count as BYTES. Raises `InvalidRequest`."""
    name = _NAMES.get(dtype)
    if name is not None:
        return name
    if dtype.kind in "SU":
        return "BYTES"
    try:
        return _NAMES[dtype.newbyteorder("=")]
    except KeyError:
        raise InvalidRequest(f"numpy dtype {dtype} has no Open Inference Protocol datatype") from None


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds floating-point numbers. BF16 does, though numpy's kind for it is not `f`."""
    return dtype.kind == "f" or _NAMES.get(dtype) == "BF16"
