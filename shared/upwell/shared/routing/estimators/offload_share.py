"""Holds the share of requests that are offloaded, whatever the scores do."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import replace

from upwell.shared.routing.hardness import RISING, Measure
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.value_classes import value_class

_GAIN = 0.015
_WINDOW = 250
_ENOUGH = 20
_SLACK = 0.1


@value_class
class ShareController:
    """Moves the hardness threshold so that in the long run the share `target` of all rows is offloaded. Immutable.

    Adaptive conformal inference (Gibbs & Candès 2021, arXiv 2106.00170, equation 2): for each row t

    α_{t+1} = α_t + γ(α − err_t),   err_t = 1 if the row was sent, else 0,   α_1 = α = `target`

    and the threshold is the one beyond which the share α_t of the last W scores lies. Summing the steps gives |mean of
    err − α| = |α_1 − α_{T+1}| / (γT): the share holds without any assumption on the scores, and while α_t stays in 0..1
    a drift, however abrupt, costs at most 1/γ rows in total. γ = 0.015 and W = 250: α_t fluctuates by about √(γα(1 −
    α)/2), three to four points at a share of 20 %. After an abrupt change the window is new, and the excess is paid
    back, within some 250 rows. k rows reported at once were cut by one threshold; their step is 1 − (1 − γ)^k, the
    effect of k single steps on a deviation, so that a large batch does not overshoot.

    Why not a fixed threshold: a share is a promise about the future, and scores drift with light, season and place. α_t
    is kept within −0.1..1.1, which single rows leave only if rows are sent or kept for other reasons: those would wind
    it up, and it would take long to come back.

    Rows that were candidates before they were scored (large ones) count as sent; a NaN score counts as hard. Until
    there are 20 scores the starting threshold applies (but a share of none or all holds from the first row), and again
    when another model gives the scores, since the former scores say nothing of its own; α_t stays, and with it the
    debt. Scores with few distinct values cannot be cut at every share: then the threshold moves between two of them, so
    that the share holds over time though not at each moment.

    States: `alpha` is α_t; `recent` the last scores in order of arrival, `ordered` the same sorted; both oriented so
    that larger is harder.
    """

    target: float
    measure: Measure
    initial: float
    alpha: float
    recent: tuple[float, ...] = ()
    ordered: tuple[float, ...] = ()

    @classmethod
    def start(cls, hard: HardSettings) -> ShareController:
        """The controller before any row, for settings whose `cloud_share` is a number."""
        return cls(hard.cloud_share, hard.measure, hard.threshold, hard.cloud_share)

    def fits(self, hard: HardSettings) -> bool:
        """Whether it was started for these settings; after a change of the policy a new one must start."""
        return (self.target, self.measure, self.initial) == (hard.cloud_share, hard.measure, hard.threshold)

    @property
    def threshold(self) -> float:
        """The current threshold, in the measure's own direction; ±infinity if every row or none is to be sent."""
        count = len(self.ordered)
        if count < _ENOUGH and 0.0 < self.target < 1.0:
            return self.initial
        sent = int(self.alpha * count + 0.5)
        if self.alpha <= 0:
            cut = math.inf
        elif sent >= count:
            cut = -math.inf
        else:
            cut = self.ordered[count - sent - 1]
        return cut if self.measure in RISING else -cut

    def observe(self, rows: int, large: int, hardness: Sequence[float]) -> ShareController:
        """The controller after `rows` rows, of which `large` were candidates unscored and `hardness` are the scores."""
        if rows <= 0:
            return self
        sign = 1.0 if self.measure in RISING else -1.0
        cut = sign * self.threshold
        scores = [math.inf if math.isnan(value) else sign * value for value in hardness]
        sent = large + sum(score > cut or math.isnan(value) for score, value in zip(scores, hardness, strict=True))
        step = 1.0 - (1.0 - _GAIN) ** rows
        alpha = self.alpha + step * (self.target - sent / rows)
        recent, ordered = self._with(tuple(scores[-_WINDOW:]))
        alpha = min(1.0 + _SLACK, max(-_SLACK, alpha))
        return ShareController(self.target, self.measure, self.initial, alpha, recent, ordered)

    def of_another_model(self, hard: HardSettings) -> ShareController:
        """The controller once another model gives the scores: it starts from the threshold of `hard`, and keeps its
        debt."""
        if (self.target, self.measure) != (hard.cloud_share, hard.measure):
            return ShareController.start(hard)
        return replace(ShareController.start(hard), alpha=self.alpha)

    def _with(self, scores: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`recent` and `ordered` with these scores added, without those beyond the window."""
        surplus = max(0, len(self.recent) + len(scores) - _WINDOW)
        ordered = list(self.ordered)
        for score in self.recent[:surplus]:
            del ordered[bisect_left(ordered, score)]
        for score in scores:
            insort(ordered, score)
        return self.recent[surplus:] + scores, tuple(ordered)
