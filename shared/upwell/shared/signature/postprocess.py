"""The steps after a model: from its tensors to the outputs that callers see.

Pure numpy; the same code runs on both sides. Segments are UINT8 [rows, height, width, 2]: the class, and 255 · (p₁ −
p₂), the margin of the best class over the second. They cover the whole original picture, in the resolution of the
model's output; parts that it did not see (cut off by `fit: cover` or `crop`) have class 255.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from upwell.shared.errors import ModelFailed
from upwell.shared.signature.detections import FIELDS, RawBoxes, detect, further_numbers, is_detections
from upwell.shared.signature.model_yaml import Boxes, Dequantize, LabelsOp, PostOp, Rename, Segmentation, TopK
from upwell.shared.signature.step_values import (
    FLOATS,
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


_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")


def post_step(written: PostOp, reads: Sequence[str], types: Mapping[str, ValueType], labels: Sequence[str]) -> Step:
    """The step for one entry of `post`, which reads the values `reads`.

    `labels` are those of the signature, for a labels step without its own. Raises `ValueError` if a type does not fit.
    """
    op, source = written.op, reads[0]
    value = types[source]
    if isinstance(op, Rename):
        return rename(source, op.target, value)
    if isinstance(op, Boxes):
        kinds = [types[name] for name in reads]
        return _raw_boxes_step(op, reads, kinds) if op.boxes is None else _split_boxes_step(op, reads, kinds)
    if isinstance(op, LabelsOp):
        return _labels_step(op, source, value, tuple(op.labels or labels))
    if isinstance(op, TopK):
        return _top_k_step(op, source, value)
    if isinstance(op, Segmentation):
        return segments_step(op, source, value)
    target = op.target or source
    if isinstance(op, Dequantize):
        require_numbers(value, source)
        return one_array(source, target, value.become("FP32"), lambda array: dequantize(array, op))
    require_floats(value, source, "dequantize")
    compute = softmax if written.name == "softmax" else sigmoid
    return one_array(source, target, value.become("FP32"), compute)


def softmax(logits: Array) -> Array:
    """exp(x - max) / sum along the last axis as FP32.

    A row with NaN is all NaN. Classes with +inf share 1; if all are -inf, all classes get the same.
    """
    x = logits.astype(np.float32)
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf, which `where` replaces, and underflow
        weights = np.exp(np.where(x == top, np.float32(0), x - top))
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) as FP32, by tanh, which does not overflow."""
    half = np.float32(0.5)
    result: Array = half * (np.tanh(half * x.astype(np.float32)) + np.float32(1))
    return result


def dequantize(array: Array, op: Dequantize) -> Array:
    """(x - zero_point) * scale as FP32."""
    result: Array = (array.astype(np.float32) - np.float32(op.zero_point)) * np.float32(op.scale)
    return result


def top_k(scores: Array, k: int) -> tuple[Array, Array]:
    """The k highest scores of the last axis, best first, and their classes as INT64.

    Equal scores are ordered by class; NaN comes last. Raises `ModelFailed` for fewer than k classes.
    """
    if scores.shape[-1] < k:
        raise ModelFailed(f"the model gave {scores.shape[-1]} scores, but the best {k} are requested")
    classes = np.argsort(-scores, axis=-1, kind="stable")[..., :k].astype(np.int64)
    return np.take_along_axis(scores, classes, axis=-1), classes


def label_of(classes: Array, labels: Sequence[str]) -> Array:
    """Class numbers -> BYTES labels of the same shape; -1 (no class) -> empty. Raises `ModelFailed`."""
    if classes.size and not -1 <= classes.min() <= classes.max() < len(labels):
        raise ModelFailed(f"the model gave class {classes.max()}, but there are labels for only {len(labels)} classes")
    texts = np.array([*(label.encode() for label in labels), b""], dtype=np.object_)
    result: Array = texts[classes.astype(np.int64)]
    return result


def _top_k_step(op: TopK, source: str, value: ValueType) -> Step:
    require_floats(value, source, "dequantize")
    classes = value.shape[-1] if value.shape else 1
    if 0 <= classes < op.k:
        raise ValueError(f"cannot take the best {op.k} of {classes} classes")
    target = op.target or source
    if target == op.classes:
        raise ValueError(f"scores and classes cannot both be named {target!r}; change `to` or `classes`")
    shape = (*value.shape[:-1], op.k)
    writes = {target: value.become(value.datatype, shape), op.classes: ValueType("INT64", shape, classes=classes)}
    return Step((source,), writes, lambda values, _: top_k(array_of(values[0]), op.k))


def _labels_step(op: LabelsOp, source: str, value: ValueType, labels: tuple[str, ...]) -> Step:
    if not labels:
        raise ValueError("there are no labels; give them here or at an output of the signature")
    if value.classes > len(labels):
        raise ValueError(f"{len(labels)} labels for {value.classes} classes")
    if value.datatype == "FP32" and len(value.shape) == 3 and is_detections(value.shape[2]):
        kind = ValueType("BYTES", value.shape[:2])
        return one_array(source, op.target, kind, lambda array: label_of(array[:, :, 5].astype(np.int64), labels))
    if value.datatype not in _INTEGERS:
        raise ValueError(f"expected class numbers (integers) or detections in {source!r}, got {value}")
    return one_array(source, op.target, ValueType("BYTES", value.shape), lambda array: label_of(array, labels))


def _raw_boxes_step(op: Boxes, reads: Sequence[str], kinds: Sequence[ValueType]) -> Step:
    """One tensor: four numbers of the box, perhaps objectness, the class scores, and further numbers.

    If the model suppresses overlaps itself, a score and a class replace the class scores.
    """
    source, value = reads[0], kinds[0]
    parts = kinds[1].shape[1] if op.prototypes is not None and len(kinds[1].shape) == 4 else 0
    for name, kind in zip(reads, kinds, strict=True):
        require_floats(kind, name, "dequantize")
    if op.prototypes is not None and parts < 1:
        raise ValueError(f"expected prototypes [rows, numbers, height, width] in {op.prototypes!r}, got {kinds[1]}")
    first = 5 if op.objectness else 4
    besides = parts or int(op.angle) or (op.keypoints[0] * op.keypoints[1] if op.keypoints is not None else 0)
    numbers = "score + class" if op.suppressed else "classes"
    each = f"4 + {numbers}" + (f" + {besides}" if besides else "")
    form = f"[rows, {each}, boxes]" if op.axes == "NCA" else f"[rows, boxes, {each}]"
    width = value.shape[1 if op.axes == "NCA" else 2] if len(value.shape) == 3 else 0
    fits = width == 6 + besides if op.suppressed else width > first + besides
    if width >= 0 and not fits:
        raise ValueError(f"expected {form} with axes {op.axes} in {source!r}, got {value}")

    def run(values: Sequence[Value], geometry: Geometry | None) -> tuple[Value, ...]:
        raw = array_of(values[0])
        raw = raw.transpose(0, 2, 1) if op.axes == "NCA" else raw
        end = raw.shape[2] - besides
        if end != 6 if op.suppressed else end <= first:
            raise ModelFailed(f"the model gave {list(raw.shape)} as {form}, which has no class scores")
        scores = raw[:, :, 4] if op.suppressed else raw[:, :, first:end]
        if op.objectness:
            scores = scores * (raw[:, :, 4:5])
        found, masks = detect(
            op,
            RawBoxes(
                raw[:, :, :4],
                scores,
                raw[:, :, 5] if op.suppressed else None,
                raw[:, :, end:] if besides else None,
                array_of(values[1]) if op.prototypes is not None else None,
            ),
            geometry,
        )
        return (found,) if masks is None else (found, masks)

    writes = {op.target: _detections(op, 0 if op.suppressed else max(width - first - besides, 0))}
    if op.prototypes is not None:
        writes[op.masks] = ValueType("UINT8", (-1, *kinds[1].shape[2:]))
    return Step(tuple(reads), writes, run)


def _split_boxes_step(op: Boxes, reads: Sequence[str], kinds: Sequence[ValueType]) -> Step:
    """Boxes [rows, n, 4] separate from scores [rows, n, classes], or from scores [rows, n] and classes [rows, n]."""
    boxes, scores = kinds[:2]
    for name, kind in zip(reads[:2], kinds[:2], strict=True):
        require_floats(kind, name, "dequantize")
    if len(boxes.shape) != 3 or boxes.shape[2] not in (-1, 4):
        raise ValueError(f"expected boxes [rows, boxes, 4] in {reads[0]!r}, got {boxes}")
    rank = 3 if op.classes is None else 2
    if any(len(kind.shape) != rank for kind in kinds[1:]):
        form = "scores [rows, boxes, classes]" if rank == 3 else "scores and classes [rows, boxes]"
        raise ValueError(f"expected {form}, got {', '.join(f'{kind}' for kind in kinds[1:])}")

    def run(values: Sequence[Value], geometry: Geometry | None) -> tuple[Value]:
        arrays = [array_of(value) for value in values]
        fits = arrays[0].shape[2] == 4 and all(array.shape[:2] == arrays[0].shape[:2] for array in arrays)
        if not fits or arrays[1].shape[-1] == 0 < arrays[1].shape[1]:
            raise ModelFailed(f"boxes and scores do not match: {[list(one.shape) for one in arrays]}")
        return (detect(op, RawBoxes(*arrays), geometry)[0],)

    return Step(tuple(reads), {op.target: _detections(op, max(scores.shape[2], 0) if rank == 3 else 0)}, run)


def _detections(op: Boxes, classes: int) -> ValueType:
    if op.background is not None and 0 < classes <= op.background:
        raise ValueError(f"the background class {op.background} is not among {classes} classes")
    return ValueType("FP32", (-1, op.max, FIELDS + further_numbers(op)), classes=classes)
