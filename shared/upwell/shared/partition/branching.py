"""The placement with the least total where one cut may not tell it: cuts, and cases where a cut says too little.

A cut never costs more than the placement that it stands for, and what `arcs` cannot express makes it cost less: a
saving that it counts by halves, a pair that costs more together, a tier that must not be empty. Where the best cut is
such a one, it splits into cases that hold every better placement (branch and bound); each case raises some capacities,
so its flow goes on from where that of the cut ended:

    a saving in the middle counts half        both nodes stand there; or it does not count at all
    a pair stands where it costs more         that is paid, wherever they stand; or the first is not there; or the second
    a tier that must not be empty is empty    one case for every node that may be there; on the first tier only those
                                              that no other node feeds, on the last those that feed no other

Where nothing of the kind is in the graph the first cut is the answer.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from upwell.shared.partition.arcs import Arcs
from upwell.shared.partition.arrays import FORBIDDEN, Arrays, Saving, Terms
from upwell.shared.tensors import Array

_MOST_TIES = 200
"""How many further cases of the same total are looked at for one with a smaller edge side."""


@dataclass(frozen=True)
class _Change:
    """What a case adds: capacity on the arcs of nodes and levels, `cost` that all pay, a saving that is settled."""

    raises: tuple[tuple[int, int, int], ...] = ()  # node, level, by
    cost: int = 0
    settled: int | None = None


@dataclass(frozen=True)
class _Case:
    """A cut of a case: `bound` is what it costs, `levels` its placement."""

    bound: int
    levels: Array
    residual: Array
    constant: int
    settled: frozenset[int]


class Search:
    """For the best placement with these terms, in quanta. `known` is one that is possible, if any is known."""

    def __init__(self, arrays: Arrays, arcs: Arcs, terms: Terms, known: Array | None) -> None:
        self._arrays, self._arcs, self._terms = arrays, arcs, terms
        tiers = arrays.graph.tiers
        self._needed = sorted({tiers.index(tier) for tier in arrays.graph.non_empty})
        self._best = known
        self._best_key = (FORBIDDEN // 8, 0) if known is None else self._key(known)
        self._limit = 0

    def best(self) -> Array | None:
        """The levels of the nodes in the best placement; None where there is none."""
        priced = self._arcs.priced(self._terms)
        if priced is None:
            return self._best
        self._limit = self._best_key[0] - priced.constant
        residual = self._arcs.network.residual(priced.capacities, self._limit)
        first = self._case(residual, priced.constant, 0, frozenset())
        cases = [(first.bound, 0, first)] if first is not None else []
        number, ties = itertools.count(1), 0
        while cases:
            bound, _, case = heapq.heappop(cases)
            ties += bound == self._best_key[0]
            if bound > self._best_key[0] or ties > _MOST_TIES:
                break
            for change in self._changes(case):
                new = self._changed(case, change)
                if new is not None:
                    heapq.heappush(cases, (new.bound, next(number), new))
        return self._best

    def _key(self, levels: Array) -> tuple[int, int]:
        """What is to be least: quanta, and among equals how far down the nodes stand."""
        value = self._arrays.spent(self._terms, levels) - self._arrays.saved(self._terms, levels)
        return int(value), -int(levels.sum())

    def _case(self, residual: Array, constant: int, value: int, settled: frozenset[int]) -> _Case | None:
        """The best cut of a case, None where it is worse than what is known; `value` already flows."""
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
        network = self._arcs.network
        residual = network.raised(case.residual, levels * self._arrays.nodes + nodes, np.minimum(by, self._limit + 1))
        settled = case.settled if change.settled is None else case.settled | {change.settled}
        return self._case(residual, case.constant + change.cost, case.bound - case.constant, settled)

    def _changes(self, case: _Case) -> Iterator[_Change]:
        """The cases of a cut; none where it costs what its placement does."""
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
            for node in self._candidates(level):
                yield _Change(self._only(node, level))

    @staticmethod
    def _is_wrong(saving: Saving, levels: Array) -> bool:
        there = sum(int(levels[node] == saving.level) for node in saving.pair)
        return there == 1 if saving.saves_s > 0 else there == 2

    def _saving_changes(self, index: int, saving: Saving) -> Iterator[_Change]:
        amount, (first, second), level = int(self._terms.saves[index]), saving.pair, saving.level
        if amount > 0:
            half, other = self._arcs.halves(amount)
            yield _Change((*self._only(first, level), *self._only(second, level)), settled=index)
            yield _Change(((first, level, half), (second, level, other)), settled=index)
        else:
            yield _Change(cost=-amount, settled=index)
            yield _Change(((first, level, FORBIDDEN),), settled=index)
            yield _Change(((second, level, FORBIDDEN),), settled=index)

    def _only(self, node: int, level: int) -> tuple[tuple[int, int, int], ...]:
        return tuple((node, other, FORBIDDEN) for other in range(self._arrays.levels) if other != level)

    def _empty(self, levels: Array) -> list[int]:
        return [level for level in self._needed if not (levels == level).any()]

    def _candidates(self, level: int) -> list[int]:
        """The nodes of which one must be on a level that is not empty."""
        arrays = self._arrays
        possible = self._terms.compute[:, level] < FORBIDDEN
        if level == 0:
            possible[arrays.readers[arrays.makers[arrays.reads] >= 0]] = False
        elif level == arrays.links:
            possible[arrays.makers[arrays.makers >= 0]] = False
        return [int(node) for node in np.flatnonzero(possible)]
