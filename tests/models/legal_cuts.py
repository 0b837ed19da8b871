"""Legal cuts of a graph: all that follow its own order, and others drawn at random."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from upwell.shared.partition.model_graph import Graph, in_order

_MAX_MISSES = 200
"""Draws in a row that give nothing new, after which there is taken to be no more."""


def prefix_cuts(graph: Graph) -> list[int]:
    """Each n for which the first n nodes are the edge side of a legal cut: neither side empty, something sent."""
    size = len(graph.nodes)
    begins, ends, forbidden = [0] * (size + 1), [0] * (size + 1), [0] * (size + 1)
    for tensor, readers in graph.consumers.items():
        first, last = graph.producer.get(tensor, -1) + 1, max(readers)
        if tensor in graph.producer:
            begins[first] += 1
            ends[last] += 1
        if not graph.tensors[tensor].is_sized:
            forbidden[first] += 1
            forbidden[last + 1] -= 1
    crossing = unsized = 0
    found = []
    for count in range(size):
        crossing += begins[count] - (ends[count - 1] if count else 0)
        unsized += forbidden[count]
        if count and crossing and not unsized:
            found.append(count)
    return found


def random_downsets(graph: Graph, random: Random, count: int) -> list[frozenset[int]]:
    """Up to `count` different edge sides of legal cuts that are no prefix of the graph's order.

    Each is a prefix of another topological order. Fewer where the graph has no more, or chance found none.
    """
    sources = [{graph.producer[name] for name in node.inputs if name in graph.producer} for node in graph.nodes]
    found: dict[frozenset[int], None] = {}
    misses = 0
    while len(sources) > 1 and len(found) < count and misses < _MAX_MISSES:
        order = _shuffled(sources, random)
        drawn = frozenset(order[: random.randrange(1, len(order))])
        is_prefix = max(drawn) < len(drawn)
        if is_prefix or drawn in found or not (graph.sent(drawn) and can_cross(graph, drawn)):
            misses += 1
        else:
            found[drawn] = None
            misses = 0
    return list(found)


def _shuffled(sources: list[set[int]], random: Random) -> list[int]:
    """A topological order; any may come out."""
    label = list(range(len(sources)))
    random.shuffle(label)
    renamed: list[set[int]] = [set() for _ in sources]
    for vertex, before in enumerate(sources):
        renamed[label[vertex]] = {label[source] for source in before}
    vertex_of = {new: vertex for vertex, new in enumerate(label)}
    return [vertex_of[new] for new in in_order(renamed)]


def can_cross(graph: Graph, edge: Collection[int]) -> bool:
    """Whether this is a legal cut: a downset, and every tensor that crosses is sized."""
    return graph.is_downset(edge) and all(graph.tensors[name].is_sized for name in graph.crossing(edge))
