"""How unsure a model is of its answer, per row, from its scores.

Every measure is a function of the class probabilities p of one row, p₁ ≥ p₂ ≥ … sorted:

- `max_prob`: p₁ (Hendrycks & Gimpel 2017, arXiv 1610.02136). Hard when below a threshold.
- `margin`: p₁ − p₂ (Scheffer et al. 2001, "Active hidden Markov models for information extraction").
  Hard when below.
- `entropy`: −Σ pᵢ ln pᵢ / ln n, in 0..1, with 0·ln 0 = 0 (Shannon, normalized by its maximum). Hard when above.

A row with a single score is read as the probability (or the logit, by the sigmoid) of "yes" against "no". A row with
several score vectors (shape [rows, positions, classes]) is as hard as its hardest position. Scores that are not
finite give NaN, which counts as hard whatever the threshold.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import numpy as np

from upwell.shared.tensors import Array

Measure: TypeAlias = Literal[
    "max_prob", "margin", "entropy", "energy", "logit_norm", "mean_score", "low_share", "count", "output", "function"
]

RISING: frozenset[str] = frozenset({"entropy", "energy", "low_share", "count", "output", "function"})
"""Measures that grow with hardness; the others fall."""


def hardness(scores: Array, measure: Measure, *, logits: bool) -> tuple[float, ...]:
    """The measure for each row of `scores`, shape [rows, ..., classes]; softmax is applied to logits first.

    Returns one float per row: in 0..1, or NaN where a row holds a score that is not finite or no score at all.
    """
    rows = scores.shape[0]
    if scores.size == 0:
        return (math.nan,) * rows
    values = scores.reshape(-1, scores.shape[-1]).astype(np.float64)
    with np.errstate(all="ignore"):
        if values.shape[1] == 1:
            yes = 1.0 / (1.0 + np.exp(-values)) if logits else values
            probabilities = np.concatenate([yes, 1.0 - yes], axis=1)
        else:
            probabilities = _softmax(values) if logits else values
        measured = _MEASURES[measure](probabilities)
    measured[~np.isfinite(values).all(axis=1)] = np.nan
    if measured.shape[0] == rows:
        return tuple(measured.tolist())
    per_row = measured.reshape(rows, -1)
    hardest = per_row.max(axis=1) if measure in RISING else per_row.min(axis=1)
    return tuple(hardest.tolist())  # min and max pass a NaN on, so one bad position makes its row hard


def is_hard(value: float, measure: Measure, threshold: float) -> bool:
    """Whether a row with this hardness is hard. NaN always is."""
    return not (value <= threshold if measure in RISING else value >= threshold)


def _softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return result


def _max_prob(probabilities: Array) -> Array:
    result: Array = probabilities.max(axis=1)
    return result


def _margin(probabilities: Array) -> Array:
    top = np.partition(probabilities, -2, axis=1)
    result: Array = top[:, -1] - top[:, -2]
    return result


def _entropy(probabilities: Array) -> Array:
    logarithms = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    result: Array = -(probabilities * logarithms).sum(axis=1) / math.log(probabilities.shape[1])
    return result


_MEASURES = {"max_prob": _max_prob, "margin": _margin, "entropy": _entropy}
