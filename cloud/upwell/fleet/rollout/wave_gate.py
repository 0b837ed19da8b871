"""The gate between two waves: tests whether a release is worse than the one before, at any time and as often as
needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
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
_PRIOR_REPORTS, _ERRORS = 2, 2.0
_FEWEST_BEFORE = 20
_MOST_OF_ONE = 1000
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
    `reports` reports. `patience_s` is the time limit from the offer on.
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

    Each block of a wave is one observation X: the mean, over the reports in it, of the share of bad ones among the
    requests since the device's last report. The null hypothesis: given all that came before and the control group, the
    mean of X is at most m. Several odds each start with a capital of 1, which is multiplied by `bet(X, m, odds)`
    (Waudby-Smith & Ramdas 2024, arXiv 2010.09686); their average

        M_t = (1/K) Σ_k Π_{i ≤ t} L_k(X_i)

    is a nonnegative supermartingale that starts at 1, so it ever reaches 1/δ with a probability of at most δ (Ville
    1939), whenever and however often it is checked. A block counts once, however many devices and requests it covers,
    since what happens in the same minute shares its fate: nothing is assumed about its dependence. m may differ from
    block to block: it is the `reference` plus the allowed excess.

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

    def add(self, signal: Signal, seen: Tally, reference: float, allowed: float) -> Bound:
        """The bound after one more block, with at least one report."""
        n = self.observations + 1
        capitals = tuple(
            min(capital * bet(seen.mean, allowed, odds), 1e30)
            for capital, odds in zip(self.capitals, _odds(signal), strict=True)
        )
        return Bound(
            capitals, n, self.bad + seen.bad, self.total + seen.total,
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
class Tally:
    """One share in some reports: sums over the reports of their share, the share `expected` of each device by its past,
    the `squares` of the difference, and the share `allowed`. `bad` of `total` requests or audits were bad.
    """

    reports: int = 0
    shares: float = 0.0
    squares: float = 0.0
    expected: float = 0.0
    allowed: float = 0.0
    bad: int = 0
    total: int = 0

    @property
    def mean(self) -> float:
        """The mean share; there must be a report."""
        return self.shares / self.reports

    def add(self, counted: tuple[int, int], expected: float, allowed: float) -> Tally:
        """The tally with one more report of `counted` = (bad, total), total > 0."""
        bad, total = counted
        share = bad / total
        return Tally(
            self.reports + 1, self.shares + share, self.squares + (share - expected) ** 2, self.expected + expected,
            self.allowed + allowed, self.bad + bad, self.total + total,
        )  # fmt: skip


NO_TALLY = Tally()
Tallies: TypeAlias = Mapping[Share, Tally]


@dataclass(frozen=True, slots=True)
class Block:
    """The reports of some minutes, which are judged as one observation: at most one of each device of the wave
    (`treated`), and all that came meanwhile from the `control` group, the devices that still run the previous release.

    Once there are none, devices of earlier waves that have `passed` show what is due to the hour: what the release
    changes has changed on them already.
    """

    number: int = 1
    treated: Tallies = field(default_factory=dict)
    control: Tallies = field(default_factory=dict)
    passed: Tallies = field(default_factory=dict)


def _upper(bad: int, total: int) -> float:
    """The upper end of a share's score interval (Wilson 1927), one-sided at 99 %."""
    share, spread = bad / total, _Z * _Z / total
    centre = share + spread / 2
    end = (centre + math.sqrt(spread * (share * (1.0 - share) + spread / 4))) / (1.0 + spread)
    return min(1.0, end)  # of a share of 1 it may be rounded up


def weighed(delta: Counts, added: Counts = NO_COUNTS) -> Counts:
    """What `delta` of a device that has `added` so much already adds to the counts of all devices: up to a thousand
    requests and audits of one device, in proportion. So no device decides alone what is usual, however much it says it
    has served.
    """
    requests, late, degraded = _first(_MOST_OF_ONE - added.requests, delta.requests, delta.late, delta.degraded)
    audits, disagreed = _first(_MOST_OF_ONE - added.audits, delta.audits, delta.disagreed)
    return Counts(requests, late, degraded, audits, disagreed)


def _first(room: int, total: int, *bad: int) -> tuple[int, ...]:
    """As many of `total` as there is room for, and the bad ones among them, rounded up."""
    kept = min(total, max(0, room))
    return kept, *(-(-one * kept // max(1, total)) for one in bad)


def past_share(signal: Share, own: Counts, pooled: Counts) -> tuple[float, float] | None:
    """A device's share before, and its standard error; None if nothing is known of it.

    The device's own share, k of n, shrunk towards that of all devices, π (the upper end of its 99 % interval), as if
    by twenty more requests:

        p = (k + 20 π) / (n + 20),   with the standard error √(p (1 − p) / (n + 20)).
    """
    bad, total = pooled.of(signal)
    if total < _FEWEST_BEFORE:
        return None
    own_bad, own_total = own.of(signal)
    share = (own_bad + _PRIOR * _upper(bad, total)) / (own_total + _PRIOR)
    return share, math.sqrt(share * (1.0 - share) / (own_total + _PRIOR))


def add_treated(settings: GateSettings, tallies: Tallies, delta: Counts, own: Counts, pooled: Counts) -> Tallies:
    """The tallies with a report of a device on the new release. Its reference is its `past_share` plus one standard
    error.
    """
    after = dict(tallies)
    for signal in SHARES:
        counted, limits, past = delta.of(signal), settings.limits(signal), past_share(signal, own, pooled)
        if counted[1] > 0:
            expected = limits.at_most if past is None else sum(past)
            allowed = limits.at_most if past is None else expected + limits.worse_by
            after[signal] = after.get(signal, NO_TALLY).add(counted, expected, allowed)
    return after


def add_control(tallies: Tallies, delta: Counts, own: Counts, pooled: Counts) -> Tallies:
    """The tallies with a report of a device to compare with, whose past is `own`."""
    after = dict(tallies)
    for signal in SHARES:
        counted, past = delta.of(signal), past_share(signal, own, pooled)
        if counted[1] > 0 and past is not None:
            after[signal] = after.get(signal, NO_TALLY).add(counted, past[0], 0.0)
    return after


def raised(expected: float, reports: int, control: Tally, *, by_load: bool) -> float:
    """The mean share to expect of so many reports now, if by the devices' past it is `expected`, by what the control
    group shows.

    The control group's share now, c, and by its past, e, are means over its n reports; two more with e are added. A
    crowd does not strike all devices alike. So a share that depends on load (`by_load`) is expected higher by twice its
    excess in the control group, or if less, by two standard errors of the difference, 2 s √(1/n + 1/reports), but at
    least by one of c, s/√n; s² is the variance of its reports about their devices' past. Difference in differences
    (Ashenfelter & Card 1985, "Using the longitudinal structure of earnings"), by odds or by points, whichever is more:

        q/(1 − q) = expected/(1 − expected) · c/(1 − c) · (1 − e)/e   or   q = expected + c − e.

    It is never less than `expected`: the release is not blamed for a bad hour of the whole site.
    """
    if not control.reports:
        return expected
    n = control.reports + _PRIOR_REPORTS
    past, worse = _within(control.expected / control.reports), control.shares - control.expected
    mean = worse / n
    squares = control.squares - 2 * mean * worse + control.reports * mean * mean
    variance = (max(0.0, squares) + _PRIOR_REPORTS * past * (1.0 - past)) / n
    spread = _ERRORS * math.sqrt(variance * (1 / n + 1 / reports))
    doubt = max(math.sqrt(variance / n), min(spread, _ERRORS * mean)) if by_load else 0.0
    now = _within(past + mean + doubt)
    if now <= past:
        return expected
    odds = now / (1.0 - now) * (1.0 - past) / past
    return max(with_odds(_within(expected), odds), expected + now - past)


def _within(share: float) -> float:
    return min(max(share, _LOWEST), _HIGHEST)


def judge_block(bounds: Bounds, block: Block, *, is_current: bool) -> Bounds:
    """The bounds of a wave after that block.

    Without anything to compare with, devices of the current wave are held to their own past. Those of earlier waves are
    then no longer judged by late and degraded answers, which the hour may have brought.
    """
    after = dict(bounds)
    for signal, seen in block.treated.items():
        is_of_load = signal != "disagreed"
        control = block.control.get(signal) or (block.passed.get(signal) if is_of_load else None) or NO_TALLY
        if is_current or control.reports or not is_of_load:
            expected = seen.expected / seen.reports
            more = raised(expected, seen.reports, control, by_load=is_of_load) - expected
            allowed = _within(seen.allowed / seen.reports + more)
            after[signal] = bounds[signal].add(signal, seen, min(expected + more, _HIGHEST), allowed)
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
