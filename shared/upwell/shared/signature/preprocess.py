"""The steps before a model: from the inputs that callers send to its tensors.

Pure numpy; the same code runs on both sides.

Mel spectrograms: for each frame x of `n_fft` samples, `hop` apart and times a periodic Hann window, the power is |FFT
x|², and a mel band is the sum of powers weighted by its triangle. Band edges are evenly spaced on the mel scale of
Slaney's Auditory Toolbox (1998: linear below 1 kHz, then 27 steps per factor of 6.4), with triangles of area 1, or of
HTK (2595 log₁₀(1 + f/700)), with triangles of height 1. With `pad` frames are centred, and the ends padded with zeros
or mirrored.

Records: a column is a number (true and false are 1 and 0) or, if it has categories, the number of its category, or with
`one_hot` a vector of zeros with a 1 at that number. Absent values, null and unknown categories are missing: the step's
`missing` replaces them, and without it the request is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.files import parse_json
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
from upwell.shared.signature.signature import Column
from upwell.shared.signature.step_values import (
    Floats,
    Geometry,
    Step,
    Value,
    ValueType,
    array_of,
    one_array,
    rename,
    require_floats,
    require_numbers,
)
from upwell.shared.signature.tokenization import tokenize_step
from upwell.shared.tensors import Array, numpy_dtype

MAX_WORK = 1 << 23
"""Maximum samples in the frames of one row, counting overlaps repeatedly."""

_LINEAR_HZ, _PER_LINEAR = 1000.0, 3 / 200
_STEP = math.log(6.4) / 27
_LAST = 3


def mel_step(op: Mel, source: str, value: ValueType) -> Step:
    """The step for sound, FP32 [rows, samples] -> [rows, mels, frames], or as `axes` and `channel` say.

    Raises `ValueError`.
    """
    require_floats(value, source, "normalize")
    if len(value.shape) != 2:
        raise ValueError(f"expected sound, [rows, samples], in {source!r}, got {value}")
    high = op.high or op.sample_rate / 2
    if not op.low < high <= op.sample_rate / 2:
        raise ValueError(f"expected low < high <= {op.sample_rate / 2:g} Hz, got {op.low:g} and {high:g}")
    filters, window = mel_filters(op, high), _hann(op.n_fft)
    frames = _frames(op, value.shape[1]) if value.shape[1] >= 0 else -1
    if value.shape[1] >= 0 and frames < 1:
        raise ValueError(f"{value.shape[1]} samples are less than one frame of {op.n_fft}")
    sizes = (op.mels, frames) if op.axes == "MT" else (frames, op.mels)
    shape = (value.shape[0], *((1,) if op.channel else ()), *sizes)

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value]:
        sound = array_of(values[0])
        count = _frames(op, sound.shape[1])
        if count < 1 or count * op.n_fft > MAX_WORK:
            raise InvalidRequest(f"a row of {sound.shape[1]} samples makes {count} frames of {op.n_fft}")
        bands = np.stack([_bands(op, row.astype(np.float64), filters, window) for row in sound])
        turned = bands if op.axes == "MT" else bands.transpose(0, 2, 1)
        return (np.ascontiguousarray(turned[:, None] if op.channel else turned, np.float32),)

    return Step((source,), {op.target or source: ValueType("FP32", shape)}, run)


def mel_filters(op: Mel, high: float) -> Floats:
    """The triangles of the bands, FP64 [mels, 1 + n_fft / 2]."""
    to_mel, to_hz = (_slaney_mel, _slaney_hz) if op.scale == "slaney" else (_htk_mel, _htk_hz)
    edges = to_hz(np.linspace(to_mel(np.float64(op.low)), to_mel(np.float64(high)), op.mels + 2))
    frequencies = np.fft.rfftfreq(op.n_fft, 1 / op.sample_rate)
    rising = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    return filters * (2 / (edges[2:] - edges[:-2]))[:, None] if op.scale == "slaney" else filters


def _bands(op: Mel, sound: Floats, filters: Floats, window: Floats) -> Floats:
    if op.pad != "none":
        sound = np.pad(sound, op.n_fft // 2, "constant" if op.pad == "zeros" else "reflect")
    frames = np.lib.stride_tricks.sliding_window_view(sound, op.n_fft)[:: op.hop] * window
    bands: Floats = filters @ (np.abs(np.fft.rfft(frames)) ** 2).T
    if op.log == "none":
        return bands
    logarithms: Floats = np.log(np.maximum(bands, op.floor))
    return logarithms if op.log == "ln" else logarithms * (10 / math.log(10))


def _frames(op: Mel, samples: int) -> int:
    if op.pad == "reflect" and samples <= op.n_fft // 2:
        return 0  # too short to mirror
    whole = samples + (0 if op.pad == "none" else op.n_fft // 2 * 2)
    return (whole - op.n_fft) // op.hop + 1 if samples and whole >= op.n_fft else 0


def _hann(size: int) -> Floats:
    window: Floats = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return window


def _slaney_mel(hz: Floats) -> Floats:
    linear = hz * _PER_LINEAR
    beyond = _LINEAR_HZ * _PER_LINEAR + np.log(np.maximum(hz, _LINEAR_HZ) / _LINEAR_HZ) / _STEP
    return np.where(hz < _LINEAR_HZ, linear, beyond)


def _slaney_hz(mel: Floats) -> Floats:
    border = _LINEAR_HZ * _PER_LINEAR
    return np.where(mel < border, mel / _PER_LINEAR, _LINEAR_HZ * np.exp(_STEP * (np.maximum(mel, border) - border)))


def _htk_mel(hz: Floats) -> Floats:
    return np.asarray(2595 * np.log10(1 + hz / 700))


def _htk_hz(mel: Floats) -> Floats:
    return np.asarray(700 * (10 ** (mel / 2595) - 1))


def columns_step(op: Columns, source: str, value: ValueType) -> Step:
    """The step for records, BYTES [rows] -> numbers [rows, width]. Raises `ValueError`."""
    known = {column.name: column for column in value.columns}
    if not known:
        raise ValueError(f"expected an input of kind record in {source!r}, got {value}")
    for name in (*op.columns, *op.missing, *op.one_hot):
        if name not in known:
            raise ValueError(f"the record has no column {name!r}; it has {', '.join(known)}")
    for name in op.one_hot:
        if not known[name].categories:
            raise ValueError(f"one_hot needs categories, but column {name!r} has none in the signature")
        count = len(known[name].categories)
        if op.missing.get(name, -1) >= count:  # it would mark the next column
            raise ValueError(f"{name!r} has {count} categories, numbered from 0; `missing` may be one of them or -1")
    chosen = [known[name] for name in op.columns or known]
    table = _Table(op, chosen, frozenset(known))
    kind = ValueType(op.dtype, (value.shape[0], table.width))

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value]:
        return (table(array_of(values[0])),)

    return Step((source,), {op.target or source: kind}, run)


class _Table:
    """The columns in the form that a model takes."""

    def __init__(self, op: Columns, columns: Sequence[Column], known: frozenset[str]) -> None:
        self._op = op
        self._columns = columns
        self._known = known
        self._numbers = {one.name: {name: at for at, name in enumerate(one.categories)} for one in columns}
        self._widths = [len(one.categories) if one.name in op.one_hot else 1 for one in columns]
        self.width = sum(self._widths)

    def __call__(self, records: Array) -> Array:
        """[rows, width]. Raises `InvalidRequest` that names row and column."""
        size_bytes = sum(map(len, records))
        if size_bytes > self._op.max_bytes:
            raise InvalidRequest(
                f"the records of one request have {size_bytes} bytes; at most {self._op.max_bytes} are allowed"
            )
        made = np.zeros((len(records), self.width), numpy_dtype(self._op.dtype))
        for row, record in enumerate(records):
            given, start = self._read(record, row), 0
            for column, width in zip(self._columns, self._widths, strict=True):
                number = self._number(given.get(column.name), column, row)
                if column.name not in self._op.one_hot:
                    made[row, start] = number
                elif number is not None and number >= 0:  # a missing value sets none of them
                    made[row, start + int(number)] = 1
                start += width
        return made

    def _read(self, record: bytes, row: int) -> Mapping[str, Any]:
        try:
            given = parse_json(bytes(record))
        except ValueError as error:
            raise InvalidRequest(f"record {row} is not JSON: {error}") from None
        if not isinstance(given, dict):
            example = ", ".join(f'"{one.name}": …' for one in self._columns[:3])
            raise InvalidRequest(f"record {row} is not a JSON object; expected one such as {{{example}}}")
        unknown = sorted(set(given) - self._known)
        if unknown:
            known = ", ".join(sorted(self._known))
            raise InvalidRequest(f"record {row} has the unknown column {unknown[0]!r}; expected columns: {known}")
        return given

    def _number(self, value: Any, column: Column, row: int) -> float | None:
        if column.categories:
            if isinstance(value, str) and value in self._numbers[column.name]:
                return self._numbers[column.name][value]
            if value is not None and not isinstance(value, str):
                raise InvalidRequest(f"record {row}: {column.name} is {value!r:.40}; expected a string")
        elif isinstance(value, (int, float)) and not _is_nan(value):
            return self._fitting(value, column.name, row)
        elif value is not None and not _is_nan(value):
            raise InvalidRequest(f"record {row}: {column.name} is {value!r:.40}; expected a number")
        if column.name in self._op.one_hot:
            return self._op.missing.get(column.name, -1.0)
        if column.name not in self._op.missing:
            known = f", or one of {', '.join(column.categories[:5])}" if column.categories else ""
            raise InvalidRequest(f"record {row} lacks {column.name}; expected a value{known}")
        return self._op.missing[column.name]

    def _fitting(self, value: float, name: str, row: int) -> float:
        dtype = numpy_dtype(self._op.dtype)
        limits: Any = np.iinfo(dtype) if dtype.kind == "i" else np.finfo(dtype)
        low, high = (int(limits.min), int(limits.max)) if dtype.kind == "i" else (float(limits.min), float(limits.max))
        # The range first: a whole number of 309 digits is too large for a float.
        if not (low <= value <= high and (dtype.kind != "i" or float(value).is_integer())):
            raise InvalidRequest(f"record {row}: {name} is {value!r:.40}, which {self._op.dtype} cannot hold")
        return value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


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
        from upwell.shared.signature.picture_transforms import decode_resized

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
    from upwell.shared.signature.picture_transforms import decode_pictures  # with Pillow, for models of pictures alone

    pixels = value.datatype == "UINT8" and len(value.shape) == 4 and value.shape[3] in (1, 3)
    if not pixels and not (value.datatype == "BYTES" and len(value.shape) == 1):
        raise ValueError(f"expected encoded pictures, BYTES [rows], or pixels in {source!r}, got {value}")
    size = value.shape[1:3] if pixels else (-1, -1)
    kind = ValueType("UINT8", (value.shape[0], *size, 3 if op.color == "rgb" else 1), channels=3)

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value]:
        return (decode_pictures(values[0], op.color, op.max_pixels),)

    return Step((source,), {op.target or source: kind}, run, makes_pictures=True, op=op)


def _picture_step(op: Resize | Crop, source: str, value: ValueType) -> Step:
    from upwell.shared.signature.picture_transforms import crop, pictures_of, resize

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
