"""The best placement of a cost graph: exact, with baselines and other placements beside it. Needs scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from upwell.shared.errors import UpwellError
from upwell.shared.partition.arcs import Arcs
from upwell.shared.partition.arrays import Arrays, Terms, quanta_per_s
from upwell.shared.partition.branching import Search
from upwell.shared.partition.costs import CostGraph, Link, Placement, Plan
from upwell.shared.partition.placement import sent, total_s, uniform
from upwell.shared.tensors import Array

_ROUNDING = 1 + 1e-9


class NoPlan(UpwellError):
    """No placement of the graph is possible; the text names what is in conflict."""


class Cutter:
    """A graph made ready once, to be planned for any links: what changes with a bandwidth is the prices of arcs."""

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self._arrays = Arrays(graph)
        self._arcs = Arcs(self._arrays) if graph.links else None

    def solve(self, links: Sequence[Link] | None = None) -> Placement:
        """The placement with the least total, of those the one with the smallest edge side; raises `NoPlan`.

        `links` stand in for the graph's own, one for one; a `bps` of infinity makes sending free.
        """
        terms = self._arrays.terms(self.graph.links if links is None else links)
        known = self._one_tier(terms)
        if known is None:
            known = self._least(terms, terms.whole_s, None)
        if known is None:
            raise NoPlan("no placement is possible")
        # Nothing that takes longer than all of this one is in a better one: sentinels of days cost no precision.
        most_s = self._arrays.spent(terms, known) + float(np.abs(terms.saves).sum())
        best = self._least(terms, most_s * _ROUNDING, known)
        return self._arrays.placement(known if best is None else best)

    def _least(self, terms: Terms, most_s: float, known: Array | None) -> Array | None:
        """The best levels where nothing that takes more than `most_s` can be part of the best."""
        if self._arcs is None:
            return known
        return Search(self._arrays, self._arcs, terms.quanta(quanta_per_s(most_s), most_s), known).best()

    def _one_tier(self, terms: Terms) -> Array | None:
        """The best of the placements on a single tier, None where none is possible."""
        if len(set(self.graph.non_empty)) > 1:
            return None
        choices = []
        for level, tier in enumerate(self.graph.tiers):
            levels = np.full(self._arrays.nodes, level)
            spent = self._arrays.spent(terms, levels)
            if math.isfinite(spent) and set(self.graph.non_empty) <= {tier}:
                choices.append((spent - self._arrays.saved(terms, levels), -level, levels))
        return min(choices, key=lambda choice: choice[:2])[2] if choices else None


def plan(graph: CostGraph) -> Plan:
    """The best placement, what it sends, the baselines, and up to five others. Raises `NoPlan`."""
    placement = Cutter(graph).solve()
    edge_only_s, cloud_only_s = (_possible(total_s(graph, uniform(graph, graph.tiers[end]))) for end in (0, -1))
    return Plan(placement, total_s(graph, placement), sent(graph, placement), edge_only_s, cloud_only_s)


def _possible(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
