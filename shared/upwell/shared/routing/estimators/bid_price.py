"""What a second of the uplink is worth, by the candidates of late: who goes where not all of them can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from upwell.shared.routing.estimators.rate_belief import RateBelief
from upwell.shared.routing.hardness import RISING, Measure

MIDDLING = 0.25
"""The gain of a row of middling rank."""


class Bid(NamedTuple):
    """One row that was hard: its score, turned so that a larger one is harder, its bytes and when it came."""

    score: float
    size_bytes: float
    at_s: float


class LinkMoment(NamedTuple):
    """The link as a message finds it that is sent at `now_s` and has `within_s` for it, the round trip included."""

    rates: RateBelief
    now_s: float
    within_s: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class BidPrice:
    """The last `WINDOW` candidates for the cloud, and the price of the link that they make. Immutable.

    The link serves one message at a time, so whoever goes takes the place of others, and a bid price decides, as in
    revenue management (Talluri and van Ryzin 1998, doi 10.1287/mnsc.44.11.1577): go where gain · chance is at least the
    price of the seconds that the link is busy with it. For a server without a queue the best price is the most that it
    can earn a second, V = r·E[(v − V·s)⁺] for candidates of value v and s seconds that come r times a second (Lippman
    and Ross 1971, doi 10.1137/0120027). For the n candidates of the last T seconds that is

        V = max over k of Σ v_i ÷ (T + Σ s_i), over the k candidates with the largest v_i ÷ s_i.

    So a link that carries next to nothing is cheap for whom it does carry. The gain of a row is taken to be the square
    of its rank: in most models errors, and with them what the cloud mends, gather among the least sure.

    Here and not a fixed price: that one keeps small ones at home on a slow link whose time nobody else could use.
    """

    WINDOW: ClassVar[int] = 64
    ENOUGH: ClassVar[int] = 8
    SMALLEST: ClassVar[float] = 0.1
    SHORTEST_S: ClassVar[float] = 0.1

    sign: float
    recent: tuple[Bid, ...] = ()

    @classmethod
    def start(cls, measure: Measure) -> BidPrice:
        """Before any candidate was seen."""
        return cls(1.0 if measure in RISING else -1.0)

    def add(self, hardness: Sequence[float], size_bytes: float, now_s: float) -> BidPrice:
        """With the rows of one more message; those whose hardness is NaN tell nothing of the others."""
        each_bytes = size_bytes / max(1, len(hardness))
        more = (Bid(self.sign * value, each_bytes, now_s) for value in hardness if not math.isnan(value))
        return replace(self, recent=(*self.recent, *more)[-self.WINDOW :])

    def gain(self, hardness: float) -> float:
        """From 0 for the easiest to 1 for the hardest and for NaN; that of a middling one among too few."""
        if math.isnan(hardness):
            return 1.0
        count, score = len(self.recent), self.sign * hardness
        if count < self.ENOUGH:
            return MIDDLING
        return float((sum((one.score < score) + 0.5 * (one.score == score) for one in self.recent) / count) ** 2)

    def is_among_smallest(self, size_bytes: float) -> bool:
        """Whether at most the share `SMALLEST` of the rows has as few bytes; of equals none is."""
        count = len(self.recent)
        return (
            count >= self.ENOUGH and sum(one.size_bytes <= size_bytes for one in self.recent) <= self.SMALLEST * count
        )

    def per_s(self, link: LinkMoment) -> float:
        """V over this link, as if it were idle; 0 where too few candidates are known."""
        count = len(self.recent)
        if count < self.ENOUGH:
            return 0.0
        by_rank = sorted(self.recent)
        gains = ((np.arange(count) + 0.5) / count) ** 2
        sizes = np.array([one.size_bytes for one in by_rank])
        in_time, occupied_s = link.rates.chances(link.now_s, sizes, 0.0, link.within_s, link.rtt_s)
        values, occupied_s = gains * in_time, np.maximum(occupied_s, 1e-6)
        best_first = np.argsort(-values / occupied_s)
        span_s = max(self.SHORTEST_S, link.now_s - self.recent[0].at_s)
        return float((values[best_first].cumsum() / (span_s + occupied_s[best_first].cumsum())).max())
