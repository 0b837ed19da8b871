"""Class scores per pixel -> the class of each pixel of the original picture, and its confidence.

Segments are UINT8 [rows, height, width, 2]: the class, and 255 · (p₁ − p₂), the margin of the best class over the
second. They cover the whole original picture, in the resolution of the model's output; parts that it did not see (cut
off by `fit: cover` or `crop`) have class 255.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from upwell.shared.errors import ModelFailed
from upwell.shared.signature.model_yaml import Segmentation
from upwell.shared.signature.step_values import FLOATS, Geometry, Step, Value, ValueType, array_of
from upwell.shared.tensors import Array

UNSEEN = 255
"""The class of a pixel outside the model's view."""
_SURE = 255


def segments_step(op: Segmentation, source: str, value: ValueType) -> Step:
    """The step for scores [rows, classes, height, width] or classes [rows, height, width]. Raises `ValueError`."""
    axis = 1 if op.axes == "NCHW" else 3
    is_scores = value.datatype in FLOATS and len(value.shape) == 4
    if not is_scores and not (value.datatype in ("INT32", "INT64", "UINT8") and len(value.shape) == 3):
        form = "[rows, classes, height, width]" if axis == 1 else "[rows, height, width, classes]"
        raise ValueError(f"expected scores {form}, or class numbers [rows, height, width], in {source!r}, got {value}")
    classes = max(value.shape[axis], 0) if is_scores else 0
    if classes > UNSEEN:
        raise ValueError(f"at most {UNSEEN} classes are supported, got {classes}")
    sizes = [size for at, size in enumerate(value.shape) if at and not (is_scores and at == axis)]

    def run(values: Sequence[Value], geometry: Geometry | None) -> tuple[Value]:
        array = array_of(values[0])
        found = _classified(array, op, axis) if is_scores else _numbered(array)
        return (found if geometry is None else _over_the_original(found, geometry),)

    writes = {op.target or source: ValueType("UINT8", (-1, *sizes, 2), classes=2 if classes == 1 else classes)}
    return Step((source,), writes, run)


def _classified(scores: Array, op: Segmentation, axis: int) -> Array:
    x = np.moveaxis(scores.astype(np.float32), axis, -1)
    if x.shape[-1] == 0 or x.shape[-1] > UNSEEN:
        raise ModelFailed(f"the model gave scores of {x.shape[-1]} classes for each pixel")
    if op.scores == "logits":
        x = np.concatenate((np.zeros_like(x), x), axis=-1) if x.shape[-1] == 1 else x
        weights = np.exp(x - x.max(axis=-1, keepdims=True))
        x = weights / weights.sum(axis=-1, keepdims=True)
    elif x.shape[-1] == 1:
        x = np.concatenate((1 - x, x), axis=-1)
    best = np.partition(x, -2, axis=-1)[..., -2:]
    margin = np.nan_to_num(np.clip(best[..., 1] - best[..., 0], 0, 1))  # NaN counts as no confidence
    return np.stack((x.argmax(axis=-1), np.rint(margin * _SURE)), axis=-1).astype(np.uint8)


def _numbered(classes: Array) -> Array:
    if classes.size and not 0 <= classes.min() <= classes.max() < UNSEEN:
        raise ModelFailed(f"the model gave the class {classes.max()}; at most {UNSEEN} classes are supported")
    return np.stack((classes.astype(np.uint8), np.full(classes.shape, _SURE, np.uint8)), axis=-1)


def _over_the_original(found: Array, geometry: Geometry) -> Array:
    """The same over the original picture: each pixel has the model's value at its centre."""
    result = np.empty_like(found)
    for row, segments in enumerate(found):
        places = []
        for axis, size in ((1, segments.shape[0]), (0, segments.shape[1])):
            middle = (np.arange(size) + 0.5) / size * geometry.original[row, axis]
            at = (middle * geometry.scale[row, axis] + geometry.offset[row, axis]) / geometry.size[row, axis] * size
            places.append(np.floor(at).astype(np.int64))
        rows, columns = places
        seen = ((rows >= 0) & (rows < len(segments)))[:, None] & ((columns >= 0) & (columns < segments.shape[1]))
        taken = segments[np.clip(rows, 0, len(segments) - 1)][:, np.clip(columns, 0, segments.shape[1] - 1)]
        result[row] = np.where(seen[..., None], taken, np.array([UNSEEN, 0], np.uint8))
    return result
