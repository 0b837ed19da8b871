"""Finds the placement with the least total by branch and bound over cuts, where a single cut does not express it.

A cut never costs more than its placement, and costs less where the network cannot express something: a saving counted
by halves, a pair that costs more together, a tier that must not be empty. If that is so for the best cut, it is split
into cases that cover every better placement (branch and bound); each case raises some capacities, so its flow continues
from that of the cut:

a saving in the middle counts half     both nodes are there; or it does not count at all
a pair is where it costs more          that is paid, wherever they are; or the first is not there; or the second
a tier that must not be empty is       one case for every node that may be there

A node that moves up to the empty tier moves up everything that it feeds. So of the nodes below, those that feed none of
the others come first, to that tier or beyond: if one of them is then on the tier, the cut covers all nodes that feed it
too; if all went beyond, that node must stay there, and those that feed it follow. Nodes from above move down likewise.

Cases are examined in order of their lower bounds. Without such features in the graph the first cut is the answer.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from upwell.shared.partition.cost_graph import FORBIDDEN, Arrays, Saving, Terms
from upwell.shared.partition.mincut import Arcs
from upwell.shared.tensors import Array

_MOST_TIES = 50
"""Number of further cases with the same total examined for a smaller edge side."""


@dataclass(frozen=True)
class _Change:
    """The additions of a case: capacity on arcs (node, level, by), `cost` that all pay, the number of a settled saving.

    With `then` it only tries to bring a node to the empty `level`: if its cut leaves that empty still, the cases of
    `then` replace it, which cost at least as much.
    """

    raises: tuple[tuple[int, int, int], ...] = ()
    cost: int = 0
    settled: int | None = None
    level: int = 0
    then: Callable[[], Iterator[_Change]] | None = None


@dataclass(frozen=True)
class _Case:
    """The cut of a case: `bound` is its cost, `levels` its placement."""

    bound: int
    levels: Array
    residual: Array
    constant: int
    settled: frozenset[int]


class Search:
    """The search for the best placement with these terms, in quanta. `known` is a possible one, if any is known."""

    def __init__(self, arrays: Arrays, arcs: Arcs, terms: Terms, known: Array | None) -> None:
        self._arrays, self._arcs, self._terms = arrays, arcs, terms
        tiers = arrays.graph.tiers
        self._needed = sorted({tiers.index(tier) for tier in arrays.graph.non_empty})
        self._best = known
        self._best_key = (FORBIDDEN // 8, 0) if known is None else self._key(known)
        self._limit = 0

    def best(self) -> Array | None:
        """The levels of the nodes in the best placement; None if there is none."""
        priced = self._arcs.priced(self._terms)
        if priced is None:
            return self._best
        self._limit = self._best_key[0] - priced.constant
        residual = self._arcs.network.residual(priced.capacities, self._limit)
        first = self._case(residual, priced.constant, 0, frozenset())
        number, ties = itertools.count(), 0
        waiting: list[tuple[int, int, _Case, _Change | None]] = []
        if first is not None:
            waiting.append((first.bound, next(number), first, None))
        while waiting:
            bound, _, case, change = heapq.heappop(waiting)
            ties += bound == self._best_key[0]
            if bound > self._best_key[0] or ties > _MOST_TIES:
                break
            if change is None:
                followers = self._changes(case)
            else:
                new = self._changed(case, change)
                if new is None:
                    continue
                bound = new.bound
                if change.then is None or (new.levels == change.level).any():
                    heapq.heappush(waiting, (bound, next(number), new, None))
                    continue
                followers = change.then()
            for one in followers:
                heapq.heappush(waiting, (bound + one.cost, next(number), case, one))
        return self._best

    def _key(self, levels: Array) -> tuple[int, int]:
        """The value to minimize: quanta, and among equals how far down the nodes are."""
        value = self._arrays.spent(self._terms, levels) - self._arrays.saved(self._terms, levels)
        return int(value), -int(levels.sum())

    def _case(self, residual: Array, constant: int, value: int, settled: frozenset[int]) -> _Case | None:
        """The best cut of a case, None if it is worse than a known placement; `value` already flows."""
        network, room = self._arcs.network, self._best_key[0] - constant - value
        if room < 0:
            return None
        flow = network.flow(residual, room)
        bound = constant + value + flow.value
        if bound > self._best_key[0]:
            return None
        levels = self._arcs.levels(network.source_side(flow.residual))
        if not self._empty(levels):
            key = self._key(levels)
            if key < self._best_key or self._best is None:
                self._best, self._best_key = levels, key
        return _Case(bound, levels, flow.residual, constant, settled)

    def _changed(self, case: _Case, change: _Change) -> _Case | None:
        nodes, levels, by = np.array(change.raises, np.int64).reshape(-1, 3).T
        arcs, by = levels * self._arrays.nodes + nodes, np.minimum(by, self._limit + 1)
        residual = self._arcs.network.raised(case.residual, arcs, by)
        settled = case.settled if change.settled is None else case.settled | {change.settled}
        return self._case(residual, case.constant + change.cost, case.bound - case.constant, settled)

    def _changes(self, case: _Case) -> Iterator[_Change]:
        """The cases of a cut; none if it costs what its placement does."""
        wrong = [
            (abs(saving.saves_s), index, saving)
            for index, saving in self._arcs.open_savings
            if index not in case.settled and self._is_wrong(saving, case.levels)
        ]
        if wrong:
            _, index, saving = max(wrong, key=lambda one: (one[0], -one[1]))
            yield from self._saving_changes(index, saving)
            return
        for level in self._empty(case.levels)[:1]:
            feeding, fed = self._neighbours
            yield from self._tries(level, case.levels < level, range(level), feeding, fed)
            above = range(level + 1, self._arrays.levels)
            yield from self._tries(level, case.levels > level, above, fed, feeding)

    def _tries(
        self, level: int, inside: Array, barred: Sequence[int], back: Sequence[set[int]], ahead: Sequence[set[int]]
    ) -> Iterator[_Change]:
        """Bring nodes of `inside` to a level, first those with none of them `ahead`, then those `back` of them."""
        seen: set[int] = set()

        def one(node: int) -> _Change:
            seen.add(node)
            raises = tuple((node, other, FORBIDDEN) for other in barred)
            return _Change(raises, level=level, then=lambda: later(node))

        def later(node: int) -> Iterator[_Change]:
            yield self._stands(node, level)
            for other in sorted(back[node] - seen):
                if inside[other]:
                    yield one(other)

        for node in np.flatnonzero(inside).tolist():
            if not any(inside[other] for other in ahead[node]):
                yield one(node)

    @staticmethod
    def _is_wrong(saving: Saving, levels: Array) -> bool:
        there = sum(int(levels[node] == saving.level) for node in saving.pair)
        return there == 1 if saving.saves_s > 0 else there == 2

    def _saving_changes(self, index: int, saving: Saving) -> Iterator[_Change]:
        amount, (first, second), level = int(self._terms.saves[index]), saving.pair, saving.level
        if amount > 0:
            half, other = self._arcs.halves(amount)
            both = self._stands(first, level).raises + self._stands(second, level).raises
            yield _Change(both, settled=index)
            yield _Change(raises=((first, level, half), (second, level, other)), settled=index)
        else:
            yield _Change(cost=-amount, settled=index)
            yield _Change(raises=((first, level, FORBIDDEN),), settled=index)
            yield _Change(raises=((second, level, FORBIDDEN),), settled=index)

    def _stands(self, node: int, level: int) -> _Change:
        return _Change(tuple((node, other, FORBIDDEN) for other in range(self._arrays.levels) if other != level))

    def _empty(self, levels: Array) -> list[int]:
        return [level for level in self._needed if not (levels == level).any()]

    @cached_property
    def _neighbours(self) -> tuple[list[set[int]], list[set[int]]]:
        """For each node, the nodes that feed it and those that it feeds."""
        feeding: list[set[int]] = [set() for _ in range(self._arrays.nodes)]
        fed: list[set[int]] = [set() for _ in range(self._arrays.nodes)]
        makers = self._arrays.makers[self._arrays.reads].tolist()
        for maker, reader in zip(makers, self._arrays.readers.tolist(), strict=True):
            if maker >= 0:
                feeding[reader].add(maker)
                fed[maker].add(reader)
        return feeding, fed
