"""Planning for a bandwidth that varies: the value to plan with, and the best placement at each bandwidth.

Over λ = 1/bandwidth of one link every placement costs a + slope·λ: a straight line. The minimum at each λ is a concave
chain of pieces, found exactly with one plan per piece and one per corner (Eisner and Severance 1976, doi
10.1145/321978.321982): plan at both ends; if the two lines differ, plan where they meet; if nothing is below, that is a
corner, otherwise continue on both sides of it. The last pieces hold for all slower and all faster links.

The time to send is bytes · 8 · (1/B), so what counts is the mean or a quantile of 1/B, never one over the mean of B: a
link that is at 1 and at 19 Mbit/s half of the time each has a mean of 10 Mbit/s and sends, on average, as slowly as a
steady one at 1.9 Mbit/s (by Jensen's inequality E[1/B] ≥ 1/E[B]). Inverse bandwidth is in seconds per bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist, fmean
from typing import Generic, TypeVar

from upwell.shared.partition.cost_graph import CostGraph, Placement, Sent, sent, total_s
from upwell.shared.partition.objectives import Objective

SLOWEST_BPS = 1e3
"""The slowest link considered; a piece that sends nothing also holds below it."""
_WORTH = 1e-9
"""Relative difference below which two plans count as equal, for rounding."""

T = TypeVar("T")


@dataclass(frozen=True)
class Line(Generic[T]):
    """`base + slope · λ` units for λ in seconds per bit, and the object that it belongs to."""

    of: T
    base: float
    slope: float

    def at(self, inverse: float) -> float:
        """The value at an inverse bandwidth in seconds per bit."""
        return self.base + self.slope * inverse


@dataclass(frozen=True)
class Piece(Generic[T]):
    """A line that is the lowest between two bandwidths in bits per second; 0 and infinity mean unbounded."""

    line: Line[T]
    from_bps: float
    to_bps: float


@dataclass(frozen=True)
class LabelledCost:
    """A placement and the tensors it sends upward, codecs included."""

    placement: Placement
    sent: tuple[Sent, ...]


@dataclass(frozen=True)
class BandwidthSweep:
    """A varying bandwidth: that of link number `link`, on its way back too if `symmetric`."""

    graph: CostGraph
    objective: Objective
    link: int = 0
    symmetric: bool = False

    @cached_property
    def weighed(self) -> CostGraph:
        """The graph that the planner minimizes, with its own links."""
        return self.objective.of(self.graph)

    def at(self, inverse: float) -> CostGraph:
        """The same at an inverse bandwidth in seconds per bit: only `links` differ."""
        links, changed = list(self.weighed.links), self.graph.links[self.link]
        bps = 1 / inverse if inverse > 0 else math.inf
        changed = replace(changed, bps=bps, return_bps=bps if self.symmetric else changed.return_bps)
        links[self.link] = self.objective.links[self.link].weighed(changed)
        return replace(self.weighed, links=tuple(links))

    def line(self, placement: Placement, inverse: float) -> Line[LabelledCost]:
        """The line of a placement, with the codecs that are cheapest at `inverse`."""
        graph = self.at(inverse)
        way = LabelledCost(placement, sent(graph, placement))
        source, rates = self.graph.tiers[self.link], self.objective.links[self.link]
        slope = 8 * rates.send * sum(one.bytes for one in way.sent if one.source == source)
        if self.symmetric:
            slope += 8 * rates.receive * self._returned(placement)
        return Line(way, total_s(graph, placement) - slope * inverse, slope)

    def _returned(self, placement: Placement) -> float:
        """Bytes returned over the link."""
        order, output_tier = self.graph.tiers.index, self.graph.output_tier
        if output_tier is None or order(output_tier) > self.link:
            return 0.0
        made = {name: order(placement[node.name]) for node in self.graph.nodes for name in node.outputs}
        return sum(self.graph.tensors[name].bytes for name in self.graph.outputs if made.get(name, -1) > self.link)


def envelope(sweep: BandwidthSweep, solve: Callable[[CostGraph], Placement]) -> tuple[Piece[LabelledCost], ...]:
    """The best placements from the slowest link to the fastest, each with its range; `solve` plans one graph.

    Errors of `solve` for a graph without any placement are passed on.
    """

    def best(inverse: float) -> Line[LabelledCost]:
        return sweep.line(solve(sweep.at(inverse)), inverse)

    fast, slow = best(0.0), best(1 / SLOWEST_BPS)
    lines, spans = [fast, slow], [(fast, slow)]
    while spans:
        left, right = spans.pop()
        meeting = _meeting(left, right)
        if meeting is None:
            continue
        between = best(meeting)
        if between.at(meeting) < left.at(meeting) * (1 - _WORTH):
            lines.append(between)
            spans += [(left, between), (between, right)]
    slowest, *others = lower(lines)
    if slowest.line.slope > 0:  # on slower links, something else may send less
        slowest = replace(slowest, from_bps=SLOWEST_BPS)
    return (slowest, *others)


def lower(lines: Sequence[Line[T]]) -> tuple[Piece[T], ...]:
    """The minimum of some lines, from the slowest link to the fastest. Of equal lines the first counts."""
    chain: list[Line[T]] = []
    starts: list[float] = []  # the inverse bandwidths from which on each is the lowest
    for line in sorted(lines, key=lambda one: (-one.slope, one.base)):  # the steepest is the lowest on the fastest link
        if chain and line.slope == chain[-1].slope:
            continue
        start = 0.0
        while chain:
            start = (line.base - chain[-1].base) / (chain[-1].slope - line.slope)
            if start > starts[-1]:
                break
            chain.pop(), starts.pop()
            start = 0.0
        chain.append(line)
        starts.append(start)
    ends = [*starts[1:], math.inf]
    pieces = [
        Piece(line, 1 / end, 1 / start if start > 0 else math.inf)
        for line, start, end in zip(chain, starts, ends, strict=True)
    ]
    return tuple(reversed(pieces))


def _meeting(left: Line[T], right: Line[T]) -> float | None:
    """Where two lines meet, the left one steeper; None if they are equal or meet outside the range."""
    if not left.slope > right.slope:
        return None
    meeting = (right.base - left.base) / (left.slope - right.slope)
    return meeting if 0 < meeting < 1 / SLOWEST_BPS else None


_TENTH = NormalDist().inv_cdf(0.9)
"""The 90 % point of the standard normal distribution."""


@dataclass(frozen=True)
class BandwidthSamples:
    """Observed bandwidths in bits per second, each equally likely; none is 0."""

    bps: Sequence[float]

    def __post_init__(self) -> None:
        """Raises `ValueError`: with a sample of 0 the mean time to send anything would be infinite."""
        if not self.bps or not all(0 < one < math.inf for one in self.bps):
            raise ValueError("expected at least one bandwidth, each of more than 0 bits per second")

    def mean_inverse(self) -> float:
        """E[1/B], in seconds per bit, which minimizes the mean latency."""
        return fmean(1 / one for one in self.bps)

    def inverse_quantile(self, probability: float) -> float:
        """The quantile of 1/B, in seconds per bit, as the least sample that the share `probability` does not exceed."""
        ordered = sorted(1 / one for one in self.bps)
        return ordered[max(0, math.ceil(_share(probability) * len(ordered) - 1e-9) - 1)]


@dataclass(frozen=True)
class LogNormal:
    """A log-normal bandwidth with that median, which nine times in ten is at least the median divided by `spread`: B =
    median · e^(σ·Z), Z standard normal, σ = ln(spread) / 1.2816. Then E[1/B] = e^(σ²/2) / median. A spread of 1 is a
    steady link."""

    median_bps: float
    spread: float

    def __post_init__(self) -> None:
        """Raises `ValueError`."""
        if not (0 < self.median_bps < math.inf and 1 <= self.spread <= 1000):
            raise ValueError("expected a median of more than 0 bits per second and a spread from 1 to 1000")

    @property
    def sigma(self) -> float:
        """Standard deviation of ln B."""
        return math.log(self.spread) / _TENTH

    def mean_inverse(self) -> float:
        """E[1/B], in seconds per bit."""
        return math.exp(self.sigma**2 / 2) / self.median_bps

    def inverse_quantile(self, probability: float) -> float:
        """The value of 1/B, in seconds per bit, that is not exceeded with that probability."""
        return math.exp(self.sigma * NormalDist().inv_cdf(_share(probability))) / self.median_bps


def _share(probability: float) -> float:
    if not 0 < probability < 1:
        raise ValueError(f"expected a probability between 0 and 1, got {probability}")
    return probability
