"""The hardness of logged requests under one measure and fit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from upwell.shared.routing.box_hardness import OF_CHANCES, ObjectChances, chance_hardness
from upwell.shared.routing.hardness import RISING, LogitFit, Measure, hardness, uncalibrated
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array

FROM_LOGITS: frozenset[str] = frozenset({"max_prob", "margin", "entropy", "energy", "logit_norm"})
"""Measures that can be computed from a line's logits; others are available only if the line has them."""

TEMPERED: frozenset[str] = frozenset({"max_prob", "margin", "entropy"})
"""Measures of probabilities, to which temperature scaling applies."""


def lacks_supports(line: LogLine) -> bool:
    """Whether a line has chances whose supports are unknown, as those logged by an older agent are."""
    return bool(line.chances) and line.supports is None


def objects_of(line: LogLine) -> ObjectChances:
    """The chances of a line. Unknown supports are 1 here, which is right only for a fit that gives them no weight."""
    chances = np.array(line.chances or (), np.float64)
    return ObjectChances(chances, np.ones(len(chances)) if line.supports is None else np.array(line.supports))


def hardness_of_chances(line: LogLine, measure: Measure, fit: LogitFit) -> float:
    """The measure from the chances of a line; NaN if the fit weighs supports that the line lacks."""
    return math.nan if fit.support != 0.0 and lacks_supports(line) else chance_hardness(objects_of(line), measure, fit)


def is_of_chances(line: LogLine, measure: Measure) -> bool:
    """Whether the measure of a line is that of its chances. With class scores beside its boxes, a model's margin is
    that of its classes."""
    has_classes = line.logits is not None or "max_prob" in line.hardness
    return measure in OF_CHANCES and line.chances is not None and not (measure == "margin" and has_classes)


def measured(lines: Sequence[LogLine], measure: Measure, fit: LogitFit | None = None) -> Array:
    """The hardness of each line, FP64 [lines]: from its chances or logits if it has them, else as logged, else NaN.

    Without a `fit` it is that without a calibration.
    """
    fit = uncalibrated(measure) if fit is None else fit
    values = np.array([line.hardness.get(measure, math.nan) for line in lines], np.float64)
    for index, line in enumerate(lines):
        if is_of_chances(line, measure):
            values[index] = hardness_of_chances(line, measure, fit)
    if measure not in FROM_LOGITS:
        return values
    by_classes: dict[int, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        if line.logits:
            by_classes[len(line.logits)].append(index)
    for indexes in by_classes.values():
        logits = np.array([lines[index].logits for index in indexes], np.float64)
        values[indexes] = hardness(logits, measure, logits=True, temperature=fit.temperature)
    return values


_LOWEST, _HIGHEST = 0.05, 20.0
_GRID = 33
_REFINEMENTS = 25
_AT_MOST_LINES = 5000
_AT_LEAST_LINES = 50
_GOLDEN = (math.sqrt(5) - 1) / 2


def fitted_temperature(lines: Sequence[LogLine], measure: Measure, before: float) -> float:
    """The temperature at which the top probability p₁ of softmax(z / T) best predicts whether the label is right.

    Temperature scaling (Guo et al. 2017, arXiv 1706.04599). A log says whether the label was right, not what it is, so
    the likelihood is that of the outcome y: T maximizes Σ yᵢ ln p₁ᵢ(T) + (1 − yᵢ) ln(1 − p₁ᵢ(T)), found on a grid of ln
    T and refined by golden-section search. T is fitted on every second line and kept only if it helps on the others:
    the likelihood improves by more than its standard error, and the order of hardness separates right from wrong no
    worse (a better likelihood alone can make a cascade worse: arXiv 2104.09286). Otherwise, and with fewer than 50
    usable lines or all of one kind, the result is `before`: if all are right, the lowest temperature is the likeliest,
    and at that most scores are the same.
    """
    usable = [line for line in lines if line.logits and line.edge_correct is not None][:_AT_MOST_LINES]
    if len(usable) < _AT_LEAST_LINES:
        return before
    fit, check = usable[::2], usable[1::2]
    if len({line.edge_correct for line in fit}) < 2:
        return before
    fitted = _best(fit)
    gains = _losses(check, before) - _losses(check, fitted)
    helps = gains.mean() > gains.std() / math.sqrt(len(check))
    if helps and _order(check, measure, fitted) >= _order(check, measure, before):
        return fitted
    return before


def _best(lines: Sequence[LogLine]) -> float:
    def loss(log_t: float) -> float:
        return float(_losses(lines, math.exp(log_t)).mean())

    grid = np.linspace(math.log(_LOWEST), math.log(_HIGHEST), _GRID).tolist()
    best = min(range(_GRID), key=lambda index: loss(grid[index]))
    low, high = grid[max(0, best - 1)], grid[min(_GRID - 1, best + 1)]
    for _ in range(_REFINEMENTS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if loss(left) <= loss(right) else (left, high)
    return float(f"{math.exp((low + high) / 2):.4g}")


def _losses(lines: Sequence[LogLine], temperature: float) -> Array:
    """The negative log-likelihood of each line; 0 for a row whose score is NaN."""
    top = np.clip(measured(lines, "max_prob", LogitFit(temperature)), 1e-12, 1 - 1e-12)
    right = np.array([bool(line.edge_correct) for line in lines])
    result: Array = np.nan_to_num(-np.where(right, np.log(top), np.log1p(-top)))
    return result


def _order(lines: Sequence[LogLine], measure: Measure, temperature: float) -> float:
    """The chance that a wrong line is harder than a right one (area under the ROC curve); 0.5 if one kind is
    missing."""
    values = measured(lines, measure, LogitFit(temperature)) * (1.0 if measure in RISING else -1.0)
    values = np.where(np.isnan(values), np.inf, values)
    wrong = np.array([not line.edge_correct for line in lines])
    if wrong.all() or not wrong.any():
        return 0.5
    right = np.sort(values[~wrong])
    below = np.searchsorted(right, values[wrong], "left") + np.searchsorted(right, values[wrong], "right")
    return float(below.mean()) / (2 * len(right))
