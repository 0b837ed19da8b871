"""How well a measure separates the requests that the cloud would correct, and what a share gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from upwell.shared.routing.calibration.logged_hardness import measured
from upwell.shared.routing.calibration.threshold_choice import Sample
from upwell.shared.routing.hardness import RISING, LogitFit, Measure
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""The shares of requests for which the gain is reported."""

_AT_LEAST = 8
_SURE = 1.645
_BETTER = 0.03


@dataclass(frozen=True, slots=True)
class Bought:
    """The risk if `share` of the requests is offloaded, hardest first; if as many are drawn at random; and if hindsight
    draws them, which no measure can do better."""

    share: float
    risk: float
    random_risk: float
    best_risk: float


@dataclass(frozen=True, slots=True)
class Discrimination:
    """`auroc` of the measure in use, NaN if too few requests are known; `others` are those of the other measures in the
    log, best first; `bought` the gains of shares, over the requests that a threshold decides."""

    auroc: float = math.nan
    is_better_than_chance: bool = True
    others: Mapping[str, float] = field(default_factory=dict)
    bought: tuple[Bought, ...] = ()

    def warnings(self, measure: str) -> tuple[str, ...]:
        """What is wrong with the measure, and which would be better."""
        if math.isnan(self.auroc):
            return ()
        best, auroc = next(iter(self.others.items()), ("", 0.0))
        is_better = auroc > self.auroc + _BETTER
        remedy = f"; `measure: {best}` has {auroc:.2f}" if is_better else ""
        if not self.is_better_than_chance:
            return (
                f"{measure} is no better than chance at telling which requests the cloud corrects (AUROC "
                f"{self.auroc:.2f}, 0.5 is chance), so a threshold on it gains nothing{remedy}",
            )
        return (
            f"another measure would do better than {measure} with its AUROC of {self.auroc:.2f}{remedy}",
        ) * is_better


def discrimination(
    lines: Sequence[LogLine], sample: Sample, measure: str, fit_of: Callable[[Measure], LogitFit]
) -> Discrimination:
    """The discrimination of `measure` in the log; `sample` has the lines as its threshold sees them, and `fit_of` gives
    what another measure would be calibrated with.

    Lines decided by a rule or the size are left out, since no measure decides them.
    """
    decided = np.isfinite(sample.scores) & ~np.isnan(sample.losses)
    scores, losses = sample.scores[decided], sample.losses[decided] > 0
    area = auroc(scores, losses)
    if math.isnan(area):
        return Discrimination()
    others = {}
    names = {name for line in lines for name in line.hardness} - {measure}
    for name in sorted(names):
        other: Measure = name  # type: ignore[assignment]  # a log may name any measure
        values = measured(lines, other, fit_of(other))[decided]
        is_known = ~np.isnan(values)
        its_area = auroc(values[is_known] if name in RISING else -values[is_known], losses[is_known])
        if not math.isnan(its_area) and is_known.mean() > 0.9:
            others[name] = its_area
    n, m = int(losses.sum()), int((~losses).sum())
    is_better = area > best_by_chance(n, m)
    ranked = dict(sorted(others.items(), key=lambda one: -one[1]))
    return Discrimination(area, is_better, ranked, tuple(_bought(scores, losses, share) for share in SHARES))


def auroc(scores: Array, losses: Array) -> float:
    """The chance that a request with a loss scores higher than one without; a tie counts half.

    The area under the ROC curve by ranks (Hanley & McNeil 1982, "The meaning and use of the area under a receiver
    operating characteristic (ROC) curve"). `scores` FP64 [n], larger is harder; `losses` bool [n]. NaN with fewer than
    eight of either kind.
    """
    bad, good = scores[losses], np.sort(scores[~losses])
    if min(len(bad), len(good)) < _AT_LEAST:
        return math.nan
    below = (np.searchsorted(good, bad, "left") + np.searchsorted(good, bad, "right")) / 2
    return float(below.mean() / len(good))


def best_by_chance(n: int, m: int) -> float:
    """The AUROC that a measure which tells nothing exceeds in 5 % of logs of `n` requests with a loss and `m` without.

    The normal approximation of Mann & Whitney 1947.
    """
    return 0.5 + _SURE * math.sqrt((n + m + 1) / (12 * n * m))


def _bought(scores: Array, losses: Array, share: float) -> Bought:
    """The gain of a share; among equal scores each request is offloaded with the same chance."""
    count = share * len(scores)
    order = np.sort(scores)[::-1]
    cut = order[max(0, math.ceil(count) - 1)]
    above, at = scores > cut, scores == cut
    part = (count - above.sum()) / at.sum()
    sent = losses[above].sum() + part * losses[at].sum()
    return Bought(
        share,
        float((losses.sum() - sent) / len(scores)),
        float(losses.mean() * (1 - share)),
        max(0.0, float(losses.mean()) - share),
    )
