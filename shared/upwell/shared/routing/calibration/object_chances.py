"""How the chances of a detector's objects are fitted to what the cloud finds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from upwell.shared.routing.box_hardness import right_chances
from upwell.shared.routing.calibration.discrimination import auroc
from upwell.shared.routing.calibration.logged_hardness import measured
from upwell.shared.routing.hardness import RISING, Measure
from upwell.shared.routing.log_line import LogLine
from upwell.shared.tensors import Array

_AT_LEAST_LINES = 50
_AT_MOST_LINES = 2000
_STIFFNESS = 1e-3
_SLOPES = (0.05, 20.0)
_FARTHEST = 8.0
_FIRST_STEP, _LAST_STEP = 1.0, 0.02
_UNSEEN = np.array([0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
"""Expected numbers of wrong boxes of which no candidate tells, among which the likeliest is taken."""


def fitted_chances(lines: Sequence[LogLine], measure: Measure, before: float) -> tuple[float, float]:
    """The temperature T and the bias b with which the chances of objects best predict whether the answer is right.

    Platt scaling (Platt 1999, "Probabilistic outputs for support vector machines") of the chances pⱼ, fitted to the
    outcome y of whole answers, since a log does not say which box was wrong: the answer is right with the chance
    P = e⁻ᵘ Π qⱼ (`right_chances`; u stands for objects without any candidate), and T and b maximize the mean of
    y ln P + (1 − y) ln(1 − P), less 0.001 (ln² T + μ²) with μ = −T b, the logit of a chance that is moved to 1/2. Found
    by compass search (Kolda, Lewis & Torczon 2003, "Optimization by direct search") in (−ln T, μ). A fit is kept only
    if fits on either half of the lines improve the likelihood on the other half and make the order of hardness no
    worse, in the sum (two-fold cross-validation); otherwise, and with fewer than 50 usable lines, the result is
    `before` and no bias.
    """
    usable = [line for line in lines if line.chances is not None and line.edge_correct is not None][:_AT_MOST_LINES]
    right = np.array([bool(line.edge_correct) for line in usable])
    if len(usable) < _AT_LEAST_LINES or right.all() or not right.any():
        return before, 0.0
    chances = _padded(usable)
    if _helps(usable, chances, right, measure, before):
        temperature, bias = _best(chances, right, before)[0]
        return float(f"{temperature:.4g}"), float(f"{bias:.4g}")
    return before, 0.0


def _helps(lines: Sequence[LogLine], chances: Array, right: Array, measure: Measure, before: float) -> bool:
    """Whether fits on each half of the lines improve likelihood and order on the other half."""
    gain = order = 0.0
    halves = (slice(0, None, 2), slice(1, None, 2))
    for fit, check in (halves, halves[::-1]):
        fitted, unseen = _best(chances[fit], right[fit], before)
        _, unseen_before = _losses(chances[fit], right[fit], before, 0.0)
        losses_before, _ = _losses(chances[check], right[check], before, 0.0, unseen_before)
        losses, _ = _losses(chances[check], right[check], *fitted, unseen)
        gain += float(losses_before.sum() - losses.sum())
        order += _order(lines[check], measure, *fitted) - _order(lines[check], measure, before, 0.0)
    return gain > 0 and order >= 0


def _padded(lines: Sequence[LogLine]) -> Array:
    """The chances of the lines, FP64 [lines, most], NaN where there are fewer."""
    found = np.full((len(lines), max(1, *(len(line.chances or ()) for line in lines))), np.nan)
    for row, line in zip(found, lines, strict=True):
        row[: len(line.chances or ())] = line.chances or ()
    return found


def _best(chances: Array, right: Array, start: float) -> tuple[tuple[float, float], float]:
    """The temperature and the bias, and the unseen that goes with them."""

    def loss(at: tuple[float, float]) -> float:
        losses, _ = _losses(chances, right, *_moves(at))
        return float(losses.mean()) + _STIFFNESS * (at[0] ** 2 + at[1] ** 2)

    at, step = (-math.log(start), 0.0), _FIRST_STEP
    lowest = loss(at)
    while step > _LAST_STEP:
        around = [(at[0] + step * x, at[1] + step * y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y]
        inside = [one for one in around if _SLOPES[0] <= math.exp(one[0]) <= _SLOPES[1] and abs(one[1]) <= _FARTHEST]
        value, best = min(((loss(one), one) for one in inside), default=(math.inf, at))
        if value < lowest:
            lowest, at = value, best
        else:
            step /= 2
    found = _moves(at)
    return found, _losses(chances, right, *found)[1]


def _moves(at: tuple[float, float]) -> tuple[float, float]:
    """T and b at (−ln T, μ)."""
    return math.exp(-at[0]), -at[1] * math.exp(at[0])


def _losses(
    chances: Array, right: Array, temperature: float, bias: float, unseen: float | None = None
) -> tuple[Array, float]:
    """The negative log-likelihood of each line, and the unseen: as given, else the likeliest."""
    logs = np.log(np.maximum(right_chances(chances, temperature, bias), 1e-12))
    expected = -np.nansum(logs, axis=1)
    among = _UNSEEN if unseen is None else np.array([unseen])
    total = np.maximum(expected[None] + among[:, None], 1e-9)
    losses = np.where(right, total, -np.log(-np.expm1(-total)))
    index = int(losses.mean(axis=1).argmin())
    found: Array = losses[index]
    return found, float(among[index])


def _order(lines: Sequence[LogLine], measure: Measure, temperature: float, bias: float) -> float:
    """The AUROC of the measure against wrong answers; 0.5 with too few of either kind."""
    values = measured(lines, measure, temperature, bias) * (1.0 if measure in RISING else -1.0)
    area = auroc(values, np.array([not line.edge_correct for line in lines]))
    return 0.5 if math.isnan(area) else area
