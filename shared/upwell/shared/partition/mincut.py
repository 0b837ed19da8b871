"""Exact minimum cuts for capacities of up to 2^52, with a solver for 32 bits: scipy's.

`scipy.sparse.csgraph.maximum_flow` computes in int32 and is silently wrong beyond it. So the flow is found in passes
(capacity scaling, Edmonds and Karp 1972, doi 10.1145/321694.321699): capacities are divided by 2^k and rounded down so
that nothing in the pass can reach 2^30, the flow found is multiplied by 2^k and subtracted from the capacities, and the
rest is solved with a smaller k. The cut that stopped a pass bounds the remaining flow, so k falls quickly: usually
there are two or three passes. The last pass has k = 0, and its residual network is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upwell.shared.errors import ConfigError
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
    try:
        from scipy.sparse import csgraph, csr_array
    except ImportError:
        raise ConfigError.at(None, "planning needs scipy: pip install 'upwell[partition]'") from None
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
