"""The best placement of a cost graph: exact, with baselines and other placements beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from upwell.shared.errors import UpwellError
from upwell.shared.partition.arcs import Arcs
from upwell.shared.partition.arrays import Arrays, Terms, quanta_per_s
from upwell.shared.partition.branching import Search
from upwell.shared.partition.conflicts import conflict
from upwell.shared.partition.costs import Alternative, CostGraph, Link, Placement, Plan
from upwell.shared.partition.others import BANDWIDTH_FACTORS, others
from upwell.shared.partition.placement import sent
from upwell.shared.tensors import Array

_ROUNDING = 1 + 1e-9
_COARSE = 100.0
"""A total is counted in quanta that are at most so many times as coarse as they can be for it."""


class NoPlan(UpwellError):
    """No placement of the graph is possible; the text names what is in conflict."""


class Cutter:
    """A graph made ready once, to be planned for any links: what changes with a bandwidth is the prices of arcs."""

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self._arrays = Arrays(graph)
        self._arcs = Arcs(self._arrays) if graph.links else None

    def solve(self, links: Sequence[Link] | None = None) -> Placement:
        """The placement with the least total, of those the one with the smallest edge side. Raises `NoPlan`.

        `links` stand in for the graph's own, one for one; a `bps` of infinity makes sending free.
        """
        return self._arrays.placement(self._best(self._terms(links)))

    def plan(self) -> Plan:
        """The best placement over the graph's own links, and what there is beside it. Raises `NoPlan`."""
        terms = self._terms(None)
        best = self._best(terms)
        placement = self._arrays.placement(best)
        edge_only_s, cloud_only_s = (self._one_tier_s(terms, level) for level in (0, len(self.graph.links)))
        return Plan(
            placement=placement,
            total_s=self._arrays.total_s(terms, best),
            sent=sent(self.graph, placement),
            edge_only_s=edge_only_s,
            cloud_only_s=cloud_only_s,
            alternatives=tuple(
                Alternative(self._arrays.placement(levels), total_s)
                for levels, total_s in others(self._arrays, terms, best, self._met(terms))
            ),
        )

    def _terms(self, links: Sequence[Link] | None) -> Terms:
        return self._arrays.terms(self.graph.links if links is None else links)

    def _best(self, terms: Terms) -> Array:
        known = self._best_on_one_tier(terms)
        if known is None:
            known = self._least(terms, terms.whole_s, None)
        if known is None:
            raise NoPlan(conflict(self.graph))
        # Nothing that takes longer than all of the best known is in a better one, so that sentinels of years cost no
        # precision: where a better one takes far less, it is counted again in finer quanta.
        most_s = self._most_s(terms, known)
        while True:
            found = self._least(terms, most_s, known)
            known = known if found is None else found
            counted_s, most_s = most_s, self._most_s(terms, known)
            if counted_s <= _COARSE * most_s:
                return known

    def _most_s(self, terms: Terms, levels: Array) -> float:
        """What no term of a better placement than this can be more than."""
        return (self._arrays.spent(terms, levels) + float(np.abs(terms.saves).sum())) * _ROUNDING

    def _least(self, terms: Terms, most_s: float, known: Array | None) -> Array | None:
        """The best levels, where nothing that takes more than `most_s` can be part of the best."""
        if self._arcs is None:
            return known
        return Search(self._arrays, self._arcs, terms.quanta(quanta_per_s(most_s), most_s), known).best()

    def _best_on_one_tier(self, terms: Terms) -> Array | None:
        choices = [(self._arrays.total_s(terms, levels), -level, levels) for level, levels in self._one_tier(terms)]
        return min(choices, key=lambda choice: choice[:2])[2] if choices else None

    def _one_tier(self, terms: Terms) -> Iterator[tuple[int, Array]]:
        """The placements on a single tier that are possible."""
        for level, tier in enumerate(self.graph.tiers):
            levels = np.full(self._arrays.nodes, level)
            if set(self.graph.non_empty) <= {tier} and math.isfinite(self._arrays.spent(terms, levels)):
                yield level, levels

    def _one_tier_s(self, terms: Terms, wanted: int) -> float | None:
        found = (self._arrays.total_s(terms, levels) for level, levels in self._one_tier(terms) if level == wanted)
        return next(found, None)

    def _met(self, terms: Terms) -> Iterator[Array]:
        """Placements that are the best at other bandwidths."""
        for _, levels in self._one_tier(terms):
            yield levels
        for factor in BANDWIDTH_FACTORS if self.graph.links else ():
            yield self._best(self._terms([replace(link, bps=link.bps * factor) for link in self.graph.links]))


def plan(graph: CostGraph) -> Plan:
    """The best placement, what it sends, the baselines, and up to five others. Raises `NoPlan`."""
    return Cutter(graph).plan()
