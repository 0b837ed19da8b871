"""Tests one quantity against its reference, with a test that may be read after every row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from upwell.shared.routing.calibration.binomial import lower_bound, upper_bound
from upwell.shared.routing.drift.drift_reference import Floats, ReferenceHistogram

FALSE_ALARMS = 0.05
"""The probability that any quantity of a model without drift ever raises an alarm, however long it is watched."""

_ODDS = np.array([1.5, 4.0])
_CAP = 10.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """A quantity has moved: `seen` at one time (Unix seconds) and unit of the stream, since an estimated earlier
    one."""

    seen_unix_s: float
    seen_at: int
    since_unix_s: float
    since: int


class QuantityTest:
    """Whether the rows of a stream still fall into the bins of a histogram as in its reference. Not thread-safe.

    For an ordered quantity the indicators Xⱼ = 1{value ≤ edge j} are watched, for a named one Xⱼ = 1{label j}. If a
    unit has several rows, Xⱼ is their share. The reference gives bounds lⱼ ≤ P(Xⱼ = 1) ≤ uⱼ (Clopper & Pearson 1934),
    which all hold together with probability 1 − δ/2 at least, by Bonferroni over all indicators, both sides and the
    `quantities` of the model. Against each bound there are bets of two odds (1.5 and 4)

    L = 1 + λ(x − m),   λ = (q − m)/(m(1 − m)),   q = odds · m/(1 − m + odds · m),

    for m = uⱼ with x = Xⱼ, and for m = 1 − lⱼ with x = 1 − Xⱼ (`estimators.anytime_bets`; Waudby-Smith
    & Ramdas 2024). A bet may begin at any unit t with the prior weight w_t = G(t − 1) − G(t), G(t) = 1/ln(e + t):

    S_t = (S_{t−1} + w_t) L_t,   M_t = mean of S_t over all bets + G(t),

    a nonnegative supermartingale that begins at 1 while the bounds hold and, given the past, no unit is likelier than
    its bound. By Ville's inequality (1939) it ever reaches 2Q/δ with probability δ/(2Q) at most for each of the Q
    quantities. So with δ = `FALSE_ALARMS` = 5 % no quantity of a model ever raises a false alarm, however often and
    long it is watched, with probability 95 % at least, over the reference as well as the stream.

    Onset: the unit at which the strongest bet's own CUSUM C_t = max(C_{t−1}, 1) L_t (Page 1954) last began. S is capped
    when its share of M is ten times the limit, and the alarm ends when M falls below 1 again.
    """

    def __init__(self, reference: ReferenceHistogram, quantities: int, *, is_one_sided: bool = False) -> None:
        counts = np.array(reference.counts)
        hits = counts if reference.labels else np.cumsum(counts)[:-1]
        self._is_named = bool(reference.labels)
        if is_one_sided:  # only an increase of the last label is an alarm
            hits = hits[-1:]
        self._is_one_sided = is_one_sided
        total, sides = int(counts.sum()), 1 if is_one_sided else 2
        confidence = 1.0 - FALSE_ALARMS / 2 / (quantities * sides * len(hits))
        upper = [upper_bound(int(k), total, confidence) for k in hits]
        lower = [lower_bound(int(k), total, confidence) for k in hits]
        bounds = np.array([upper] if is_one_sided else [upper, [1.0 - one for one in lower]])[..., None]
        aims = _ODDS * bounds / (1.0 - bounds + _ODDS * bounds)
        spread = bounds * (1.0 - bounds)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._stakes = np.where(spread > 0, (aims - bounds) / spread, 0.0)
        self._bounds = bounds
        self._limit = 2 * quantities / FALSE_ALARMS
        self._capital = np.zeros_like(self._stakes)
        self._cusum = np.zeros_like(self._stakes)
        self._start = np.zeros_like(self._stakes)
        self._start_s = np.zeros_like(self._stakes)
        self.units = 0
        self.alarm: Alarm | None = None

    def add(self, counts: Floats, now_unix_s: float) -> None:
        """Add one unit: the number of its rows in each bin, at least one in total."""
        shares = counts / counts.sum()
        shares = shares if self._is_named else np.cumsum(shares)[:-1]
        if self._is_one_sided:
            shares = shares[-1:]
        x = np.stack([shares] if self._is_one_sided else [shares, 1.0 - shares])[..., None]
        before = _unspent(self.units)
        self.units += 1
        left = _unspent(self.units)
        gains = np.maximum(1.0 + self._stakes * (x - self._bounds), 0.0)
        self._capital = np.minimum((self._capital + (before - left)) * gains, _CAP * self._limit * gains.size)
        begins = self._cusum < 1.0
        self._start[begins], self._start_s[begins] = self.units, now_unix_s
        self._cusum = np.minimum(np.maximum(self._cusum, 1.0) * gains, 1e12)
        evidence = float(self._capital.mean()) + left
        if self.alarm is None and evidence >= self._limit:
            best = np.unravel_index(int(self._capital.argmax()), self._capital.shape)
            self.alarm = Alarm(now_unix_s, self.units, float(self._start_s[best]), int(self._start[best]))
        elif self.alarm is not None and evidence < 1.0:
            self.alarm = None

    def to_json(self) -> dict[str, Any]:
        """The state for a restart."""
        alarm = self.alarm
        return {
            "units": self.units,
            "alarm": None if alarm is None else [alarm.seen_unix_s, alarm.seen_at, alarm.since_unix_s, alarm.since],
            **{name: getattr(self, f"_{name}").ravel().tolist() for name in _STATE},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state. Raises `ValueError`, `KeyError` or `TypeError` if it is not one of this test."""
        arrays = {name: np.array(state[name], np.float64).reshape(self._stakes.shape) for name in _STATE}
        units = int(state["units"])
        if not all(np.isfinite(one).all() and (one >= 0).all() for one in arrays.values()) or units < 0:
            raise ValueError("the state contains impossible counts")
        alarm = state["alarm"]
        self.alarm = None if alarm is None else Alarm(float(alarm[0]), int(alarm[1]), float(alarm[2]), int(alarm[3]))
        self.units = units
        for name, one in arrays.items():
            setattr(self, f"_{name}", one)


_STATE = ("capital", "cusum", "start", "start_s")


def _unspent(units: int) -> float:
    """G: the total prior weight of bets that begin later."""
    return 1.0 / math.log(math.e + units)
