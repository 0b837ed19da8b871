"""A cost graph as arrays: nodes, tensors and links by number, costs in tables, a placement as the level of each node.

Indices: nodes n in the graph's order, levels l from 0 (the first tier) to L − 1, links k from level k to k + 1, tensors
t that some node reads, and outputs o of the model that have a way back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from upwell.shared.partition.cost_graph import CostGraph, Placement, TierLink
from upwell.shared.tensors import Array

FORBIDDEN = 1 << 56
"""Infinity for times counted in quanta. Dozens of them add up without overflowing int64."""

_NEVER = MappingProxyType({"f": math.inf, "i": FORBIDDEN})

_EXACT_BITS = 50
"""Number of bits up to which a decimal scaled by a power of ten as a float rounds to the exact integer."""


@dataclass(frozen=True)
class Saving:
    """A fused pair, nodes by number, on one level; `saves_s` is never 0, and negative if it costs more together."""

    pair: tuple[int, int]
    level: int
    saves_s: float


@dataclass(frozen=True)
class Terms:
    """The terms of a total, in seconds or in whole quanta: cost of node n on level l, tensor t up link k, link k once
    it is used, output o back over link k, each saving. Infinite (`FORBIDDEN`) means impossible."""

    compute: Array
    up: Array
    fixed: Array
    back: Array
    saves: Array

    def quanta(self, per_s: float, most_s: float) -> Terms:
        """The terms as integers, `per_s` per second; more than `most_s` is forbidden."""

        def counted(table: Array) -> Array:
            is_possible = table <= most_s
            return np.where(is_possible, _rounded(np.where(is_possible, table, 0.0), per_s), FORBIDDEN)

        tables = counted(self.compute), counted(self.up), counted(self.fixed), counted(self.back)
        return Terms(*tables, _rounded(self.saves, per_s))

    @property
    def whole_s(self) -> float:
        """The sum of all finite terms."""
        tables = (self.compute, self.up, self.fixed, self.back, np.abs(self.saves))
        return math.fsum(float(table[np.isfinite(table)].sum()) for table in tables)


def quanta_per_s(most_s: float) -> float:
    """The finest power of ten in which `most_s` seconds are still exact: decimal values stay exact, and sums that are
    equal in decimal are equal in quanta, unlike 0.1 + 0.2 and 0.3 in floating point."""
    if most_s <= 0:
        return 1.0
    return float(10.0 ** min(300, math.floor(_EXACT_BITS * math.log10(2) - math.log10(most_s))))


def _rounded(seconds: Array, per_s: float) -> Array:
    return np.asarray(np.rint(seconds * per_s), np.int64)


class Arrays:
    """The graph by number. `makers` [t] is the node that makes a tensor, −1 for an input of the model; (`reads`,
    `readers`) are pairs of a tensor and a node that reads it, sorted."""

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self.levels, self.links, self.nodes = len(graph.tiers), len(graph.links), len(graph.nodes)
        self.input_level = graph.tiers.index(graph.input_tier)
        self.output_level = len(graph.tiers) if graph.output_tier is None else graph.tiers.index(graph.output_tier)
        number = {node.name: index for index, node in enumerate(graph.nodes)}
        made_by = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs}
        read = {(name, index): None for index, node in enumerate(graph.nodes) for name in node.inputs}
        names = {name: index for index, name in enumerate(dict.fromkeys(name for name, _ in read))}
        pairs = np.array(sorted((names[name], index) for name, index in read), np.int64).reshape(-1, 2)
        self.reads, self.readers = pairs[:, 0], pairs[:, 1]
        self.makers = np.array([made_by.get(name, -1) for name in names], np.int64)
        self.output_makers = np.array([made_by.get(name, -1) for name in graph.outputs], np.int64)
        self.savings = [
            Saving((number[fused.pair[0]], number[fused.pair[1]]), level, fused.saves_s[tier])
            for fused in graph.fused
            for level, tier in enumerate(graph.tiers)
            if fused.saves_s.get(tier, 0.0) != 0.0
        ]
        self.saving_pairs = np.array([saving.pair for saving in self.savings], np.int64).reshape(-1, 2)
        self.saving_levels = np.array([saving.level for saving in self.savings], np.int64)
        self._first_reads = np.searchsorted(self.reads, np.arange(len(names)))
        self._sent = [graph.tensors[name] for name in names]
        self._sizes = np.array([tensor.bytes for tensor in self._sent], float)
        self._coded = [index for index, tensor in enumerate(self._sent) if tensor.codecs]
        self._whole = [index for index, tensor in enumerate(self._sent) if not tensor.splittable]
        self._returned = [graph.tensors[name] for name in graph.outputs]
        self._compute = self._costs()

    def _costs(self) -> Array:
        tiers = self.graph.tiers
        costs = np.array([[node.cost_on(tier) for tier in tiers] for node in self.graph.nodes], float)
        costs = costs.reshape(self.nodes, self.levels)
        costs[self.readers[self.makers[self.reads] < 0], : self.input_level] = math.inf
        return costs

    def placement(self, levels: Array) -> Placement:
        """The placement by names of nodes and tiers, from the level of each node."""
        tiers = self.graph.tiers
        return {node.name: tiers[level] for node, level in zip(self.graph.nodes, levels.tolist(), strict=True)}

    def terms(self, links: Sequence[TierLink]) -> Terms:
        """The terms in seconds, with these links between the tiers."""
        up = np.empty((len(self._sent), self.links))
        back = np.empty((len(self._returned), self.links))
        for k, link in enumerate(links):
            up[:, k] = self._sizes * 8 / link.bps
            up[self._coded, k] = [link.up_s(self._sent[index]) for index in self._coded]
            back[:, k] = [link.back_s(tensor) for tensor in self._returned]
        up[self._whole] = math.inf
        fixed = np.array([link.fixed_s for link in links], float)
        return Terms(self._compute, up, fixed, back, np.array([saving.saves_s for saving in self.savings], float))

    def spent(self, terms: Terms, levels: Array) -> float:
        """The sum of all terms of a placement except savings; infinite if one of them is.

        It does not check whether a node is below one that feeds it.
        """
        parts = self._parts(terms, levels)
        is_possible = all((part < _NEVER[part.dtype.kind]).all() for part in parts)
        return sum(part.sum().item() for part in parts) if is_possible else math.inf

    def saved(self, terms: Terms, levels: Array) -> float:
        """The sum of the savings of a placement."""
        saved: int | float = terms.saves[self._counts(levels)].sum().item()
        return saved

    def total_s(self, terms: Terms, levels: Array) -> float:
        """The total of a placement in seconds, as an exact sum of terms in seconds; infinite if the placement is
        impossible."""
        made = self._made(self.makers, levels)[self.reads, 0]
        tiers = {self.graph.tiers[level] for level in levels.tolist()}
        if (levels[self.readers] < made).any() or not tiers.issuperset(self.graph.non_empty):
            return math.inf
        parts = (*self._parts(terms, levels), -terms.saves[self._counts(levels)])
        return math.fsum(term for part in parts for term in part.tolist())

    def _parts(self, terms: Terms, levels: Array) -> tuple[Array, ...]:
        """All terms of a placement except savings."""
        highest = np.maximum.reduceat(levels[self.readers], self._first_reads) if len(self._sent) else levels[:0]
        link = np.arange(self.links)
        crosses = (self._made(self.makers, levels) <= link) & (link < highest[:, None])
        returns = (self.output_level <= link) & (link < self._made(self.output_makers, levels))
        return (
            terms.compute[np.arange(self.nodes), levels],
            terms.up[crosses],
            terms.fixed[: levels.max(initial=0)],
            terms.back[returns],
        )

    def _counts(self, levels: Array) -> Array:
        """Which savings apply."""
        counts: Array = (levels[self.saving_pairs] == self.saving_levels[:, None]).all(axis=1)
        return counts

    def _made(self, makers: Array, levels: Array) -> Array:
        """The level at which each tensor is made, as a column."""
        return np.where(makers < 0, self.input_level, levels[makers])[:, None]


def total_s(graph: CostGraph, placement: Placement) -> float:
    """Seconds of a placement by the formula of `cost_graph`; infinite if it is impossible.

    That is a placement with a node where it cannot run or below a tier that feeds it, with a tensor that is not
    splittable across a link, or with an empty tier of `non_empty`. An output's way back is not a split: any tensor may
    take it. Raises `KeyError` for a node without a tier, and `ValueError` for an unknown tier.
    """
    arrays = Arrays(graph)
    levels = np.array([graph.tiers.index(placement[node.name]) for node in graph.nodes], np.int64)
    return arrays.total_s(arrays.terms(graph.links), levels)
