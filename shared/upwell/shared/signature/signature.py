"""The signature of a model: logical inputs and outputs, and the rows of a request.

Routing decides per row: a row is one element of the leading dimension of every input and output. A model without such a
dimension has no rows; its whole request counts as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from upwell.shared.errors import InvalidRequest, ModelFailed, UpwellError
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype, oip_datatype
from upwell.shared.value_classes import value_class

InputKind = Literal["image", "text", "record", "tensor"]
OutputKind = Literal["probabilities", "logits", "detections", "masks", "segments", "embedding", "tensor"]

BYTES_LENGTH_BYTES = 4
"""Size of the length prefix of each BYTES element in OIP's raw form (bytes)."""

MAX_HOLLOW_EXTENT = 1 << 18
"""Maximum product of the other dimensions of an input with an empty one, which costs its caller no bytes: a model may
make an output for each of its rows."""


@value_class
class UplinkEncoding:
    """How pictures given as pixels are encoded for the uplink; `quality` from 1 to 100, unused by PNG.

    Pictures with a side longer than `max_side` pixels are first shrunk to it (0: never); encoded ones then keep their
    format, unless `encode` names one. `recode`: encoded pictures are always encoded again. `whole_color`: JPEG keeps
    full color resolution (4:4:4 instead of 4:2:0).
    """

    encode: Literal["jpeg", "webp", "png"] | None
    quality: int = 85
    max_side: int = 0
    recode: bool = False
    whole_color: bool = False


@value_class
class Column:
    """One column of a record: a number, or one of `categories` if it has any."""

    name: str
    categories: tuple[str, ...] = ()


@value_class
class LogicalInput:
    """One input as callers see it.

    A `text` has the spec BYTES [-1], one UTF-8 text per row; a `record` is one JSON object of its `columns`. An `image`
    has that spec too, one encoded picture (JPEG, PNG, WebP) per row, and also accepts pixels as UINT8 [rows, height,
    width, channels] with 1 or 3 channels. `is_bgr`: callers give three channels as BGR; encoded pictures are always
    RGB.
    """

    name: str
    kind: InputKind
    spec: TensorSpec
    uplink: UplinkEncoding | None = None
    is_bgr: bool = False
    columns: tuple[Column, ...] = ()


@value_class
class LogicalOutput:
    """One output as callers see it. `labels` names the classes of its last dimension, or of detections."""

    name: str
    kind: OutputKind
    spec: TensorSpec
    labels: tuple[str, ...] = ()


@value_class
class _Check:
    """What an array must be, in a form that is quick to compare.

    `sizes` are those of all dimensions from `first` on, None if one of them or the element size is variable.
    """

    name: str
    dtype: np.dtype[Any]
    rank: int
    fixed: tuple[tuple[int, int], ...]
    first: int
    sizes: tuple[int, ...] | None
    image: bool
    spec: TensorSpec


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model. `has_rows`: all have the same number of rows as leading dimension."""

    inputs: tuple[LogicalInput, ...]
    outputs: tuple[LogicalOutput, ...]
    has_rows: bool

    @cached_property
    def scores(self) -> LogicalOutput | None:
        """The first output of probabilities or logits, from which hardness is computed."""
        return next((output for output in self.outputs if output.kind in ("probabilities", "logits")), None)

    @cached_property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """The class names of each output that has any."""
        return MappingProxyType({output.name: output.labels for output in self.outputs if output.labels})

    def check_inputs(self, inputs: Mapping[str, Array]) -> int:
        """Check the inputs; returns the number of rows, 1 if the model has none. Raises `InvalidRequest`."""
        rows = -1
        for check in self._input_checks:
            array = inputs.get(check.name)
            if array is None:
                raise InvalidRequest(f"input {check.name!r} is missing; expected {_described(check)}")
            if not _fits(array, check):
                raise InvalidRequest(f"input {check.name!r}: expected {_described(check)}, got {_shown(array)}")
            if check.sizes is None and not array.size:
                _refuse_hollow(check.name, array.shape)
            if self.has_rows:
                here = array.shape[0]
                if here != rows and (rows != -1 or here == 0):
                    raise self._wrong_rows(here, rows, check.name)
                rows = here
        if len(inputs) != len(self._input_checks):
            unknown = sorted(set(inputs) - {check.name for check in self._input_checks})
            known = ", ".join(check.name for check in self._input_checks)
            raise InvalidRequest(f"unknown input {unknown[0]!r}; this model takes {known}")
        return rows if self.has_rows else 1

    def check_outputs(self, outputs: Mapping[str, Array], rows: int) -> None:
        """Check an answer from elsewhere; outputs that are not in the signature are ignored.

        Raises `ModelFailed` for a missing output or a wrong dtype, shape or number of rows.
        """
        for check in self._output_checks:
            array = outputs.get(check.name)
            if array is None:
                raise ModelFailed(f"the answer lacks output {check.name!r}; expected {_described(check)}")
            if not _fits(array, check):
                raise ModelFailed(f"output {check.name!r}: expected {_described(check)}, got {_shown(array)}")
            if self.has_rows and array.shape[0] != rows:
                raise ModelFailed(f"output {check.name!r}: expected {rows} rows, got {array.shape[0]}")

    @cached_property
    def row_bytes(self) -> tuple[int, ...] | None:
        """The size of a single row by `row_sizes_bytes`; None if it depends on the request."""
        if any(check.sizes is None for check in self._input_checks):
            return None
        return (sum(check.dtype.itemsize * math.prod(check.sizes or ()) for check in self._input_checks),)

    def row_sizes_bytes(self, inputs: Mapping[str, Array]) -> tuple[int, ...]:
        """The size of each row in OIP's raw form (bytes), for inputs that passed `check_inputs`."""
        if not self.has_rows:
            return (sum(_size_bytes(array) for array in inputs.values()),)
        rows = next(iter(inputs.values())).shape[0]
        each = 0
        sizes = [0] * rows
        for array in inputs.values():
            if array.dtype.hasobject:
                sizes = [size + _size_bytes(array[row]) for row, size in enumerate(sizes)]
            else:
                each += array.nbytes // rows
        return tuple([size + each for size in sizes])

    def select_rows(self, inputs: Mapping[str, Array], rows: Sequence[int]) -> dict[str, Array]:
        """The inputs of the given rows, in that order. A model without rows has only row 0, the whole request."""
        if not self.has_rows:
            return dict(inputs)
        indexes = np.asarray(rows, dtype=np.intp)
        return {name: array[indexes] for name, array in inputs.items()}

    def row(self, outputs: Mapping[str, Array], index: int) -> Mapping[str, Array]:
        """The outputs of one row, with its row dimension; all of them for a model without rows."""
        if not self.has_rows:
            return outputs
        return {name: array[index : index + 1] for name, array in outputs.items()}

    def merge_rows(self, parts: Sequence[tuple[Sequence[int], Mapping[str, Array]]], rows: int) -> dict[str, Array]:
        """Merge answers for parts of the rows: each part has the outputs of the rows that it names.

        Raises `ModelFailed` if two parts differ in dtype or shape, and `ValueError` unless the parts have each row
        exactly once.
        """
        if sorted(row for indexes, _ in parts for row in indexes) != list(range(rows)):
            raise ValueError(f"the parts must have each of {rows} rows exactly once")
        if not self.has_rows or (len(parts) == 1 and list(parts[0][0]) == list(range(rows))):
            return {output.name: parts[0][1][output.name] for output in self.outputs}
        return {output.name: _merged(output.name, parts, rows) for output in self.outputs}

    @cached_property
    def _input_checks(self) -> tuple[_Check, ...]:
        return tuple(_check(one.spec, self.has_rows, one.kind == "image") for one in self.inputs)

    @cached_property
    def _output_checks(self) -> tuple[_Check, ...]:
        return tuple(_check(one.spec, self.has_rows, image=False) for one in self.outputs)

    def _wrong_rows(self, here: int, rows: int, name: str) -> InvalidRequest:
        if here == 0:
            return InvalidRequest(f"input {name!r} has no rows; expected at least one")
        return InvalidRequest(
            f"input {name!r} has {here} rows, but {self.inputs[0].name!r} has {rows}; inputs may differ only if "
            "model.yaml says `rows: false`"
        )


def own_signature(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batch: int | None = None) -> Signature:
    """The signature of a model without a description: its own tensors.

    It has rows if the leading dimension of every input and output is variable, or is 1 or `batch` for every one;
    `batch` is the size to which an open dimension was fixed, and runs then have that many rows.
    """
    leading = {spec.shape[0] if spec.shape else 0 for spec in (*inputs, *outputs)}
    has_rows = leading in ({-1}, {1}, {batch})
    return Signature(
        tuple(LogicalInput(spec.name, "tensor", _row_spec(spec, has_rows)) for spec in inputs),
        tuple(LogicalOutput(spec.name, "tensor", _row_spec(spec, has_rows)) for spec in outputs),
        has_rows,
    )


def _row_spec(spec: TensorSpec, has_rows: bool) -> TensorSpec:
    return TensorSpec(spec.name, spec.datatype, (-1, *spec.shape[1:])) if has_rows else spec


def _check(spec: TensorSpec, has_rows: bool, image: bool) -> _Check:
    first = 1 if has_rows else 0
    fixed = tuple((axis, size) for axis, size in enumerate(spec.shape) if axis >= first and size >= 0)
    varies = image or spec.datatype == "BYTES" or len(fixed) < len(spec.shape) - first
    sizes = None if varies else spec.shape[first:]
    return _Check(spec.name, numpy_dtype(spec.datatype), len(spec.shape), fixed, first, sizes, image, spec)


def _refuse_hollow(name: str, shape: tuple[int, ...]) -> None:
    extent = math.prod(size for size in shape if size)
    if extent > MAX_HOLLOW_EXTENT:
        raise InvalidRequest(
            f"input {name!r} of shape {list(shape)} has no elements, and its other dimensions multiply to {extent}; at "
            f"most {MAX_HOLLOW_EXTENT} is allowed"
        )


def _fits(array: Any, check: _Check) -> bool:
    if not isinstance(array, np.ndarray):
        return False
    shape, dtype = array.shape, array.dtype
    if dtype == check.dtype and len(shape) == check.rank:
        if shape[check.first :] == check.sizes:
            return True
        for axis, size in check.fixed:
            if shape[axis] != size:
                return False
        return not dtype.hasobject or _all_bytes(array)
    return check.image and dtype == np.uint8 and len(shape) == 4 and shape[3] in (1, 3) and 0 not in shape[1:]


def _all_bytes(array: Array) -> bool:
    return all(type(element) is bytes for element in array.flat)


def _described(check: _Check) -> str:
    shape = f"{check.spec.datatype} {list(check.spec.shape)}"
    if check.image:
        return f"one encoded picture per row as {shape}, or pixels as UINT8 [rows, height, width, 1 or 3]"
    return f"{shape} (numpy dtype object, each element bytes)" if check.spec.datatype == "BYTES" else shape


def _shown(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return f"{type(array).__name__} instead of a numpy array"
    try:
        datatype = oip_datatype(array.dtype) if array.dtype.isnative and array.dtype.kind not in "SU" else ""
    except UpwellError:
        datatype = ""
    if datatype == "BYTES" and not _all_bytes(array):
        datatype = next(
            f"numpy objects, among them {type(one).__name__}," for one in array.flat if type(one) is not bytes
        )
    return f"{datatype or f'numpy dtype {array.dtype}'} {list(array.shape)}"


def _size_bytes(value: Any) -> int:
    """The raw size of an array, or of one element of a BYTES array."""
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            return value.nbytes
        return sum(BYTES_LENGTH_BYTES + len(element) for element in value.flat)
    return BYTES_LENGTH_BYTES + len(value)


def _merged(name: str, parts: Sequence[tuple[Sequence[int], Mapping[str, Array]]], rows: int) -> Array:
    first = parts[0][1][name]
    merged = np.empty((rows, *first.shape[1:]), dtype=first.dtype)
    for indexes, outputs in parts:
        array = outputs[name]
        if array.dtype != first.dtype or array.shape[1:] != first.shape[1:] or len(array) != len(indexes):
            raise ModelFailed(
                f"output {name!r}: rows answered as {_shown(array)} and as {_shown(first)} cannot be merged"
            )
        merged[np.asarray(indexes, dtype=np.intp)] = array
    return merged


def in_rgb(signature: Signature, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """The inputs with pixels in RGB order, whatever order the signature has."""
    turned = {
        one.name: np.ascontiguousarray(inputs[one.name][..., ::-1])
        for one in signature.inputs
        if one.is_bgr and one.name in inputs and inputs[one.name].dtype == np.uint8 and inputs[one.name].shape[-1] == 3
    }
    return {**inputs, **turned} if turned else inputs
