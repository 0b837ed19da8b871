"""The current rate of the uplink as a distribution, which makes "in time" a probability."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from upwell.shared.value_classes import value_class

_Array: TypeAlias = npt.NDArray[np.float64]

_CELLS = 40
_RATES: _Array = np.geomspace(1e3, 1e9, _CELLS)
"""The grid of rates (bytes/s); links beyond it count as the first or the last value."""

_STEP = math.log(_RATES[1] / _RATES[0])
_ORDER = np.arange(_CELLS)
_MODES: _Array = np.cos(np.pi * np.outer(_ORDER, _ORDER + 0.5) / _CELLS)
_MODES *= np.where(_ORDER == 0, 1.0, math.sqrt(2.0))[:, None] / math.sqrt(_CELLS)
_DECAY: _Array = (1.0 - np.cos(np.pi * _ORDER / _CELLS)) / _STEP**2
"""The heat equation on an interval with reflecting ends, solved in its eigenmodes (a discrete cosine transform)."""

_ANYTHING = (1.0 / _CELLS,) * _CELLS
_SHORTEST_S = 1e-3
"""Minimum duration of a sample; shorter ones say no more about the link."""

_LOGISTIC = 1.702
"""A logistic curve of this steepness is within 0.01 of the normal distribution function."""


class Chance(NamedTuple):
    """The prospects of a message: its probability of being in time, and the expected seconds that the link is busy with
    it."""

    in_time: float
    occupied_s: float


@value_class
class RateBelief:
    """The probability of each possible rate of the link, updated by Bayes' rule; an immutable value.

    As in Sprout (Winstein, Sivaraman, Balakrishnan, NSDI 2013) the rate is a hidden state that drifts, here its
    logarithm: `WANDER`² is the variance gained per second. Links also jump: after `FORGET_S` seconds all but 1/e of the
    observations is replaced by `habit`, the long-term distribution of this link, and that within `UNKNOWN_S` by a
    uniform one, so that a link that was bad is tried again. A message of x bytes at rate λ is expected to take rtt +
    x/λ; the logarithm of the actual time differs from that by N(0, `NOISE`²), and a message that timed out took longer.

    Why not a mean with a margin: whether a message pays depends on its chance of being in time, and that is what must
    be known after a few late ones. `weights` are for `at_s`; `habit` is their mean over the `count` messages seen, of
    which recent ones count `HABIT` each.

    At the slowest rates a message takes minutes, which would outweigh all others in the mean time that it keeps the
    link busy. So that time counts up to `LONGEST_S`, or `LONGEST_OF_TIME` times what the message has where that is
    more: with a deadline of seconds, a message that is late would else look as cheap as one that is in time.
    """

    WANDER: ClassVar[float] = 0.7
    FORGET_S: ClassVar[float] = 1.0
    UNKNOWN_S: ClassVar[float] = 600.0
    NOISE: ClassVar[float] = 0.25
    HABIT: ClassVar[float] = 0.05
    LONGEST_S: ClassVar[float] = 2.0
    LONGEST_OF_TIME: ClassVar[float] = 2.0
    _DOUBT: ClassVar[float] = 1e-4

    weights: tuple[float, ...] = _ANYTHING
    habit: tuple[float, ...] = _ANYTHING
    at_s: float = -math.inf
    count: int = 0

    def seen(self, now_s: float, size_bytes: int, took_s: float, rtt_s: float, *, is_bound: bool) -> RateBelief:
        """With a message of this size that took `took_s`, round trip included, or longer with `is_bound`."""
        weights, habit = self._at(now_s)
        if size_bytes > 0:
            deviation = _deviation(min(took_s, rtt_s + size_bytes / _RATES[0]), size_bytes, rtt_s)
            likelihood = _above(deviation) if is_bound else np.exp(-0.5 * np.minimum(deviation * deviation, 60.0))
            weights = weights * (likelihood + self._DOUBT)
            weights = weights / weights.sum()
            habit = habit + max(self.HABIT, 1.0 / (self.count + 1)) * (weights - habit)
        count = self.count + (size_bytes > 0)
        return RateBelief(tuple(weights.tolist()), tuple(habit.tolist()), max(now_s, self.at_s), count)

    def chance(self, now_s: float, size_bytes: float, ahead_bytes: float, within_s: float, rtt_s: float) -> Chance:
        """The probability that a message, behind those that wait before it, takes at most `within_s`, round trip
        included, and how long it keeps the link busy."""
        in_time, occupied_s = self.chances(now_s, np.array([size_bytes]), ahead_bytes, within_s, rtt_s)
        return Chance(min(1.0, float(in_time[0])), float(occupied_s[0]))

    def chances(
        self, now_s: float, sizes_bytes: _Array, ahead_bytes: float, within_s: float, rtt_s: float
    ) -> tuple[_Array, _Array]:
        """The same for messages of these sizes [n], each by itself."""
        weights, _ = self._at(now_s)
        in_time = _above(-_deviation(within_s, ahead_bytes + sizes_bytes[:, None], rtt_s)) @ weights
        longest_s = max(self.LONGEST_S, self.LONGEST_OF_TIME * within_s)
        return in_time, np.minimum(sizes_bytes[:, None] / _RATES, longest_s) @ weights

    def _at(self, now_s: float) -> tuple[_Array, _Array]:
        """The weights of rates and of the habit at that time, after the silence until then."""
        weights, habit = np.array(self.weights), np.array(self.habit)
        silence_s = now_s - self.at_s
        if not silence_s > 0.0:
            return weights, habit
        habit = habit + (1.0 - math.exp(-silence_s / self.UNKNOWN_S)) * (1.0 / _CELLS - habit)
        kept = math.exp(-silence_s / self.FORGET_S)
        if kept < 1e-6:
            return habit, habit
        spread = _MODES.T @ (np.exp(-(self.WANDER**2) * silence_s * _DECAY) * (_MODES @ weights))
        return kept * np.maximum(spread, 0.0) + (1.0 - kept) * habit, habit


def _deviation(took_s: float, size_bytes: float | _Array, rtt_s: float) -> _Array:
    """By how many standard deviations `took_s` exceeds the time expected at each rate."""
    expected_s = np.maximum(rtt_s + size_bytes / _RATES, _SHORTEST_S)
    deviation: _Array = (math.log(max(took_s, _SHORTEST_S)) - np.log(expected_s)) / RateBelief.NOISE
    return deviation


def _above(deviation: _Array) -> _Array:
    """The probability that a normal variable exceeds `deviation` standard deviations."""
    above: _Array = 1.0 / (1.0 + np.exp(np.clip(_LOGISTIC * deviation, -60.0, 60.0)))
    return above
