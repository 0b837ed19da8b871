"""The price of a second of uplink time, from the recent candidates: which of them go if not all can."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from upwell.shared.routing.estimators.uplink_rate import RateBelief
from upwell.shared.routing.hardness import RISING, Measure
from upwell.shared.value_classes import value_class

MIDDLING = 0.25
"""The gain of a row of median rank."""


class Bid(NamedTuple):
    """One hard row: its score, oriented so that larger is harder, its bytes and its arrival time."""

    score: float
    size_bytes: float
    at_s: float


class LinkMoment(NamedTuple):
    """The link for a message sent at `now_s` that has `within_s` for it, round trip included."""

    rates: RateBelief
    now_s: float
    within_s: float
    rtt_s: float


@value_class
class BidPrice:
    """The last `WINDOW` candidates for the cloud, and the price of the link that follows from them. Immutable.

    The link serves one message at a time, so each message takes the place of others, and a bid price decides, as in
    revenue management (Talluri and van Ryzin 1998, doi 10.1287/mnsc.44.11.1577): send if gain · chance is at least the
    price of the seconds that the link is busy with it. For a server without a queue the best price is the most that it
    can earn per second, V = r·E[(v − V·s)⁺] for candidates of value v and s seconds that come r times a second (Lippman
    and Ross 1971, doi 10.1137/0120027). For the n candidates of the last T seconds that is

    V = max over k of Σ v_i ÷ (T + Σ s_i), over the k candidates with the largest v_i ÷ s_i.

    So a link that can carry almost nothing is cheap for what it can carry. The gain of a row is the square of its rank:
    in most models the errors, and so what the cloud corrects, gather among the least certain rows.

    Why not a fixed price: on a slow link it would keep small messages back although nothing else could use the time.
    """

    WINDOW: ClassVar[int] = 64
    ENOUGH: ClassVar[int] = 8
    SMALLEST: ClassVar[float] = 0.1
    SHORTEST_S: ClassVar[float] = 0.1

    sign: float
    recent: tuple[Bid, ...] = ()

    @classmethod
    def start(cls, measure: Measure) -> BidPrice:
        """The state before any candidate."""
        return cls(1.0 if measure in RISING else -1.0)

    def add(self, hardness: Sequence[float], size_bytes: float, now_s: float) -> BidPrice:
        """The state with the rows of one more message; rows with NaN hardness are left out."""
        each_bytes = size_bytes / max(1, len(hardness))
        more = (Bid(self.sign * value, each_bytes, now_s) for value in hardness if not math.isnan(value))
        return replace(self, recent=(*self.recent, *more)[-self.WINDOW :])

    def gain(self, hardness: float) -> float:
        """From 0 for the easiest to 1 for the hardest and for NaN; `MIDDLING` with too few candidates."""
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

    def followers(self, within_s: float) -> float:
        """The expected number of messages that come within `within_s` after one, each counted by the share of that time
        that is left: E[Σ (1 − gap/within)⁺] over the later ones. Infinite with too few of them.

        The gaps are counted, not taken as exponential (the intensity function of a point process, Cox and Lewis 1966,
        The Statistical Analysis of Series of Events): a Poisson stream of rate r has r·within/2, a burst of n has
        (n − 1)/2, and a camera whose pictures are further apart has 0. Rows of one message go together and count
        once.
        """
        at_s = np.unique([one.at_s for one in self.recent])
        if len(at_s) < self.ENOUGH:
            return math.inf
        left = np.maximum(0.0, 1.0 - np.abs(at_s - at_s[:, None]) / within_s)  # symmetric, 1 on the diagonal
        return float((left.sum() / len(at_s) - 1.0) / 2.0)

    def per_s(self, link: LinkMoment) -> float:
        """V for this link, as if it were idle; 0 with too few candidates."""
        count = len(self.recent)
        if count < self.ENOUGH:
            return 0.0
        by_rank = sorted(self.recent)
        scores = np.array([one.score for one in by_rank])
        # Equals share a rank, as in `gain`: else the first of them would set a price that none of them can pay.
        gains = ((scores.searchsorted(scores) + scores.searchsorted(scores, "right")) / 2 / count) ** 2
        sizes = np.array([one.size_bytes for one in by_rank])
        in_time, occupied_s = link.rates.chances(link.now_s, sizes, 0.0, link.within_s, link.rtt_s)
        values, occupied_s = gains * in_time, np.maximum(occupied_s, 1e-6)
        best_first = np.argsort(-values / occupied_s)
        span_s = max(self.SHORTEST_S, link.now_s - self.recent[0].at_s)
        return float((values[best_first].cumsum() / (span_s + occupied_s[best_first].cumsum())).max())
