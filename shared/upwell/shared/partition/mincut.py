"""Minimum cuts: placements as cuts of a network, and exact cuts for capacities of up to 2^52 with scipy's 32 bits.

`scipy.sparse.csgraph.maximum_flow` computes in int32 and is silently wrong beyond it. So the flow is found in passes
(capacity scaling, Edmonds and Karp 1972, doi 10.1145/321694.321699): capacities are divided by 2^k and rounded down so
that nothing in the pass can reach 2^30, the flow found is multiplied by 2^k and subtracted from the capacities, and the
rest is solved with a smaller k. The cut that stopped a pass bounds the remaining flow, so k falls quickly: usually
there are two or three passes. The last pass has k = 0, and its residual network is exact.

For a node v and a link k the vertex (v, k) is on the source's side if v is at or below the link, and on the sink's if
it is beyond it. A cut pays for every arc from the source's side to the sink's:

cost of v on level l            (v, l) -> (v, l − 1), where (v, L − 1) is the source and (v, −1) the sink
beyond k + 1 is beyond k        (v, k) -> (v, k + 1), infinite
w reads what v makes            (w, k) -> (v, k), infinite: nothing is below what feeds it
a tensor of v crosses link k    (v, k) -> a its time, a -> (w, k) infinite for every w that reads it; an input of
                                the model is made at the source, and at the sink below its level
link k is used                  source -> z its fixed time, z -> (v, k) infinite
v, w save s on the first level  −s for all, and source -> p = s, p -> (v, 0) and p -> (w, 0) infinite: paid back
                                if either is beyond; on the last level the same from the sink
v, w cost s more on level l     (w, l) -> (v, l − 1) = s, if w reads what v makes

The way back of an output is part of its maker's cost. Other savings (`open_savings`) cannot be expressed as cuts; if
they are gains, half of one counts for each node of the pair on that level, so that a cut never costs more than its
placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upwell.shared.errors import ExtraMissing
from upwell.shared.partition.cost_graph import FORBIDDEN, Arrays, Saving, Terms
from upwell.shared.tensors import Array

SOURCE, SINK = 0, 1
_PASS_BITS = 29
"""Maximum bits of a capacity: an arc plus its reverse stays below 2^31, and so does the whole flow."""


@dataclass(frozen=True)
class MaxFlow:
    """A maximum flow, or one of at least the limit. `residual` is the rest on each arc and reverse arc."""

    value: int
    residual: Array


def _scipy() -> tuple[Any, Any]:
    """The constructor of sparse matrices, and the graph algorithms. Raises `ConfigError` without scipy."""
    with ExtraMissing.on_import("partition", "planning needs scipy"):
        from scipy.sparse import csgraph, csr_array
    return csr_array, csgraph


def strong_components(vertices: int, arcs: Sequence[tuple[int, int]]) -> list[int]:
    """By vertex: the number of its strongly connected component."""
    csr_array, csgraph = _scipy()
    tails, heads = np.array(arcs, np.int64).reshape(-1, 2).T
    graph = csr_array((np.ones(len(arcs)), (tails, heads)), shape=(vertices, vertices))
    labels: list[int] = csgraph.connected_components(graph, connection="strong")[1].tolist()
    return labels


class Network:
    """A network of fixed arcs between vertices 0 to `vertices` − 1, whose capacities change between calls.

    `tails` and `heads` are the ends of each arc. Parallel arcs count together.
    """

    def __init__(self, vertices: int, tails: Array, heads: Array) -> None:
        self._csr_array, self._csgraph = _scipy()
        gate = vertices  # an arc from here to the source keeps the flow of a pass within the solver's range
        others = np.arange(SOURCE + 1, vertices)
        arcs = len(tails)
        tails = np.concatenate((tails, np.full_like(others, SOURCE), [gate])).astype(np.int64)
        heads = np.concatenate((heads, others, [SOURCE])).astype(np.int64)
        self._vertices = vertices + 1
        keys = np.concatenate((tails * self._vertices + heads, heads * self._vertices + tails))
        unique, places = np.unique(keys, return_inverse=True)
        self._place, self._from_source = places[:arcs], places[arcs : len(tails) - 1]
        self._gate = int(places[len(tails) - 1])
        self._rows, self._columns = unique // self._vertices, unique % self._vertices
        self._indices = self._columns.astype(np.int32)
        self._starts = np.searchsorted(self._rows, np.arange(self._vertices + 1)).astype(np.int32)

    def residual(self, capacities: Array, limit: int) -> Array:
        """The residual network without any flow; capacities are limited to `limit` + 1, which cannot be cut."""
        found = np.zeros(len(self._indices), np.int64)
        np.add.at(found, self._place, np.minimum(capacities, limit + 1))
        return np.minimum(found, limit + 1)

    def raised(self, residual: Array, arcs: Array, by: Array) -> Array:
        """`residual` with more capacity on some arcs."""
        found: Array = residual.copy()
        np.add.at(found, self._place[arcs], by)
        return found

    def flow(self, residual: Array, limit: int) -> MaxFlow:
        """The maximum flow through `residual`, at most `limit` + 1, which means "perhaps more". `limit` is below
        2^54."""
        residual = residual.copy()
        residual[self._gate] = bound = limit + 1
        # Vertices reached from the source by arcs that cannot be cut are on its side. A direct arc to them means the
        # same, but saves the solver paths through all of them, each of which would cost a round.
        inside = self._reached((residual > limit).astype(np.int64), SOURCE)[SOURCE + 1 : -1]
        residual[self._from_source[inside]] = bound
        value = 0
        while bound:
            shift = max(0, bound.bit_length() - _PASS_BITS)
            capacities = np.minimum(residual >> shift, (bound >> shift) + 1)
            more, flows = self._solve(capacities)
            residual -= flows << shift
            value += more << shift
            if not shift:
                break
            bound = min(limit + 1 - value, self._cut_bound(residual, shift))
        residual[self._gate] = 0
        return MaxFlow(value, residual)

    def source_side(self, residual: Array) -> Array:
        """The vertices reached from the source: the smallest source side of any minimum cut, if the flow is maximal."""
        return self._reached(residual, SOURCE)[:-1]

    def _solve(self, capacities: Array) -> tuple[int, Array]:
        graph = self._graph(capacities.astype(np.int32), self._indices, self._starts)
        result = self._csgraph.maximum_flow(graph, self._vertices - 1, SINK)
        return int(result.flow_value), result.flow.data.astype(np.int64)

    def _cut_bound(self, residual: Array, shift: int) -> int:
        """The residual capacity of the cut that stopped a pass, a bound on the remaining flow."""
        inside = self._reached(residual >> shift, self._vertices - 1)
        return int(residual[inside[self._rows] & ~inside[self._columns]].sum())

    def _reached(self, residual: Array, start: int) -> Array:
        left = residual > 0
        starts = np.concatenate(([0], np.cumsum(left)))[self._starts]
        graph = self._graph(np.ones(int(starts[-1])), self._indices[left], starts)
        found = np.zeros(self._vertices, bool)
        found[self._csgraph.breadth_first_order(graph, start, return_predecessors=False)] = True
        return found

    def _graph(self, data: Array, indices: Array, starts: Array) -> Any:
        """A sparse matrix of arcs, row by row."""
        return self._csr_array((data, indices, starts), shape=(self._vertices, self._vertices))


@dataclass(frozen=True)
class Priced:
    """The capacities of the arcs, and the `constant` added to the cost of every cut."""

    capacities: Array
    constant: int


class Arcs:
    """The network of a graph of two or more tiers. Arc l · N + n is cut if node n is on level l."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._tails: list[Array] = []
        self._heads: list[Array] = []
        self._arcs = 0
        links, nodes = arrays.links, arrays.nodes
        self._vertices = 2 + links * nodes
        inner = np.arange(2, self._vertices).reshape(links, nodes)
        self._grid = np.vstack((np.full((1, nodes), SINK), inner, np.full((1, nodes), SOURCE)))
        self._add(self._grid[1:], self._grid[:-1])
        self._add(inner[:-1], inner[1:])
        self._add_order()
        self._sends = self._add_tensors()
        self._uses = self._add_links()
        self.open_savings: list[tuple[int, Saving]] = []
        self._gains, self._losses = self._add_savings()
        self.network = Network(self._vertices, np.concatenate(self._tails), np.concatenate(self._heads))

    def priced(self, terms: Terms) -> Priced | None:
        """The capacities for terms in quanta, `FORBIDDEN` for infinite; None if a node can be on no level."""
        costs = self._costs(terms)
        least = costs.min(axis=1)
        if (least >= FORBIDDEN // 2).any():
            return None
        capacities = np.full(self._arcs, FORBIDDEN)
        capacities[: costs.size] = np.where(costs >= FORBIDDEN // 2, FORBIDDEN, costs - least[:, None]).T.ravel()
        arcs, tensors, links = self._sends
        capacities[arcs] = terms.up[tensors, links]
        capacities[self._uses] = terms.fixed
        constant = int(least.sum()) + self._back_of_inputs(terms)
        for which, arcs in self._gains:
            capacities[arcs] = terms.saves[which]
            constant -= int(terms.saves[which].sum())
        which, arcs = self._losses
        capacities[arcs] = -terms.saves[which]
        return Priced(capacities, constant)

    def levels(self, source_side: Array) -> Array:
        """The level of each node: the number of links that it is beyond."""
        return np.asarray((~source_side[self._grid[1:-1]]).sum(axis=0))

    def halves(self, amount: int) -> tuple[int, int]:
        """The parts of a saving that count for the first and the second node of a pair."""
        return amount // 2, amount - amount // 2

    def _costs(self, terms: Terms) -> Array:
        """The cost of each node on each level, with the way back of its outputs and halves of open savings."""
        costs: Array = terms.compute.copy()
        for output, maker in enumerate(self._arrays.output_makers.tolist()):
            if maker >= 0:
                way = terms.back[output].copy()
                way[: self._arrays.output_level] = 0
                costs[maker, 1:] += np.minimum(np.cumsum(np.minimum(way, FORBIDDEN // 64)), FORBIDDEN)
        for index, saving in self.open_savings:
            amount = int(terms.saves[index])
            if amount > 0:
                for node, half in zip(saving.pair, self.halves(amount), strict=True):
                    costs[node, saving.level] -= half
        return costs

    def _back_of_inputs(self, terms: Terms) -> int:
        """The way back of model outputs that are inputs: the same in every placement."""
        of_inputs = self._arrays.output_makers < 0
        return int(terms.back[of_inputs, self._arrays.output_level : self._arrays.input_level].sum())

    def _add(self, tails: Array, heads: Array) -> slice:
        tails, heads = np.broadcast_arrays(tails, heads)
        self._tails.append(tails.ravel())
        self._heads.append(heads.ravel())
        self._arcs += tails.size
        return slice(self._arcs - tails.size, self._arcs)

    def _new(self, count: int) -> Array:
        """Add `count` vertices."""
        self._vertices += count
        return np.arange(self._vertices - count, self._vertices)

    def _add_order(self) -> None:
        makers = self._arrays.makers[self._arrays.reads]
        is_made = makers >= 0
        inner = self._grid[1:-1]
        self._add(inner[:, self._arrays.readers[is_made]], inner[:, makers[is_made]])

    def _add_tensors(self) -> tuple[slice, Array, Array]:
        """The arcs that are cut if a tensor crosses a link, with the tensor and the link of each."""
        arrays, inner = self._arrays, self._grid[1:-1]
        tensors = len(arrays.makers)
        counts = np.bincount(arrays.reads, minlength=tensors)
        one_reader = np.zeros(tensors, np.int64)
        one_reader[arrays.reads] = arrays.readers
        middle = self._new(arrays.links * tensors).reshape(arrays.links, tensors)
        middle = np.where(counts == 1, inner[:, one_reader], middle)
        shared = counts[arrays.reads] > 1
        self._add(middle[:, arrays.reads[shared]], inner[:, arrays.readers[shared]])
        links, which = np.divmod(np.arange(arrays.links * tensors), max(tensors, 1))
        crosses = (arrays.makers[which] >= 0) | (links >= arrays.input_level)
        links, which = links[crosses], which[crosses]
        makers = arrays.makers[which]
        tails = np.where(makers < 0, SOURCE, inner[links, makers])
        return self._add(tails, middle[links, which]), which, links

    def _add_links(self) -> slice:
        """A node beyond a link is one that no other node reads, or feeds such a node."""
        last = np.setdiff1d(np.arange(self._arrays.nodes), self._arrays.makers)
        used = self._new(self._arrays.links)
        self._add(used[:, None], self._grid[1:-1][:, last])
        return self._add(np.array(SOURCE), used)

    def _add_savings(self) -> tuple[list[tuple[list[int], slice]], tuple[list[int], slice]]:
        """The savings with an arc each, and their arcs: gains on the first level and on the last, then losses."""
        arrays, grid = self._arrays, self._grid
        fed = set(zip(arrays.makers[arrays.reads].tolist(), arrays.readers.tolist(), strict=True))
        kinds: tuple[list[int], ...] = ([], [], [])
        for index, saving in enumerate(arrays.savings):
            if saving.saves_s > 0 and saving.level in (0, arrays.links):
                kinds[0 if saving.level == 0 else 1].append(index)
            elif saving.saves_s < 0 and (saving.pair in fed or saving.pair[::-1] in fed):
                kinds[2].append(index)
            else:
                self.open_savings.append((index, saving))
        first, last, losses = kinds
        pairs = np.array([one.pair for one in arrays.savings], np.int64).reshape(-1, 2)
        below, above = self._new(len(first)), self._new(len(last))
        self._add(below[:, None], grid[1][pairs[first]])
        self._add(grid[-2][pairs[last]], above[:, None])
        gains = [(first, self._add(np.array(SOURCE), below)), (last, self._add(above, np.array(SINK)))]
        in_order = np.array([arrays.savings[one].pair in fed for one in losses], bool)
        feeds = np.where(in_order[:, None], pairs[losses], pairs[losses][:, ::-1])
        levels = np.array([arrays.savings[one].level for one in losses], np.int64)
        return gains, (losses, self._add(grid[levels + 1, feeds[:, 1]], grid[levels, feeds[:, 0]]))
