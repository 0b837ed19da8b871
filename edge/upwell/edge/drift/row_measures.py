"""The quantities of one row that drift detection observes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from upwell.edge.models.hardness_scorer import Scorer
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.drift.drift_reference import Floats, RowMeasures
from upwell.shared.routing.hardness import Measure
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.signature.answer_rows import best_class, found_boxes, label_of
from upwell.shared.signature.picture_quality import picture_quality
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array

NO_BOX = "(no box)"
"""The class of a row without detections."""


def measured(
    signature: Signature, scorer: Scorer, outputs: Mapping[str, Array], picture: bytes | Array | None, measure: Measure
) -> RowMeasures:
    """One row: `outputs` with their row dimension, and the encoded picture, or its pixels [height, width, channels]."""
    hard = HardSettings(measure=measure)
    hardness = scorer.score(outputs, hard, 1)[0] if scorer.can(hard) else math.nan
    brightness = sharpness = math.nan
    if picture is not None:
        with suppress(InvalidRequest):  # a picture that cannot be decoded has no brightness
            brightness, sharpness = picture_quality(picture)
    return RowMeasures(
        hardness=hardness,
        label=row_label(signature, outputs),
        brightness=brightness,
        sharpness=sharpness,
        vector=row_vector(signature, scorer, outputs),
    )


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
