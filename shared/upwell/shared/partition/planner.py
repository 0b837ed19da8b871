"""Plans placements: the best one, and alternatives that other bandwidths or single moves of nodes lead to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from upwell.shared.errors import UpwellError
from upwell.shared.partition.branch_and_bound import Search
from upwell.shared.partition.cost_arrays import Arrays, Terms, quanta_per_s
from upwell.shared.partition.cost_graph import Alternative, CostGraph, Placement, PlacementPlan, TierLink, sent
from upwell.shared.partition.placement_conflicts import conflict
from upwell.shared.partition.placement_network import Arcs
from upwell.shared.tensors import Array

BANDWIDTH_FACTORS = (0.25, 4.0)
"""Factors of the links' bandwidth, equal for all links, between which the envelope is searched for other plans. At its
ends everything is on one tier."""

MOST = 5
_MOST_MOVES = 64
"""Number of node moves examined, first those whose own cost improves or changes least."""


def others(arrays: Arrays, terms: Terms, best: Array, met: Iterable[Array]) -> list[tuple[Array, float]]:
    """The best few other placements with their totals: from those `met` elsewhere, or one node away."""
    found = {tuple(levels.tolist()): levels for levels in (*met, *_moved(arrays, terms, best))}
    found.pop(tuple(best.tolist()), None)
    totals = ((arrays.total_s(terms, levels), key) for key, levels in found.items())
    best_first = sorted((total_s, key) for total_s, key in totals if math.isfinite(total_s))
    return [(found[key], total_s) for total_s, key in best_first[:MOST]]


def _moved(arrays: Arrays, terms: Terms, best: Array) -> Iterator[Array]:
    """The best placement with one node on another tier, not below what feeds it nor beyond what it feeds."""
    makers = arrays.makers[arrays.reads]
    is_made = makers >= 0
    lowest, highest = np.zeros_like(best), np.full_like(best, arrays.links)
    np.maximum.at(lowest, arrays.readers[is_made], best[makers[is_made]])
    np.minimum.at(highest, makers[is_made], best[arrays.readers[is_made]])
    level = np.arange(arrays.levels)
    costs_more = terms.compute - terms.compute[np.arange(arrays.nodes), best][:, None]
    is_move = (lowest[:, None] <= level) & (level <= highest[:, None]) & (level != best[:, None])
    moves = np.argwhere(is_move & np.isfinite(costs_more))
    order = np.argsort(costs_more[moves[:, 0], moves[:, 1]], kind="stable")
    for node, target in moves[order[:_MOST_MOVES]].tolist():
        levels = best.copy()
        levels[node] = target
        yield levels


_ROUNDING = 1 + 1e-9
_COARSE = 100.0
"""Factor by which the quanta of a total may be coarser than necessary."""


class NoPlan(UpwellError):
    """No placement of the graph is possible; the text names what is in conflict."""


class Cutter:
    """A graph prepared once, to be planned for any links: a bandwidth only changes the prices of arcs."""

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self._arrays = Arrays(graph)
        self._arcs = Arcs(self._arrays) if graph.links else None

    def solve(self, links: Sequence[TierLink] | None = None) -> Placement:
        """The placement with the least total, and among equals with the smallest edge side. Raises `NoPlan`.

        `links` replace the graph's own, one for one; a `bps` of infinity makes sending free.
        """
        return self._arrays.placement(self._best(self._terms(links)))

    def plan(self) -> PlacementPlan:
        """The best placement with the graph's own links, and alternatives. Raises `NoPlan`."""
        terms = self._terms(None)
        best = self._best(terms)
        placement = self._arrays.placement(best)
        one_tier_s = self._one_tier_s(terms)
        return PlacementPlan(
            placement=placement,
            total_s=self._arrays.total_s(terms, best),
            sent=sent(self.graph, placement),
            edge_only_s=one_tier_s.get(0),
            cloud_only_s=one_tier_s.get(len(self.graph.links)),
            alternatives=tuple(
                Alternative(self._arrays.placement(levels), total_s)
                for levels, total_s in others(self._arrays, terms, best, self._met(terms))
            ),
        )

    def _terms(self, links: Sequence[TierLink] | None) -> Terms:
        return self._arrays.terms(self.graph.links if links is None else links)

    def _best(self, terms: Terms) -> Array:
        known = self._best_on_one_tier(terms)
        if known is None:
            known = self._least(terms, terms.whole_s, None)
        if known is None:
            raise NoPlan(conflict(self.graph))
        # A term longer than the best known total is not part of a better placement, so sentinels of years cost no
        # precision; if a much better one is found, it is computed again in finer quanta.
        most_s = self._most_s(terms, known)
        while True:
            found = self._least(terms, most_s, known)
            known = known if found is None else found
            counted_s, most_s = most_s, self._most_s(terms, known)
            if counted_s <= _COARSE * most_s:
                return known

    def _most_s(self, terms: Terms, levels: Array) -> float:
        """An upper bound on each term of a better placement."""
        return (self._arrays.spent(terms, levels) + float(np.abs(terms.saves).sum())) * _ROUNDING

    def _least(self, terms: Terms, most_s: float, known: Array | None) -> Array | None:
        """The best levels, if no term above `most_s` can be part of the best."""
        if self._arcs is None:
            return known
        return Search(self._arrays, self._arcs, terms.quanta(quanta_per_s(most_s), most_s), known).best()

    def _best_on_one_tier(self, terms: Terms) -> Array | None:
        choices = [(total_s, -level) for level, total_s in self._one_tier_s(terms).items()]
        return self._all_on(-min(choices)[1]) if choices else None

    def _all_on(self, level: int) -> Array:
        return np.full(self._arrays.nodes, level)

    def _one_tier_s(self, terms: Terms) -> dict[int, float]:
        """By level, the totals of the possible placements on a single tier."""
        totals = {level: self._arrays.total_s(terms, self._all_on(level)) for level in range(len(self.graph.tiers))}
        return {level: total_s for level, total_s in totals.items() if math.isfinite(total_s)}

    def _met(self, terms: Terms) -> Iterator[Array]:
        """Placements that are best at other bandwidths."""
        yield from map(self._all_on, self._one_tier_s(terms))
        for factor in BANDWIDTH_FACTORS if self.graph.links else ():
            yield self._best(self._terms([replace(link, bps=link.bps * factor) for link in self.graph.links]))


def plan(graph: CostGraph) -> PlacementPlan:
    """The best placement, the tensors it sends, the baselines, and up to five alternatives. Raises `NoPlan`."""
    return Cutter(graph).plan()
