"""Means over all requests, estimated from randomly sampled ones with known probabilities. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from upwell.shared.routing.calibration.binomial import lower_bound, upper_bound

Floats = npt.NDArray[np.float64]

_ONE_SIDED = 0.975
_Z = 1.959963984540054
FLIPS = 10_000
_FLIPS_AT_ONCE = 500


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval, from `n` cases. Without any: NaN and the whole interval."""

    mean: float
    low: float
    high: float
    n: int


def share(right: Floats, inclusion: Floats) -> Estimate:
    """The share of all requests for which `right` is 1, from cases with inclusion probabilities π.

    Horvitz & Thompson 1952 ("A generalization of sampling without replacement from a finite universe"), divided by the
    estimated number of requests (Hájek 1971): p̂ = Σ yᵢ/πᵢ / Σ 1/πᵢ. The interval is Korn & Graubard's (1998): Clopper
    and Pearson's for n* = p̂(1 − p̂)/V̂ independent cases, V̂ = Σ ((yᵢ − p̂)/πᵢ)² / (Σ 1/πᵢ)², where n* is at most
    Kish's (Σ wᵢ)²/Σ wᵢ²; counts are rounded outwards, so that it is wider rather than narrower.
    """
    n = len(right)
    if not n:
        return Estimate(math.nan, 0.0, 1.0, 0)
    weights = 1.0 / inclusion
    mean = float((weights * right).sum() / weights.sum())
    variance = float(((weights * (right - mean)) ** 2).sum() / weights.sum() ** 2)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    if variance > 0:
        effective = min(effective, mean * (1 - mean) / variance)
    trials = max(1, math.floor(effective + 1e-9))
    count = mean * trials
    low = lower_bound(max(0, math.floor(count + 1e-9)), trials, _ONE_SIDED)
    high = upper_bound(min(trials, math.ceil(count - 1e-9)), trials, _ONE_SIDED)
    return Estimate(mean, min(low, mean), max(high, mean), n)


def average(values: Floats, inclusion: Floats) -> Estimate:
    """The mean of a quantity over all requests: the same estimate, with the interval μ̂ ± 1.96 √V̂."""
    n = len(values)
    if not n:
        return Estimate(math.nan, -math.inf, math.inf, 0)
    weights = 1.0 / inclusion
    mean = float((weights * values).sum() / weights.sum())
    error = math.sqrt(float(((weights * (values - mean)) ** 2).sum())) / float(weights.sum())
    # A single case says nothing about their spread.
    reach = _Z * error * math.sqrt(n / (n - 1)) if n > 1 else math.inf
    return Estimate(mean, mean - reach, mean + reach, n)


def no_difference(differences: Floats, inclusion: Floats, seed: int = 0) -> float:
    """The p-value of "neither is better" for paired differences: a two-sided sign-flip test (Fisher 1935).

    If neither is better, each dᵢ is as likely to be −dᵢ. With # of `FLIPS` random flips giving a weighted sum Σ dᵢ/πᵢ
    at least as large, p = (1 + #)/(1 + FLIPS), which is exact however unequal the weights are. 1 if all differences
    are 0.
    """
    weighted = differences / inclusion
    weighted = weighted[weighted != 0]
    if not len(weighted):
        return 1.0
    rng, seen = np.random.default_rng(seed), 0
    limit = abs(float(weighted.sum())) - 1e-9 * float(np.abs(weighted).sum())
    for _ in range(FLIPS // _FLIPS_AT_ONCE):
        signs = rng.integers(0, 2, (_FLIPS_AT_ONCE, len(weighted))) * 2 - 1
        seen += int((np.abs(signs @ weighted) >= limit).sum())
    return (1 + seen) / (1 + FLIPS)


def share_up(hardness: Floats, is_risky: Floats, inclusion: Floats, max_risk: float) -> float:
    """The least share of all requests that must be offloaded, hardest first, so that at most `max_risk` of all stay
    and are risky. `hardness` grows with how hard a row is; rows of equal hardness are offloaded together.

    An estimate on these cases, without a guarantee: `upwell policy calibrate` finds a threshold with one.
    """
    if not len(hardness):
        return math.nan
    weights = 1.0 / inclusion
    order = np.argsort(hardness, kind="stable")
    kept = np.cumsum(weights[order]) / weights.sum()
    risk = np.cumsum((weights * is_risky)[order]) / weights.sum()
    ordered = hardness[order]
    is_end = np.append(ordered[1:] > ordered[:-1], True)
    allowed = kept[is_end & (risk <= max_risk)]
    return max(0.0, 1.0 - float(allowed.max())) if len(allowed) else 1.0


def weights_of(inclusion: Sequence[float]) -> Floats:
    """The inclusion probabilities as an array. Raises `ValueError` unless each is in (0, 1]."""
    found = np.asarray(inclusion, dtype=np.float64)
    if not ((found > 0) & (found <= 1)).all():
        raise ValueError("expected an inclusion probability of more than 0 and at most 1")
    return found
