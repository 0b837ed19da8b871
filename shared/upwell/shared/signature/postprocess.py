"""The steps after a model: from its tensors to the outputs that callers see. Pure numpy; the same code runs on both
sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from upwell.shared.errors import ModelFailed
from upwell.shared.signature.detections import FIELDS, RawBoxes, detect, further_numbers, is_detections
from upwell.shared.signature.model_yaml import Boxes, Dequantize, LabelsOp, PostOp, Rename, Segmentation, TopK
from upwell.shared.signature.segmentation import segments_step
from upwell.shared.signature.step_values import (
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
