"""Exact binomial tail probabilities and Clopper–Pearson bounds, without approximation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_HALVINGS = 60


def at_most(count: int, trials: int, chance: float) -> float:
    """P(X ≤ count) for X ~ Binomial(trials, chance): Σ_{i ≤ count} C(n, i) pⁱ (1 − p)^{n − i}, summed in logarithms."""
    if count < 0:
        return 0.0
    if count >= trials or chance <= 0.0:
        return 1.0
    if chance >= 1.0:
        return 0.0
    i = np.arange(count + 1, dtype=np.float64)
    steps = np.log(trials - i[:-1]) - np.log(i[1:])  # ln C(n, i+1) − ln C(n, i)
    coefficients = np.concatenate([[0.0], np.cumsum(steps)])
    terms = coefficients + i * math.log(chance) + (trials - i) * math.log1p(-chance)
    return min(1.0, float(np.exp(terms).sum()))


def at_least(count: int, trials: int, chance: float) -> float:
    """P(X ≥ count) for X ~ Binomial(trials, chance)."""
    return at_most(trials - count, trials, 1.0 - chance)


def upper_bound(count: int, trials: int, confidence: float) -> float:
    """The largest chance for which `count` or fewer of `trials` still have probability 1 − confidence.

    One-sided (Clopper & Pearson 1934, "The use of confidence or fiducial limits illustrated in the case of the
    binomial"): whatever the true chance, the bound lies below it with probability 1 − confidence at most. 1 without
    trials.
    """
    if count >= trials:
        return 1.0
    return _crossing(lambda chance: at_most(count, trials, chance) > 1.0 - confidence)


def lower_bound(count: int, trials: int, confidence: float) -> float:
    """The smallest chance for which `count` or more of `trials` still have probability 1 − confidence; one-sided."""
    return 1.0 - upper_bound(trials - count, trials, confidence) if count > 0 else 0.0


def interval(count: int, trials: int, confidence: float) -> tuple[float, float]:
    """The two-sided Clopper–Pearson interval; (0, 1) without trials."""
    one_sided = (1.0 + confidence) / 2
    return lower_bound(count, trials, one_sided), upper_bound(count, trials, one_sided)


def _crossing(is_below: Callable[[float], bool]) -> float:
    """The chance up to which `is_below` holds, by bisection; the result is on the upper, cautious side."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high
