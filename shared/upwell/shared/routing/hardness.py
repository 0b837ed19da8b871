"""How unsure a model is of its answer, per row, from its scores.

The logits of a row are z₁ … zₙ, its probabilities p = softmax(z / T) with the temperature T (Guo et al. 2017, arXiv
1706.04599), sorted p₁ ≥ p₂ ≥ …; where the model gives probabilities, z = ln p.

- `max_prob`: p₁ (Hendrycks & Gimpel 2017, arXiv 1610.02136). Hard when below a threshold.
- `margin`: p₁ − p₂ (Scheffer et al. 2001, "Active hidden Markov models for information extraction").
  Hard when below.
- `entropy`: −Σ pᵢ ln pᵢ / ln n, in 0..1, with 0·ln 0 = 0 (Shannon, normalized by its maximum). Hard when above.
- `energy`: −T ln Σ exp(zᵢ / T) (Liu et al. 2020, arXiv 2010.03759). Hard when above. It lives on what softmax takes
  away, so probabilities have none: for them it is NaN.
- `logit_norm`: max cᵢ / ‖c‖ₚ with cᵢ = zᵢ − mean z (MaxLogit-pNorm, Cattelan & Silva 2024, arXiv 2305.15508), in 0..1;
  0 where all are equal. Hard when below. The paper tunes p on held-out data; here it is 5. No temperature changes
  it, and with two classes it says nothing: there it is NaN.

A row with a single score is read as the probability (or the logit, by the sigmoid) of "yes" against "no": logits z/2
and −z/2, which give the same probabilities and treat both answers alike. A row with several score vectors (shape
[rows, positions, classes]) is as hard as its hardest position. Scores that are not finite, and probabilities that are
none (outside 0..1 by more than rounding explains), give NaN, which counts as hard whatever the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from upwell.shared.tensors import Array

Measure: TypeAlias = Literal[
    "max_prob",
    "margin",
    "entropy",
    "energy",
    "logit_norm",
    "mean_score",
    "low_share",
    "count",
    "doubtful",
    "near",
    "spread",
    "output",
    "function",
]


class LogitFit(NamedTuple):
    """How logits are moved: divided by `temperature`; those of a detector's objects plus `bias`, and plus `support`
    times the logarithm of the object's support, and where the answer does not show the object, `hidden_slope` times as
    steep (`box_hardness`)."""

    temperature: float = 1.0
    bias: float = 0.0
    support: float = 0.0
    hidden_slope: float = 1.0


UNMOVED = LogitFit()
"""Logits as they are."""

UNCALIBRATED = LogitFit(bias=1.5, hidden_slope=8.0)
"""Without a calibration: a detector's objects as `box_hardness` says, logits of classes as they are."""


def uncalibrated(measure: Measure) -> LogitFit:
    """How logits are moved for this measure without a calibration."""
    return UNMOVED if measure == "near" else UNCALIBRATED


RISING: frozenset[str] = frozenset(
    {"entropy", "energy", "low_share", "count", "doubtful", "near", "spread", "output", "function"}
)
"""Measures that rise with hardness; the others fall."""

SLACK = 0.01
"""Tolerance of probabilities outside 0..1, for quantization errors."""

FLOOR = float(np.finfo(np.float32).tiny)
"""Lower bound of probabilities in logarithms: FP32's smallest normal number."""


def hardness(scores: Array, measure: Measure, *, logits: bool, temperature: float = 1.0) -> tuple[float, ...]:
    """The measure for each row of `scores`, shape [rows, ..., classes]; softmax is applied to logits first.

    `temperature` is positive. Returns one float per row: in 0..1 (any number for `energy`), or NaN if a row has an
    invalid score or none. Raises `KeyError` if `measure` is not a measure of scores.
    """
    rows: int = scores.shape[0]
    compute = _MEASURES[measure]
    if scores.size == 0:
        return (math.nan,) * rows
    values = scores.reshape(-1, scores.shape[-1]).astype(np.float64)
    with np.errstate(all="ignore"):
        measured: Array = compute(_two_at_least(values, logits), logits, temperature)
        measured[~_usable(values, logits)] = np.nan
    if measured.shape[0] > rows:
        measured = (np.max if measure in RISING else np.min)(measured.reshape(rows, -1), axis=1)
    return tuple(measured.tolist())  # min and max propagate NaN, so one bad position makes its row hard


def pixel_margin(segments: Array) -> tuple[float, ...]:
    """The margin of segments UINT8 [rows, height, width, 2]: the mean of (p₁ − p₂) over the pixels with a class.

    The answer is one class per pixel, and the mean of p₁ would be the share of pixels expected to be right; with p₁ −
    p₂ a picture in which two classes are equally likely everywhere is 0, as for `margin` of one class. NaN if no pixel
    has a class (255 is none).
    """
    seen = segments[..., 0] != 255
    count = seen.sum(axis=(1, 2))
    leads = np.where(seen, segments[..., 1], 0).sum(axis=(1, 2), dtype=np.float64) / 255
    return tuple(np.where(count > 0, leads / np.maximum(count, 1), np.nan).tolist())


def is_hard(value: float, measure: Measure, threshold: float) -> bool:
    """Whether a row with this hardness is hard. NaN always is."""
    return not (value <= threshold if measure in RISING else value >= threshold)


def as_logits(scores: Array, *, logits: bool) -> Array:
    """The logits z of each row of `scores` [rows, classes] as FP64 [rows, at least 2], with `FLOOR` for p = 0.

    A single score becomes the logits of "no" and "yes". A row with an invalid score is all NaN.
    """
    values = scores.astype(np.float64)
    with np.errstate(all="ignore"):
        found: Array = _logits(_two_at_least(values, logits), logits).copy()
        found[~_usable(values, logits)] = np.nan
    return found


def _usable(values: Array, logits: bool) -> Array:
    """Which rows have only valid scores."""
    usable: Array = np.isfinite(values) if logits else np.abs(values - 0.5) <= 0.5 + SLACK
    result: Array = np.all(usable, axis=1)
    return result


def _two_at_least(values: Array, logits: bool) -> Array:
    if values.shape[1] > 1:
        return values
    pair = [-values / 2, values / 2] if logits else [1.0 - values, values]
    return np.concatenate(pair, axis=1)


def _logits(values: Array, logits: bool) -> Array:
    result: Array = values if logits else np.log(np.maximum(values, FLOOR))
    return result


def _probabilities(values: Array, logits: bool, temperature: float) -> Array:
    if logits or temperature != 1.0:
        values = _logits(values, logits)
        # The maximum is subtracted before the division, so that no temperature overflows.
        weights = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
    else:
        weights = np.maximum(values, 0.0)
    result: Array = weights / weights.sum(axis=1, keepdims=True)
    return result


def _max_prob(values: Array, logits: bool, temperature: float) -> Array:
    result: Array = _probabilities(values, logits, temperature).max(axis=1)
    return result


def _margin(values: Array, logits: bool, temperature: float) -> Array:
    top = np.partition(_probabilities(values, logits, temperature), -2, axis=1)
    result: Array = top[:, -1] - top[:, -2]
    return result


def _entropy(values: Array, logits: bool, temperature: float) -> Array:
    probabilities = _probabilities(values, logits, temperature)
    logarithms = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    result: Array = -(probabilities * logarithms).sum(axis=1) / math.log(probabilities.shape[1])
    return result


def _energy(values: Array, logits: bool, temperature: float) -> Array:
    if not logits:
        return np.full(len(values), np.nan)
    best = values.max(axis=1)
    weights = np.exp((values - best[:, None]) / temperature)
    result: Array = -(best + temperature * np.log(weights.sum(axis=1)))
    return result


def _logit_norm(values: Array, logits: bool, _: float) -> Array:
    values = _logits(values, logits)
    if values.shape[1] == 2:
        return np.full(len(values), np.nan)
    centred = values - values.sum(axis=1, keepdims=True) / values.shape[1]
    largest = np.abs(centred).max(axis=1)
    scaled = np.abs(centred) / largest[:, None]  # the largest becomes 1, so that powers neither over- nor underflow
    square = scaled * scaled
    norm: Array = (square * square * scaled).sum(axis=1) ** (1 / 5)  # p = 5, spelt out: numpy's general power is slow
    result: Array = centred.max(axis=1) / largest / norm
    # Differences between equal logits are rounding errors, which must not be scaled up.
    result[largest <= 1e-12 * np.abs(values).max(axis=1)] = 0.0
    return result


_MEASURES: Mapping[str, Callable[[Array, bool, float], Array]] = MappingProxyType(
    {"max_prob": _max_prob, "margin": _margin, "entropy": _entropy, "energy": _energy, "logit_norm": _logit_norm}
)
