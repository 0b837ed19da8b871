"""The measures of one row for drift and for the choice of cases: of its picture, and of the answer to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from upwell.edge.models.hardness_scorer import Scorer
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.drift.drift_reference import Floats, RowMeasures
from upwell.shared.routing.hardness import UNMOVED, Measure
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.signature.answer_agreement import best_class, found_boxes, label_of
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array

NO_BOX = "(no box)"
"""The class of a row without detections."""


def measured(
    signature: Signature, scorer: Scorer, outputs: Mapping[str, Array], picture: bytes | Array | None, measure: Measure
) -> RowMeasures:
    """One row: `outputs` with their row dimension, and its `picture_of`.

    Its hardness is that of unmoved logits, so that a reference means the same whatever holds without a calibration.
    """
    hard = HardSettings(measure=measure, **UNMOVED._asdict())
    hardness = scorer.score(outputs, hard, 1)[0] if scorer.can(hard) else math.nan
    brightness = sharpness = math.nan
    if picture is not None:
        from upwell.shared.signature.picture_quality import picture_quality  # with Pillow, for models of pictures alone

        with suppress(InvalidRequest):  # a picture that cannot be decoded has no brightness
            brightness, sharpness = picture_quality(picture)
    return RowMeasures(
        hardness=hardness,
        label=row_label(signature, outputs),
        brightness=brightness,
        sharpness=sharpness,
        vector=row_vector(signature, scorer, outputs),
    )


def picture_of(signature: Signature, inputs: Mapping[str, Array], row: int) -> bytes | Array | None:
    """The picture that a caller gave for a row, encoded or as pixels [height, width, channels] in RGB; of several the
    first in the signature. None if there is none."""
    for one in signature.inputs:
        array = inputs.get(one.name) if one.kind == "image" else None
        if array is None:
            continue
        if array.dtype.hasobject:
            encoded = array.flat[row]
            return encoded if isinstance(encoded, bytes) else None
        if array.ndim != 4:
            return None
        pixels: Array = array[row]
        return pixels[..., ::-1] if one.is_bgr and pixels.shape[-1] == 3 else pixels
    return None


def row_label(signature: Signature, outputs: Mapping[str, Array]) -> str:
    """The class of a one-row answer, for a detector that of its best box; empty without one."""
    for output in signature.outputs:
        array = outputs.get(output.name)
        if array is None:
            continue
        if output.kind in ("probabilities", "logits") and array.ndim and array.size == array.shape[-1]:
            best = best_class(array, output.kind)
            return "" if best is None else label_of(best[0], output.labels)
        if output.kind == "detections":
            boxes = found_boxes(array)
            return label_of(int(boxes[boxes[:, 4].argmax(), 5]), output.labels) if len(boxes) else NO_BOX
    return ""


def row_vector(signature: Signature, scorer: Scorer, outputs: Mapping[str, Array]) -> Floats | None:
    """The row's embedding, else its logits; None if the model has neither, or if a number is not finite."""
    embedding = next((one for one in signature.outputs if one.kind == "embedding"), None)
    if embedding is None:
        logits = scorer.logits(outputs, 0)
        return None if logits is None else np.array(logits, dtype=np.float64)
    vector = outputs[embedding.name].astype(np.float64).ravel()
    return vector if np.isfinite(vector).all() else None
