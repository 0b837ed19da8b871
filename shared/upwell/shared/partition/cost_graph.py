"""What the planner minimizes: nodes with a cost on each tier, tensors, links; and all of it as arrays.

A cost graph is made from measured profiles, or by anyone who writes the JSON of `upwell partition plan --graph`
(`cost_graph_file`). All times are seconds, all sizes bytes, all bandwidths bits per second.

The total of a placement is

    sum over nodes of cost_s on their tier
    - saves_s of every fused pair whose nodes share a tier, as written for that tier
    + fixed_s of every link beyond which any node is placed, once
    + bytes * 8 / bps, once for every tensor and every link that it crosses upward, however many consume it; inputs of
      the model are made at `input_tier`. Where the tensor has codecs, the cheapest way of sending it counts:
      min(bytes * 8 / bps, encode_s + codec bytes * 8 / bps + decode_s)
    + bytes * 8 / return_bps for every output of the model made beyond `output_tier` and every link on its way back

No node may stand below a tier that feeds it, and a tensor that is not splittable crosses no link.

Indices: nodes n in the graph's order, levels l from 0 (the first tier) to L − 1, links k from level k to k + 1, tensors
t that some node reads, and outputs o of the model that have a way back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from upwell.shared.tensors import Array


@dataclass(frozen=True)
class CostNode:
    """A node by name; `cost_s` by tier, in which a missing tier cannot run it; `only` pins it to one tier."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cost_s: Mapping[str, float]
    only: str | None = None

    def cost_on(self, tier: str) -> float:
        """Seconds on a tier; infinite if it cannot or must not run there."""
        return math.inf if self.only not in (None, tier) else self.cost_s.get(tier, math.inf)


@dataclass(frozen=True)
class Codec:
    """Another way to send a tensor: `bytes` on the wire, and the time to encode below and decode above the link."""

    name: str
    bytes: float
    encode_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class CostTensor:
    """The cost of sending a tensor. `splittable`: whether it may cross a link."""

    bytes: float
    splittable: bool = True
    codecs: tuple[Codec, ...] = ()


@dataclass(frozen=True)
class TierLink:
    """From a tier to the next. `fixed_s` is paid once if anything is placed beyond; `return_bps` is the way back."""

    bps: float
    fixed_s: float = 0.0
    return_bps: float = math.inf

    def up_s(self, tensor: CostTensor) -> float:
        """Seconds to send a tensor up this link, by the cheapest codec."""
        return self.sent(tensor)[0]

    def sent(self, tensor: CostTensor) -> tuple[float, str, float]:
        """Seconds up this link, codec ("" for none) and bytes; the plain tensor if no codec is cheaper."""
        ways = [(tensor.bytes * 8 / self.bps, "", tensor.bytes)]
        ways += [(c.encode_s + c.bytes * 8 / self.bps + c.decode_s, c.name, c.bytes) for c in tensor.codecs]
        return min(ways, key=lambda way: way[0])

    def back_s(self, tensor: CostTensor) -> float:
        """Seconds to send a tensor back down this link."""
        return tensor.bytes * 8 / self.return_bps


@dataclass(frozen=True)
class Fused:
    """Two nodes that cost less when they share a tier: `saves_s` by tier."""

    pair: tuple[str, str]
    saves_s: Mapping[str, float]


@dataclass(frozen=True)
class CostGraph:
    """Everything on which a plan depends. `links[k]` leads from `tiers[k]` to `tiers[k + 1]`; nodes in any order.

    `output_tier` None: outputs may stay where they are made. Tiers in `non_empty` must have a node.
    """

    tiers: tuple[str, ...]
    nodes: tuple[CostNode, ...]
    tensors: Mapping[str, CostTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    links: tuple[TierLink, ...]
    input_tier: str
    output_tier: str | None
    fused: tuple[Fused, ...] = ()
    non_empty: tuple[str, ...] = ()


Placement = Mapping[str, str]
"""A tier for every node, by name."""


@dataclass(frozen=True)
class Sent:
    """A tensor that crosses a link upward, as `bytes` on the wire; `codec` is "" for the plain tensor."""

    tensor: str
    source: str
    target: str
    bytes: float
    codec: str = ""


def sent(graph: CostGraph, placement: Placement) -> tuple[Sent, ...]:
    """The tensors that cross each link upward: inputs of the model first, then in the order of nodes and links."""
    levels = {node.name: graph.tiers.index(placement[node.name]) for node in graph.nodes}
    made = dict.fromkeys(graph.inputs, graph.tiers.index(graph.input_tier))
    made |= {name: levels[node.name] for node in graph.nodes for name in node.outputs}
    highest = dict(made)
    for node in graph.nodes:
        for name in node.inputs:
            highest[name] = max(highest[name], levels[node.name])
    found = []
    for name, level in made.items():
        for link in range(level, highest[name]):
            _, codec, size_bytes = graph.links[link].sent(graph.tensors[name])
            found.append(Sent(name, graph.tiers[link], graph.tiers[link + 1], size_bytes, codec))
    return tuple(found)


@dataclass(frozen=True)
class Alternative:
    """Another placement, and its total."""

    placement: Placement
    total_s: float


@dataclass(frozen=True)
class PlacementPlan:
    """The best placement, the tensors it sends, and alternatives.

    `total_s` is computed from the placement in floating point by the formula above. Among placements of equal total it
    has the smallest edge side (every other optimal edge side includes it). `edge_only_s` and `cloud_only_s` are the
    totals with every node on the first and on the last tier, None if that is impossible.
    """

    placement: Placement
    total_s: float
    sent: tuple[Sent, ...]
    edge_only_s: float | None
    cloud_only_s: float | None
    alternatives: tuple[Alternative, ...] = field(default=())


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
