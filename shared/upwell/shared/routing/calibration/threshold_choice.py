"""Chooses a threshold for a share or a risk, and evaluates it on other requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from upwell.shared.routing.calibration.binomial import at_least, at_most, upper_bound
from upwell.shared.tensors import Array
from upwell.shared.units import count_of

SHARE_TOLERANCE = 0.02
"""Maximum distance of a chosen share from the target if scores are tied."""

_STANDARD_ERROR = 0.025
_TAIL = 10


class CannotCalibrate(ValueError):
    """No threshold can be chosen; the text says why and what would help.

    If there are too few requests, `growth` is the factor by which more are needed.
    """

    def __init__(self, text: str, growth: float = 1.0) -> None:
        super().__init__(text)
        self.growth = growth


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests as a threshold sees them. `scores` FP64 [n], larger is harder: +∞ is always offloaded and −∞ always
    kept; a finite score is offloaded if it exceeds the cut. `losses` FP64 [n]: 1 if the edge is wrong and the cloud
    right, 0 if not, NaN if unknown."""

    scores: Array
    losses: Array

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.scores)

    def where(self, mask: Array) -> Sample:
        """The requests for which `mask`, bool [n], holds."""
        return Sample(self.scores[mask], self.losses[mask])

    @property
    def known(self) -> Sample:
        """The requests for which both answers are known to be right or wrong."""
        return self.where(~np.isnan(self.losses))

    def share(self, cut: float) -> float:
        """The share of all requests that is offloaded; NaN without requests."""
        return float((self.scores > cut).mean()) if len(self) else math.nan

    def kept_wrong(self, cut: float) -> int:
        """Number of requests that are kept and answered wrongly while the cloud is right."""
        return int(np.nansum(self.losses[self.scores <= cut]))

    def cuts(self) -> Array:
        """Every cut that makes a difference, ascending: midway between neighbouring scores, so that a score computed on
        another machine falls on the same side. Above the last one, only requests that must go are offloaded."""
        values = np.unique(self.scores[np.isfinite(self.scores)])
        middles = values[:-1] + np.diff(values) / 2
        return np.append(middles, values[-1:])


@dataclass(frozen=True, slots=True)
class Found:
    """The results of a cut on `requests` requests, of which `known` have known answers: the share that is offloaded,
    and the share of the known ones that is kept and wrong, with an upper bound. NaN if none are known."""

    cut: float
    requests: int
    known: int
    share: float
    risk: float
    risk_bound: float


POINTS = 16
"""Maximum number of segments of an operating curve."""


def operating_points(sample: Sample) -> tuple[tuple[float, float], ...]:
    """(share, risk) when the hardest requests are offloaded first: that share of the known requests, and the share of
    them that is then kept and wrong; from none to all that may be offloaded. Empty if none are known."""
    known = sample.known
    if not len(known):
        return ()
    cuts = np.concatenate([known.cuts()[::-1], [-np.inf]])
    points = {0.0: float(known.losses.mean())}
    for cut in cuts[np.unique(np.linspace(0, len(cuts) - 1, POINTS).astype(int))]:
        goes_up = known.scores > cut
        points[float(goes_up.mean())] = float(known.losses[~goes_up].sum() / len(known))
    return tuple(sorted(points.items()))


def found(sample: Sample, cut: float, confidence: float) -> Found:
    """The results of `cut` on `sample`; the bound is exact and one-sided at `confidence`."""
    known = sample.known
    wrong = known.kept_wrong(cut)
    risk = wrong / len(known) if len(known) else math.nan
    bound = upper_bound(wrong, len(known), confidence) if len(known) else math.nan
    return Found(cut, len(sample), len(known), sample.share(cut), risk, bound)


def requests_for_share(target: float) -> int:
    """Number of requests for choosing a share: a standard error √(α(1 − α)/n) of 2.5 points, and ten on the rarer
    side."""
    by_error = target * (1 - target) / _STANDARD_ERROR**2
    return math.ceil(max(by_error, _TAIL / min(target, 1 - target)))


def cut_for_share(sample: Sample, target: float) -> float:
    """The cut whose share is nearest to `target`; of two, the smaller share. Raises `CannotCalibrate`."""
    needed = requests_for_share(target)
    if len(sample) < needed:
        raise CannotCalibrate(
            f"{len(sample)} requests are too few to choose a share of {target:.4g}; at least {needed} are needed",
            needed / max(1, len(sample)),
        )
    cuts = sample.cuts()
    always = float((sample.scores == math.inf).mean())
    if always > target + SHARE_TOLERANCE:
        raise CannotCalibrate(
            f"a share of {target:.4g} is out of reach: {always:.1%} are offloaded whatever the threshold (large, sent "
            "by a rule, or without a score)"
        )
    if not len(cuts):
        raise CannotCalibrate("no request has a score for a threshold to decide on")
    ordered = np.sort(sample.scores)
    shares = 1.0 - np.searchsorted(ordered, cuts, "right") / len(sample)
    best = len(cuts) - 1 - int(np.argmin(np.abs(shares - target)[::-1]))
    if abs(shares[best] - target) > SHARE_TOLERANCE:
        above, below = shares[shares > target], shares[shares <= target]
        near = " and ".join(f"{share:.1%}" for share in (*above[-1:], *below[:1]))
        values = count_of(len(cuts), "distinct value")
        raise CannotCalibrate(
            f"a share of {target:.4g} is out of reach: the scores have {values}, and the nearest shares are {near}; "
            "another measure may have finer scores"
        )
    return float(cuts[best])


def requests_for_risk(max_risk: float, confidence: float) -> int:
    """The fewest requests that can show a risk of at most `max_risk`: (1 − ε)ⁿ ≤ δ, with none of them wrong."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-max_risk))


def cut_for_risk(sample: Sample, max_risk: float, confidence: float) -> float:
    """The highest cut (fewest offloaded) for which `max_risk` holds at `confidence`. Raises `CannotCalibrate`.

    Learn-then-Test (Angelopoulos et al. 2021, arXiv 2110.01052): for each cut c test H_c, "the true risk is above ε",
    with the exact p-value P(Binomial(n, ε) ≤ k_c), where k_c of n known requests are kept and wrong. By fixed sequence
    testing (its section 2.3) go from the cut that offloads most to the one that offloads least, and stop at the first
    that is not rejected at δ = 1 − confidence. The chosen cut has a true risk above ε with probability δ at most. No
    correction is needed for the number of cuts, nor for testing all on the same requests: k_c never falls along the
    way, so to pass the first cut with a true risk above ε, that very cut would have to be rejected.
    """
    known = sample.known
    needed = requests_for_risk(max_risk, confidence)
    if not len(known):
        raise CannotCalibrate("a risk needs edge_correct and cloud_correct, but no line of the log has both")
    if len(known) < needed:
        raise CannotCalibrate(
            f"{len(known)} requests with both answers known are too few to show a risk of at most {max_risk:.4g} at "
            f"{confidence:.4g} confidence; at least {needed} are needed even if not one is answered wrongly",
            needed / max(1, len(known)),
        )
    cuts = known.cuts()
    order = np.argsort(known.scores, kind="stable")
    totals = np.concatenate([[0.0], np.cumsum(known.losses[order])])
    wrong = totals[np.searchsorted(known.scores[order], cuts, "right")]
    allowed = _allowed(len(known), max_risk, confidence)
    passed = int(np.searchsorted(wrong, allowed, "right"))  # `wrong` ascends: all cuts before this one are rejected
    if passed == 0:
        best = wrong[0] if len(cuts) else totals[-1]
        raise CannotCalibrate(
            f"a risk of at most {max_risk:.4g} at {confidence:.4g} confidence is out of reach: even with all but the "
            f"easiest requests offloaded the bound is {upper_bound(int(best), len(known), confidence):.4g}; those that "
            "a rule keeps, or that share the easiest score, are too often wrong"
        )
    return float(cuts[passed - 1])


def _allowed(trials: int, max_risk: float, confidence: float) -> int:
    """The largest k with P(Binomial(trials, max_risk) ≤ k) ≤ 1 − confidence; at least 0 by `requests_for_risk`."""
    low, high = 0, trials
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at_most(middle, trials, max_risk) <= 1 - confidence else (low, middle)
    return low


def contradiction(held_out: Sample, chosen: Found, cloud_share: float, max_risk: float) -> str:
    """Why the held-out requests contradict the choice; "" if they do not.

    The share may differ by the tolerance and three standard errors of a difference; a risk is contradicted if as many
    wrong answers have a probability below 1 % at a true risk of `max_risk`.
    """
    if not math.isnan(cloud_share):
        share = held_out.share(chosen.cut)
        error = math.sqrt(cloud_share * (1 - cloud_share) * (1 / max(1, len(held_out)) + 1 / chosen.requests))
        if abs(share - cloud_share) > SHARE_TOLERANCE + 3 * error:
            return f"{share:.1%} of the {len(held_out)} requests held out would be offloaded, not {cloud_share:.1%}"
        return ""
    known = held_out.known
    wrong = known.kept_wrong(chosen.cut)
    if at_least(wrong, len(known), max_risk) < 0.01:
        return (
            f"{wrong} of the {len(known)} requests held out are kept and wrong, too many for a risk of {max_risk:.1%}"
        )
    return ""
