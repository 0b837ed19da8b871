"""One row of an answer as a class with its probability, as boxes, or as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from upwell.shared.signature.signature import OutputKind
from upwell.shared.tensors import Array


def label_of(number: int, labels: Sequence[str]) -> str:
    """The name of a class; its number if it has none."""
    return labels[number] if 0 <= number < len(labels) else str(number)


def best_class(values: Array, kind: OutputKind) -> tuple[int, float] | None:
    """The class with the highest probability, and that probability; None if a score is not finite.

    Logits become probabilities by softmax. A single score is that of the second of two classes, by the sigmoid if it is
    a logit.
    """
    values = values.astype(np.float64).ravel()
    if not values.size or not np.isfinite(values).all():
        return None
    if values.size == 1:
        share = float(values[0]) if kind == "probabilities" else 1 / (1 + math.exp(-np.clip(values[0], -700, 700)))
        return (1, share) if share >= 0.5 else (0, 1 - share)
    if kind == "logits":
        values = np.exp(values - values.max())
        values = values / values.sum()
    best = int(values.argmax())
    return best, float(values[best])


def found_boxes(values: Array) -> Array:
    """The detections [n, 6 or more] of a row, without empty slots and those that are not finite."""
    boxes = values.astype(np.float64).reshape(-1, values.shape[-1])
    found: Array = boxes[np.isfinite(boxes).all(axis=1) & (boxes[:, 5] >= 0)]
    return found
