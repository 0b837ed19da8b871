"""The steps before a model: from the inputs that callers send to its tensors. Pure numpy; the same code runs on both
sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.mel_spectrogram import mel_step
from upwell.shared.signature.model_yaml import (
    Columns,
    Crop,
    Decode,
    Layout,
    Mel,
    Normalize,
    PreOp,
    Quantize,
    Rename,
    Resize,
    Tokenize,
)
from upwell.shared.signature.picture_transforms import crop, decode_pictures, decode_resized, pictures_of, resize
from upwell.shared.signature.step_values import (
    Geometry,
    Step,
    Value,
    ValueType,
    one_array,
    rename,
    require_floats,
    require_numbers,
)
from upwell.shared.signature.tabular_records import columns_step
from upwell.shared.signature.tokenization import tokenize_step
from upwell.shared.tensors import Array, numpy_dtype


def pre_step(written: PreOp, source: str, value: ValueType) -> Step:
    """The step for one entry of `pre`, which reads the value `source`.

    Raises `ValueError` if the value's type does not fit.
    """
    op = written.op
    if isinstance(op, Rename):
        return rename(source, op.target, value)
    if isinstance(op, Decode):
        return _decode_step(op, source, value)
    if isinstance(op, Tokenize):
        return tokenize_step(op, source, value)
    if isinstance(op, Columns):
        return columns_step(op, source, value)
    if isinstance(op, Mel):
        return mel_step(op, source, value)
    if isinstance(op, (Resize, Crop)):
        return _picture_step(op, source, value)
    target = op.target or source
    if isinstance(op, Layout):
        return _layout_step(op, source, target, value)
    if isinstance(op, Quantize):
        require_floats(value, source, "normalize")
        return one_array(source, target, value.become(op.dtype), lambda array: quantize(array, op))
    return _normalize_step(op, source, target, value)


_LAST = 3


def together(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps with fusible pairs merged: `decode` and the `resize` of its result, and `normalize` and the
    `layout` that makes it NCHW."""
    done: list[Step] = []
    for step in steps:
        before = done[-1] if done else step
        follows = tuple(before.writes) == step.reads == tuple(step.writes)  # no other step can see the value in between
        made = _one_pass(before, step) if done and follows else None
        if made is None:
            done.append(step)
        else:
            done[-1] = made
    return tuple(done)


def _one_pass(before: Step, step: Step) -> Step | None:
    first, second = before.op, step.op
    if isinstance(first, Decode) and isinstance(second, Resize):
        pictures = lambda values, _: (decode_resized(values[0], first, second),)  # noqa: E731  as short as it is
        return Step(before.reads, step.writes, pictures, makes_pictures=True, op=(first, second))
    if isinstance(first, Normalize) and isinstance(second, Layout) and second.order == "NCHW":
        ((target, kind),) = step.writes.items()
        return one_array(before.reads[0], target, kind, lambda array: planes(array, first))
    return None


def planes(array: Array, op: Normalize) -> Array:
    """`normalize` of [rows, height, width, channels] into [rows, channels, height, width], contiguous."""
    turned = array.transpose(0, 3, 1, 2)
    result = np.empty(turned.shape, np.float32)
    np.multiply(turned, np.float32(op.scale), out=result, dtype=np.float32, casting="unsafe")
    return _shifted(result, op, 1)


def _decode_step(op: Decode, source: str, value: ValueType) -> Step:
    pixels = value.datatype == "UINT8" and len(value.shape) == 4 and value.shape[3] in (1, 3)
    if not pixels and not (value.datatype == "BYTES" and len(value.shape) == 1):
        raise ValueError(f"expected encoded pictures, BYTES [rows], or pixels in {source!r}, got {value}")
    size = value.shape[1:3] if pixels else (-1, -1)
    kind = ValueType("UINT8", (value.shape[0], *size, 3 if op.color == "rgb" else 1), channels=3)

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value]:
        return (decode_pictures(values[0], op.color, op.max_pixels),)

    return Step((source,), {op.target or source: kind}, run, makes_pictures=True, op=op)


def _picture_step(op: Resize | Crop, source: str, value: ValueType) -> Step:
    if value.datatype == "BYTES":
        raise ValueError(f"the pictures in {source!r} are encoded; write {{decode: {source}}} before this step")
    if value.datatype != "UINT8" or len(value.shape) != 4 or value.shape[3] not in (1, 3):
        raise ValueError(f"expected pictures, UINT8 [rows, height, width, 1 or 3], in {source!r}, got {value}")
    if isinstance(op, Crop) and any(0 <= old < new for old, new in zip(value.shape[1:3], op.to, strict=True)):
        raise ValueError(f"cannot crop {list(value.shape[1:3])} to the larger size {list(op.to)}")
    kind = ValueType("UINT8", (value.shape[0], *op.to, value.shape[3]), channels=3)

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value]:
        pictures = pictures_of(values[0])
        return (resize(pictures, op) if isinstance(op, Resize) else crop(pictures, op),)

    return Step((source,), {source: kind}, run, makes_pictures=True, op=op)


def _layout_step(op: Layout, source: str, target: str, value: ValueType) -> Step:
    require_numbers(value, source)
    if len(value.shape) != 4:
        raise ValueError(f"expected rank 4 in {source!r}, got {value}")
    wanted = 1 if op.order == "NCHW" else 3
    if value.channels == wanted:
        return rename(source, target, value)
    rows, a, b, c = value.shape
    shape = (rows, c, a, b) if wanted == 1 else (rows, b, c, a)
    kind = replace(value, shape=shape, channels=wanted)
    return replace(one_array(source, target, kind, lambda array: transpose(array, op.order)), op=op)


def _normalize_step(op: Normalize, source: str, target: str, value: ValueType) -> Step:
    require_numbers(value, source)
    axis = len(value.shape) - 1 if value.channels is None else value.channels
    for key, numbers in (("mean", op.mean), ("std", op.std)):
        size = value.shape[axis] if value.shape else 1
        if isinstance(numbers, tuple) and size >= 0 and len(numbers) != size:
            raise ValueError(f"{key} has {len(numbers)} numbers for {size} channels")
    made = value.become(op.dtype)
    step = one_array(source, target, made, lambda array: normalize(array, op, axis))
    return replace(step, op=op) if value.channels == axis == _LAST else step


def normalize(array: Array, op: Normalize, axis: int) -> Array:
    """(x * scale - mean) / std; mean and std have one number, or one per channel along `axis`.

    Raises `InvalidRequest` if the number of channels differs.
    """
    result = array.astype(np.float32)
    result *= np.float32(op.scale)
    return _shifted(result, op, axis)


def _shifted(result: Array, op: Normalize, axis: int) -> Array:
    """(result - mean) / std, in place where it stays FP32. What is too large for FP16 becomes infinite."""
    if op.mean != 0.0:
        result -= _along(op.mean, result.shape, axis)
    if op.std != 1.0:
        result /= _along(op.std, result.shape, axis)
    with np.errstate(over="ignore"):
        return result.astype(numpy_dtype(op.dtype), copy=False)


def _along(numbers: float | tuple[float, ...], shape: tuple[int, ...], axis: int) -> Array:
    array = np.asarray(numbers, dtype=np.float32)
    if array.ndim == 0:
        return array
    if array.size != shape[axis]:
        raise InvalidRequest(f"expected {array.size} channels to normalize, got {list(shape)}")
    return array.reshape([-1 if index == axis else 1 for index in range(len(shape))])


def quantize(array: Array, op: Quantize) -> Array:
    """round(x / scale) + zero_point, half to even, clipped to the dtype. Raises `InvalidRequest` for NaN."""
    dtype = numpy_dtype(op.dtype)
    with np.errstate(over="ignore"):  # values too large for FP32 become infinite, which is clipped
        steps = np.rint(array.astype(np.float32) / np.float32(op.scale)) + np.float32(op.zero_point)
    if np.isnan(steps).any():
        raise InvalidRequest(f"the input contains NaN, which cannot be quantized to {op.dtype}")
    limits = np.iinfo(dtype)
    clipped: Array = np.clip(steps, limits.min, limits.max).astype(dtype)
    return clipped


def transpose(array: Array, order: Literal["NCHW", "NHWC"]) -> Array:
    """Rank 4 in the layout `order`, from the other one, contiguous."""
    return np.ascontiguousarray(array.transpose((0, 3, 1, 2) if order == "NCHW" else (0, 2, 3, 1)))
