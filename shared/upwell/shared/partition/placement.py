"""What a placement takes and what it sends, by the formula of `costs`, term by term.

Written for clearness and for exact sums (`math.fsum`), not for speed: the planner searches by other means and tells the
total of what it found with this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from upwell.shared.partition.costs import CostGraph, Placement, Sent

Levels = Mapping[str, int]
"""The number of a tier, counted from the first, by name of a node or tensor."""


def total_s(graph: CostGraph, placement: Placement) -> float:
    """Seconds that a placement takes; infinite for one that cannot be.

    That is one with a node where it cannot run or below a tier that feeds it, with a tensor across a link that is not
    splittable, or with a tier of `non_empty` that holds no node. An output's way back is no split: it may be taken by
    any tensor. Raises `KeyError` for a node without a tier, and `ValueError` for a tier that the graph has not.
    """
    levels = _levels(graph, placement)
    made = _made(graph, levels)
    terms = [*_node_terms(graph, placement), *_fixed_terms(graph, levels), *_back_terms(graph, made)]
    for name, lowest, highest in _readers(graph, levels):
        if lowest < made[name] or (highest > made[name] and not graph.tensors[name].splittable):
            return math.inf
        terms += [graph.links[link].up_s(graph.tensors[name]) for link in range(made[name], highest)]
    is_possible = math.inf not in terms and set(graph.non_empty) <= set(placement.values())
    return math.fsum(terms) if is_possible else math.inf


def sent(graph: CostGraph, placement: Placement) -> tuple[Sent, ...]:
    """What crosses each link upward: inputs of the model first, then in the order of the nodes, links upward."""
    levels = _levels(graph, placement)
    made, found = _made(graph, levels), []
    highest = {name: level for name, _, level in _readers(graph, levels)}
    for name, level in made.items():
        for link in range(level, highest.get(name, level)):
            _, codec, size_bytes = graph.links[link].sent(graph.tensors[name])
            found.append(Sent(name, graph.tiers[link], graph.tiers[link + 1], size_bytes, codec))
    return tuple(found)


def uniform(graph: CostGraph, tier: str) -> Placement:
    """Every node on one tier."""
    return {node.name: tier for node in graph.nodes}


def _levels(graph: CostGraph, placement: Placement) -> Levels:
    return {node.name: graph.tiers.index(placement[node.name]) for node in graph.nodes}


def _made(graph: CostGraph, levels: Levels) -> dict[str, int]:
    """The level at which each tensor is made, inputs of the model first."""
    made = dict.fromkeys(graph.inputs, graph.tiers.index(graph.input_tier))
    made.update((name, levels[node.name]) for node in graph.nodes for name in node.outputs)
    return made


def _readers(graph: CostGraph, levels: Levels) -> Iterator[tuple[str, int, int]]:
    """Each tensor that is read, and the lowest and the highest level at which that is."""
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    for node in graph.nodes:
        level = levels[node.name]
        for name in node.inputs:
            lowest[name] = min(level, lowest.get(name, level))
            highest[name] = max(level, highest.get(name, level))
    return ((name, level, highest[name]) for name, level in lowest.items())


def _node_terms(graph: CostGraph, placement: Placement) -> Iterator[float]:
    for node in graph.nodes:
        yield node.cost_on(placement[node.name])
    for fused in graph.fused:
        first, second = (placement[name] for name in fused.pair)
        if first == second:
            yield -fused.saves_s.get(first, 0.0)


def _fixed_terms(graph: CostGraph, levels: Levels) -> Iterator[float]:
    highest = max(levels.values(), default=0)
    return (link.fixed_s for link in graph.links[:highest])


def _back_terms(graph: CostGraph, made: Levels) -> Iterator[float]:
    if graph.output_tier is None:
        return
    wanted = graph.tiers.index(graph.output_tier)
    for name in graph.outputs:
        for link in range(wanted, made[name]):
            yield graph.links[link].back_s(graph.tensors[name])
