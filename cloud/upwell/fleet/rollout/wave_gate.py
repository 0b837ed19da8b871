"""The gate between two waves: tests whether a release is worse than the one before, at any time and as often as
needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from upwell.shared.routing.estimators.anytime_bets import bet, with_odds

Share = Literal["late", "degraded", "disagreed"]
Signal = Literal[Share, "failed"]
SHARES: tuple[Share, ...] = get_args(Share)
"""The shares counted in requests or audits per wave; `failed` counts starts over all waves."""

FALSE_HALT_LEVEL = 0.02
"""At most this share of the roll-outs of healthy releases is ever halted: half of it for `failed`, the rest in equal
parts for each share in each wave.
"""
DOUBT = 4.0
"""A wave with this much evidence against it continues collecting until it is halted or has less."""

_SHARE_ODDS = (1.5, 2.5, 5.0, 25.0)
_FAILED_ODDS = (25.0, 200.0, 25_000.0)
_PRIOR = 20
_FEWEST_BEFORE = 20
_MEMORY_REQUESTS = 1000
_Z = 2.326
_LOWEST, _HIGHEST = 0.001, 0.95


@dataclass(frozen=True, slots=True)
class Counts:
    """A device's counts. Late and degraded requests are part of `requests`, disagreements part of `audits`."""

    requests: int = 0
    late: int = 0
    degraded: int = 0
    audits: int = 0
    disagreed: int = 0

    def __post_init__(self) -> None:
        """Raises `ValueError` for impossible counts."""
        if min(self.requests - self.late, self.requests - self.degraded, self.audits - self.disagreed) < 0:
            raise ValueError(f"more late, degraded or disagreed than requests or audits: {self}")
        if min(self.requests, self.late, self.degraded, self.audits, self.disagreed) < 0:
            raise ValueError(f"a count is negative: {self}")

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.requests + other.requests, self.late + other.late, self.degraded + other.degraded,
            self.audits + other.audits, self.disagreed + other.disagreed,
        )  # fmt: skip

    def then(self, delta: Counts) -> Counts:
        """The sum with `delta`, where the former counts are halved once they are large: the recent state of the
        control group.
        """
        if self.requests < _MEMORY_REQUESTS:
            return self + delta
        halves = (self.requests, self.late, self.degraded, self.audits, self.disagreed)
        return Counts(*(count // 2 for count in halves)) + delta

    def of(self, signal: Share) -> tuple[int, int]:
        """The bad ones, and the total."""
        if signal == "disagreed":
            return self.disagreed, self.audits
        return (self.late if signal == "late" else self.degraded), self.requests


NO_COUNTS = Counts()
"""Nothing served yet."""


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limits of one share: how far (as a fraction) it may exceed the reference, and its maximum without one."""

    worse_by: float
    at_most: float


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What a device must show, and what halts the roll-out.

    It has passed once it has served `requests` requests and, if it was audited before, `audits` audits, in at least
    `reports` reports. A report is one observation, whatever its size. `patience_s` is the time limit from the offer
    on.
    """

    requests: int = 200
    audits: int = 40
    reports: int = 10
    patience_s: float = 3600.0
    late: GateLimits = GateLimits(worse_by=0.02, at_most=0.10)
    degraded: GateLimits = GateLimits(worse_by=0.05, at_most=0.50)
    disagreed: GateLimits = GateLimits(worse_by=0.05, at_most=0.25)
    failed: float = 0.002

    def limits(self, signal: Share) -> GateLimits:
        """The limits of that share."""
        return {"late": self.late, "degraded": self.degraded, "disagreed": self.disagreed}[signal]


DEFAULT_GATE = GateSettings()
"""The default limits."""


@dataclass(frozen=True, slots=True)
class Breach:
    """Why a roll-out was halted: `bad` of `total` (requests, audits or starts), while the previous release would have
    had `reference` and at most `allowed` was accepted; `evidence` reached `threshold`.
    """

    signal: Signal
    bad: int
    total: int
    reference: float
    allowed: float
    evidence: float
    threshold: float

    def __str__(self) -> str:
        what = {
            "late": "requests answered late",
            "degraded": "requests answered degraded",
            "disagreed": "audits in which the cloud disagreed",
            "failed": "starts that failed",
        }[self.signal]
        return (
            f"{what}: {self.bad} of {self.total} ({self.bad / max(1, self.total):.1%}); the previous release has "
            f"{self.reference:.1%}, at most {self.allowed:.1%} is allowed; the evidence is {self.evidence:,.0f} to 1, "
            f"and {self.threshold:,.0f} to 1 halts"
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """A bet that a share exceeds what is allowed. Immutable.

    Each report of a device is one observation X: the share of bad ones among its requests since the last report. The
    null hypothesis: given all that came before, the mean of X is at most m. Several odds each start with a capital of
    1, which is multiplied by `bet(X, m, odds)` (Waudby-Smith & Ramdas 2024, arXiv 2010.09686); their average

        M_t = (1/K) Σ_k Π_{i ≤ t} L_k(X_i)

    is a nonnegative supermartingale that starts at 1, so it ever reaches 1/δ with a probability of at most δ (Ville
    1939), whenever and however often it is checked. A report counts once, however many requests it covers, since
    requests of one minute on one device share their fate: nothing is assumed about their dependence. m may differ
    from report to report and from device to device: it is the `reference` plus the allowed excess.

    `bad`, `total` are sums; `reference` and `allowed` are averages over the observations.
    """

    capitals: tuple[float, ...]
    observations: int = 0
    bad: int = 0
    total: int = 0
    reference: float = 0.0
    allowed: float = 0.0

    @classmethod
    def start(cls, signal: Signal) -> Bound:
        """Before the first report."""
        return cls((1.0,) * len(_odds(signal)))

    @property
    def evidence(self) -> float:
        """M_t: the odds against the release."""
        return sum(self.capitals) / len(self.capitals)

    def add(self, signal: Signal, counted: tuple[int, int], reference: float, allowed: float) -> Bound:
        """The bound after one more report with `counted` = (bad, total), total > 0."""
        bad, total = counted
        n = self.observations + 1
        capitals = tuple(
            min(capital * bet(bad / total, allowed, odds), 1e30)
            for capital, odds in zip(self.capitals, _odds(signal), strict=True)
        )
        return Bound(
            capitals, n, self.bad + bad, self.total + total,
            self.reference + (reference - self.reference) / n, self.allowed + (allowed - self.allowed) / n,
        )  # fmt: skip


Bounds: TypeAlias = Mapping[Share, Bound]
"""The bounds of one wave."""


def _odds(signal: Signal) -> tuple[float, ...]:
    return _FAILED_ODDS if signal == "failed" else _SHARE_ODDS


def threshold(signal: Signal, waves: int) -> float:
    """1/δ of one bound: the evidence that halts. The δ of all bounds of a roll-out add up to `FALSE_HALT_LEVEL`."""
    half = FALSE_HALT_LEVEL / 2
    return 1.0 / (half if signal == "failed" else half / (len(SHARES) * waves))


@dataclass(frozen=True, slots=True)
class Before:
    """What a device is compared with: its `own` counts under the previous release, those of all devices of the
    roll-out (`pooled`), and the recent counts of devices that still run the previous release (`control`).
    """

    own: Counts = NO_COUNTS
    pooled: Counts = NO_COUNTS
    control: Counts = NO_COUNTS


def _upper(bad: int, total: int) -> float:
    """The upper end of a share's score interval (Wilson 1927), one-sided at 99 %."""
    share, spread = bad / total, _Z * _Z / total
    centre = share + spread / 2
    return (centre + math.sqrt(spread * (share * (1.0 - share) + spread / 4))) / (1.0 + spread)


def reference(signal: Share, before: Before) -> float | None:
    """The share that the previous release would have on this device; None if nothing is known of it.

    The device's own former share, k of n, shrunk towards that of all devices, π (the upper end of its 99 % interval),
    as if by twenty more requests, plus one standard error, since n may be small:

        p = (k + 20 π) / (n + 20),   own = p + √(p (1 − p) / (n + 20)).

    If the control group recently has w > 1 times the odds that all devices had before, the reference has w times the
    odds of `own`: the release is not blamed for a bad day of the whole site.
    """
    bad, total = before.pooled.of(signal)
    if total < _FEWEST_BEFORE:
        return None
    own_bad, own_total = before.own.of(signal)
    share = (own_bad + _PRIOR * _upper(bad, total)) / (own_total + _PRIOR)
    own = share + math.sqrt(share * (1.0 - share) / (own_total + _PRIOR))
    control_bad, control_total = before.control.of(signal)
    if control_total < _FEWEST_BEFORE:
        return min(own, _HIGHEST)
    worse = _odds_of(control_bad, control_total) / _odds_of(bad, total)
    return with_odds(min(own, _HIGHEST), max(1.0, worse))


def _odds_of(bad: int, total: int) -> float:
    """The odds with half a case added on either side, so that zero counts are allowed (Haldane 1956)."""
    return (bad + 0.5) / (total - bad + 0.5)


def judge_report(settings: GateSettings, bounds: Bounds, delta: Counts, before: Before) -> Bounds:
    """The bounds of a wave after a report with `delta`, the counts since the report before."""
    after = dict(bounds)
    for signal in SHARES:
        counted = delta.of(signal)
        if counted[1] > 0:
            limits, was = settings.limits(signal), reference(signal, before)
            allowed = limits.at_most if was is None else was + limits.worse_by
            after[signal] = bounds[signal].add(
                signal, counted, allowed if was is None else was, min(max(allowed, _LOWEST), _HIGHEST)
            )
    return after


def judge_starts(settings: GateSettings, good: int, failed: int) -> Bound:
    """The bound of `failed` over all devices that were offered the release, given how many have failed by now.

    A device counts once, as good until it fails. So at any time this is at most the bet on the final fates of those
    devices in the order of their offers, which is a supermartingale: the level holds, whenever it is checked.
    """
    m, total = settings.failed, good + failed
    capitals = tuple(min(bet(0.0, m, odds) ** good * bet(1.0, m, odds) ** failed, 1e30) for odds in _FAILED_ODDS)
    return Bound(capitals, total, failed, total, m, m)


def breach(signal: Signal, bound: Bound, waves: int) -> Breach | None:
    """Why this bound of a roll-out with so many waves is broken; None if it holds."""
    halts = threshold(signal, waves)
    if bound.evidence < halts:
        return None
    return Breach(signal, bound.bad, bound.total, bound.reference, bound.allowed, bound.evidence, halts)
