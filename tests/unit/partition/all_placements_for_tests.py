"""Every placement of a small cost graph, found without any of the planner."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from upwell.shared.partition.cost_graph import CostGraph, Placement, total_s


def all_placements(graph: CostGraph) -> Iterator[Placement]:
    """Those that can be, whatever the bandwidth."""
    names = [node.name for node in graph.nodes]
    for tiers in itertools.product(graph.tiers, repeat=len(names)):
        placement = dict(zip(names, tiers, strict=True))
        if math.isfinite(total_s(graph, placement)):
            yield placement


def best_placement(graph: CostGraph) -> Placement:
    """The least total; of equal ones the first, which has the most on the first tiers."""
    return min(all_placements(graph), key=lambda placement: total_s(graph, placement))
