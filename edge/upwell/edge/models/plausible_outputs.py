"""Whether a model's answers can be what their outputs are declared to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from upwell.shared.signature.signature import LogicalOutput
from upwell.shared.tensors import Array

_LEAST_TOLERANCE = 0.01
_STEP = 1 / 256
"""Tolerance for int8 probabilities, whose sum may be off by one step for each class."""


def implausible(outputs: Sequence[LogicalOutput], answers: Mapping[str, Array]) -> tuple[str, ...]:
    """The contradictions between these answers and the signature, one sentence per output.

    Wrong probabilities are most often logits: hardness would be computed from the wrong numbers, and thresholds would
    not hold. Values that are not finite are ignored here.
    """
    return tuple(filter(None, (_unlike_probabilities(one, answers[one.name]) for one in outputs)))


def _unlike_probabilities(output: LogicalOutput, answer: Array) -> str:
    if output.kind != "probabilities" or answer.ndim < 1 or not answer.size:
        return ""
    numbers = answer.astype(np.float64)
    if not np.isfinite(numbers).all():
        return ""
    classes, low, high = numbers.shape[-1], numbers.min(), numbers.max()
    sums = numbers.sum(axis=-1)
    far = sums.flat[int(np.argmax(np.abs(sums - 1)))]
    is_sum_off = classes > 1 and abs(far - 1) > _LEAST_TOLERANCE + classes * _STEP
    if low >= -_LEAST_TOLERANCE and high <= 1 + _LEAST_TOLERANCE and not is_sum_off:
        return ""
    return (
        f"output {output.name!r} is `kind: probabilities`, but has values from {low:.3g} to {high:.3g} with a sum "
        f"of {far:.3g}; for logits write `kind: logits`, or a `softmax` in `post`"
    )
