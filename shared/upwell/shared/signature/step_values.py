"""The values of pre- and post-processing: arrays and pictures, and their types, known when a model loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.signature import Column
from upwell.shared.tensors import Array
from upwell.shared.value_classes import value_class


@value_class
class ValueType:
    """The type of a value before any request: its OIP datatype and shape, -1 for variable dimensions.

    `channels` is the axis of a picture's channels, None if the value is not a picture. `classes` is the number of
    classes, 0 if unknown; `columns` are those of records.
    """

    datatype: str
    shape: tuple[int, ...]
    channels: int | None = None
    classes: int = 0
    columns: tuple[Column, ...] = ()
    is_by_request: bool = False
    """Whether dimensions other than the rows vary between requests, so that no fixed size fits."""

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"

    def become(self, datatype: str, shape: tuple[int, ...] | None = None) -> ValueType:
        """The same value with another datatype and perhaps another shape."""
        return replace(self, datatype=datatype, shape=self.shape if shape is None else shape)


Floats = npt.NDArray[np.float64]


@value_class
class Geometry:
    """One map per row: model pixel = original pixel * scale + offset, each as [x, y].

    `original` and `size` are [width, height] in pixels before and after; all arrays are FP64 [rows, 2]. The original is
    the upright picture, with EXIF orientation applied.
    """

    original: Floats
    size: Floats
    scale: Floats
    offset: Floats

    @classmethod
    def of(cls, sizes: list[tuple[int, int]]) -> Geometry:
        """The identity for pictures of these (width, height)."""
        original = np.array(sizes, dtype=np.float64).reshape(-1, 2)
        return cls(original, original, np.ones_like(original), np.zeros_like(original))

    def then(self, scale: Floats, offset: Floats, size: Floats) -> Geometry:
        """This map followed by another of the same form, which ends in pictures of `size`."""
        return Geometry(self.original, size, self.scale * scale, self.offset * scale + offset)

    def to_original(self, boxes: Floats, row: int, normalized: bool) -> Floats:
        """Boxes [n, 4] as x1, y1, x2, y2 in the model's picture -> fractions of the original, clipped to it.

        The model's boxes are in pixels, or in fractions of its picture where `normalized`.
        """
        return np.clip(self.points(boxes.reshape(-1, 2, 2), row, normalized), 0.0, 1.0).reshape(-1, 4)

    def points(self, points: Floats, row: int, normalized: bool) -> Floats:
        """Points [..., 2] as x, y in the model's picture -> fractions of the original, which may lie outside it."""
        pixels = points * self.size[row] if normalized else points
        fractions: Floats = (pixels - self.offset[row]) / self.scale[row] / self.original[row]
        return fractions


@value_class
class Pictures:
    """Pictures as UINT8 [height, width, channels], one per row, of one size (an array) or of several (a list).

    `max_pixels` limits the pixels that a step may make of them.
    """

    rows: Array | list[Array]
    geometry: Geometry
    max_pixels: int

    @property
    def array(self) -> Array:
        """[rows, height, width, channels]. Raises `InvalidRequest` if the pictures differ in size."""
        if isinstance(self.rows, np.ndarray):
            return self.rows
        shapes = {picture.shape for picture in self.rows}
        if len(shapes) > 1:
            sizes = ", ".join(f"{shape[1]} x {shape[0]}" for shape in sorted(shapes)[:3])
            raise InvalidRequest(f"the pictures of one request must have the same size, got {sizes}")
        return np.stack(self.rows)


@value_class
class Candidates:
    """The boxes of one row before suppression, best first.

    `boxes` FP64 [n, 4] are corners in any unit, or [n, 5] centre, size and angle; `scores` [n] are those of `classes`
    [n]. Boxes from `min_score` on count as found. `has_nan` says whether the model gave a score that is none, so that
    boxes may be missing.
    """

    boxes: Floats
    scores: Floats
    classes: npt.NDArray[np.int64]
    min_score: float
    has_nan: bool = False


@value_class
class Detections:
    """Detections FP32 [rows, max, 6 or more], and the candidates of each row."""

    array: Array
    candidates: Sequence[Candidates]


Value: TypeAlias = Array | Pictures | Detections


def array_of(value: Value) -> Array:
    """The value as an array."""
    return value if isinstance(value, np.ndarray) else value.array


@value_class
class Step:
    """One operation, bound to the names of the values that it reads and writes, and checked against their types.

    `run` takes the values read and the geometry of the model's picture (None before the model, and if it sees none),
    and returns the values written, in the order of `writes`.
    """

    reads: tuple[str, ...]
    writes: Mapping[str, ValueType]
    run: Callable[[Sequence[Value], Geometry | None], tuple[Value, ...]]
    makes_pictures: bool = False
    op: object = None
    """The operation in the file, if it can be fused with the step before or after; for a fused step, both."""


def one_array(source: str, target: str, kind: ValueType, compute: Callable[[Array], Array]) -> Step:
    """A step that computes one array from another."""
    return Step((source,), {target: kind}, lambda values, _: (compute(array_of(values[0])),))


def rename(source: str, target: str, kind: ValueType) -> Step:
    """A step that gives a value another name."""
    return Step((source,), {target: kind}, lambda values, _: (values[0],))


FLOATS = ("FP32", "FP16", "BF16", "FP64")


def require_numbers(value: ValueType, name: str) -> None:
    """Raises `ValueError` unless the value holds numbers."""
    if value.datatype in ("BYTES", "BOOL"):
        hint = f"; write {{decode: {name}}} before this step" if value.datatype == "BYTES" else ""
        raise ValueError(f"expected numbers in {name!r}, got {value}{hint}")


def require_floats(value: ValueType, name: str, step: str) -> None:
    """Raises `ValueError` that names the missing step unless the value holds floating point numbers."""
    if value.datatype not in FLOATS:
        raise ValueError(f"expected floating point numbers in {name!r}, got {value}; write a {step} step before this")
