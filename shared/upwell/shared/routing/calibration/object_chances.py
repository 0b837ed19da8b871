"""How the chances of a detector's objects are fitted to what the cloud finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from upwell.shared.routing.box_hardness import ObjectChances, right_chances
from upwell.shared.routing.calibration.discrimination import auroc, best_by_chance
from upwell.shared.routing.calibration.logged_hardness import measured, objects_of
from upwell.shared.routing.hardness import RISING, UNCALIBRATED, LogitFit, Measure, uncalibrated
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array
from upwell.shared.units import count_of

_AT_LEAST_LINES = 50
_AT_LEAST_OF_A_KIND = 16
_AT_MOST_LINES = 2000
_STIFFNESS = 1e-3
_SLOPES = (0.05, 20.0)
_FARTHEST = 8.0
_FIRST_STEP, _LAST_STEP = 1.0, 0.02
_UNSEEN = np.array([0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0])
"""Expected numbers of wrong boxes of which no candidate tells, among which the likeliest is taken."""


def fitted_chances(lines: Sequence[LogLine], measure: Measure, before: float, *, has_supports: bool = True) -> LogitFit:
    """The fit with which the chances of objects best predict whether the answer is right.

    Platt scaling (Platt 1999, "Probabilistic outputs for support vector machines") of the chances pⱼ, fitted to the
    outcome y of whole answers, since a log does not say which box was wrong: the answer is right with the chance
    P = e⁻ᵘ Π qⱼ (`right_chances`; u stands for objects without any candidate). The parameters maximize the mean of
    y ln P + (1 − y) ln(1 − P), less 0.001 times the sum of their squares. Three families are tried (`box_hardness`):

    - the temperature T and the bias b, in −ln T and μ = −T b, the logit of a chance that is moved to 1/2;
    - with the weight c of the support too, if the log `has_supports`; then μ = −T (b + c M), at the mean M of ln mⱼ;
    - T, b and the slope a of objects that are not shown, in −ln T and the distances of b and ln a from `UNCALIBRATED`.

    Found by compass search (Kolda, Lewis & Torczon 2003, "Optimization by direct search"). Without a calibration T is
    `before`. From that, a family is preferred to the best one before it only if its fits on either half of the lines
    improve the likelihood on the other half and make the order of hardness no worse, in the sum (two-fold
    cross-validation), and better than chance: where the chances tell nothing, the likeliest fit makes all of them sure,
    and few distinct values are left. With too few lines (`why_unfitted`) none is tried: each half needs eight or so of
    right and of wrong answers, with fewer of which their order is unknown.
    """
    usable = _usable(lines)
    best = uncalibrated(measure)._replace(temperature=before)
    if why_unfitted(usable, len(usable)):
        return best
    logged = _Logged.of(usable)
    by_kind = sorted(usable, key=lambda line: bool(line.edge_correct))
    halves = (_Logged.of(by_kind[::2]), _Logged.of(by_kind[1::2]))
    loss, order = _held_out(halves, (best, best), measure)
    wrong = int((~logged.right).sum())
    order = max(order, 2 * best_by_chance(wrong, len(usable) - wrong))
    for family in ("bias", "support", "slope") if has_supports else ("bias", "slope"):
        fits = (_best(halves[0], before, family), _best(halves[1], before, family))
        other_loss, other_order = _held_out(halves, fits, measure)
        if other_loss < loss and other_order >= order:
            loss, order, best = other_loss, other_order, _best(logged, before, family)
    return LogitFit(*(float(f"{value:.4g}") for value in best))


def why_unfitted(lines: Sequence[LogLine], of: int) -> str:
    """Why these lines are too few to fit the chances of objects, as a sentence; empty if they are enough.

    `of` is the number of lines of the whole log, to say about how many of its kind would do.
    """
    usable = _usable(lines)
    wrong = sum(not line.edge_correct for line in usable)
    kind, rarer = ("wrong", wrong) if wrong <= len(usable) - wrong else ("right", len(usable) - wrong)
    if len(usable) >= _AT_LEAST_LINES and rarer >= _AT_LEAST_OF_A_KIND:
        return ""
    there = f"{count_of(len(usable), 'usable line')} with {count_of(rarer, f'{kind} answer')}"
    problem = f"no chances are fitted: {there}, where it takes {_AT_LEAST_LINES} with {_AT_LEAST_OF_A_KIND}"
    if not rarer:
        return problem
    growth = max(_AT_LEAST_LINES / len(usable), _AT_LEAST_OF_A_KIND / rarer)
    return f"{problem}: about {math.ceil(of * growth)} lines of such a log"


def _usable(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    return [line for line in lines if line.chances is not None and line.edge_correct is not None][:_AT_MOST_LINES]


@dataclass(frozen=True)
class _Logged:
    """Lines, all their objects one after another, the line of each object, and whether each line's answer is right."""

    lines: Sequence[LogLine]
    objects: ObjectChances
    rows: Array
    right: Array

    @classmethod
    def of(cls, lines: Sequence[LogLine]) -> _Logged:
        each = [objects_of(line) for line in lines]
        rows = np.repeat(np.arange(len(each)), [len(one.chances) for one in each])
        chances, supports = ([getattr(one, name) for one in each] for name in ("chances", "supports"))
        objects = ObjectChances(np.concatenate([[], *chances]), np.concatenate([[], *supports]))
        return cls(lines, objects, rows, np.array([bool(line.edge_correct) for line in lines]))


def _held_out(
    halves: tuple[_Logged, _Logged], fits: tuple[LogitFit, LogitFit], measure: Measure
) -> tuple[float, float]:
    """The loss and the AUROC of the measure on each half with the fit of the other half, in the sum."""
    loss = order = 0.0
    for fitted_on, fit, check in zip(halves, fits, halves[::-1], strict=True):
        _, unseen = _losses(fitted_on, fit)
        loss += float(_losses(check, fit, unseen)[0].sum())
        order += _order(check, measure, fit)
    return loss, order


def _best(logged: _Logged, before: float, family: str) -> LogitFit:
    """The likeliest fit of a family."""
    middle = float(np.log(logged.objects.supports).mean()) if len(logged.rows) else 0.0

    def fit(at: tuple[float, ...]) -> LogitFit:
        slope = math.exp(at[0])
        if family == "slope":
            return LogitFit(1 / slope, UNCALIBRATED.bias + at[1], 0.0, UNCALIBRATED.hidden_slope * math.exp(at[2]))
        weight = at[2] if family == "support" else 0.0
        return LogitFit(1 / slope, -at[1] * slope - weight * middle, weight)

    def loss(at: tuple[float, ...]) -> float:
        return float(_losses(logged, fit(at))[0].mean()) + _STIFFNESS * sum(value * value for value in at)

    at: tuple[float, ...] = (-math.log(before), *((0.0,) if family == "bias" else (0.0, 0.0)))
    lowest, step = loss(at), _FIRST_STEP
    while step > _LAST_STEP:
        moves = [move for move in itertools.product((-1, 0, 1), repeat=len(at)) if any(move)]
        around = [tuple(value + step * by for value, by in zip(at, move, strict=True)) for move in moves]
        inside = [
            one
            for one in around
            if _SLOPES[0] <= math.exp(one[0]) <= _SLOPES[1] and max(map(abs, one[1:])) <= _FARTHEST
        ]
        value, best = min(((loss(one), one) for one in inside), default=(math.inf, at))
        if value < lowest:
            lowest, at = value, best
        else:
            step /= 2
    return fit(at)


def _losses(logged: _Logged, fit: LogitFit, unseen: float | None = None) -> tuple[Array, float]:
    """The negative log-likelihood of each line, and the unseen: as given, else the likeliest."""
    logs = np.log(np.maximum(right_chances(logged.objects, fit), 1e-12))
    expected = np.bincount(logged.rows, -logs, len(logged.lines))
    among = _UNSEEN if unseen is None else np.array([unseen])
    total = np.maximum(expected[None] + among[:, None], 1e-9)
    losses = np.where(logged.right, total, -np.log(-np.expm1(-total)))
    index = int(losses.mean(axis=1).argmin())
    found: Array = losses[index]
    return found, float(among[index])


def _order(logged: _Logged, measure: Measure, fit: LogitFit) -> float:
    """The AUROC of the measure against wrong answers; 0.5 with too few of either kind."""
    values = measured(logged.lines, measure, fit) * (1.0 if measure in RISING else -1.0)
    area = auroc(values, ~logged.right)
    return 0.5 if math.isnan(area) else area
