"""Plans placements: the best, and alternatives for other bandwidths or single moves; or explains why there is none.

`Cutter` starts from the best single tier and improves on it by branch and bound over minimum cuts. These count time in
whole quanta; it repeats with finer ones until they are fine enough for the total that was found.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from upwell.shared.errors import UpwellError
from upwell.shared.partition.branch_and_bound import Search
from upwell.shared.partition.cost_graph import (
    Alternative,
    Arrays,
    CostGraph,
    CostNode,
    Placement,
    PlacementPlan,
    Terms,
    TierLink,
    quanta_per_s,
    sent,
)
from upwell.shared.partition.mincut import Arcs
from upwell.shared.tensors import Array

_MOST_STEPS = 4
"""Maximum length of a chain of reasons."""


@dataclass(frozen=True)
class _Rule:
    """`first` makes a tensor that `second` reads; `together`: the tensor must not cross a link."""

    first: str
    second: str
    tensor: str
    together: bool

    def allows(self, level: int, other: int, *, is_first: bool) -> bool:
        """Whether a node at `level` is compatible with the other one of the pair at `other`; `is_first` says which it
        is."""
        low, high = (level, other) if is_first else (other, level)
        return low == high if self.together else low <= high


@dataclass(frozen=True)
class _Struck:
    """Why a tier is no longer possible: a text, or a rule with another node."""

    words: str
    rule: _Rule | None = None


class _Domains:
    """The tiers that each node has left, and why the others are gone.

    Every rule is an order or an equality of two nodes' tiers, or a set of tiers for one node. Such rules can all be met
    exactly if each node has a tier left after repeatedly striking out those that leave a neighbour without one (both
    kinds are closed under the minimum and the maximum of two placements). So tiers are struck out, each with its
    reason, until nothing changes or a node has none left.
    """

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self.left: dict[str, list[int]] = {}
        self.struck: dict[str, dict[int, _Struck]] = {}
        self.rules: dict[str, list[_Rule]] = {node.name: [] for node in graph.nodes}
        maker = {name: node.name for node in graph.nodes for name in node.outputs}
        for node in graph.nodes:
            self.struck[node.name] = {
                level: _Struck(words)
                for level in range(len(graph.tiers))
                if (words := self._own_obstacle(node, level, maker))
            }
            self.left[node.name] = [level for level in range(len(graph.tiers)) if level not in self.struck[node.name]]
            for name in node.inputs:
                if name in maker:
                    rule = _Rule(maker[name], node.name, name, together=not graph.tensors[name].splittable)
                    self.rules[rule.first].append(rule)
                    self.rules[rule.second].append(rule)

    def _own_obstacle(self, node: CostNode, level: int, maker: dict[str, str]) -> str:
        """Why a node cannot be on a tier, whatever the others do; "" if it can."""
        graph, tier = self.graph, self.graph.tiers[level]
        if node.only is not None and node.only != tier:
            return f"`only` pins it to {node.only!r}"
        if tier not in node.cost_s:
            return "it has no cost there"
        made = graph.tiers.index(graph.input_tier)
        for name in node.inputs:
            if name in maker or level == made:
                continue
            if level < made:
                return f"it reads the input {name!r}, which is made on {graph.input_tier!r}"
            if not graph.tensors[name].splittable:
                return f"it reads the input {name!r}, which is not splittable and made on {graph.input_tier!r}"
        return ""

    def empty_node(self) -> str | None:
        """The first node without a tier after striking out all consequences; None if each has one."""
        waiting = deque(self.rules)
        while waiting:
            name = waiting.popleft()
            if not self.left[name]:
                return name
            for rule in self.rules[name]:
                other, is_first = (rule.second, False) if rule.first == name else (rule.first, True)
                gone = [
                    level
                    for level in self.left[other]
                    if not any(rule.allows(level, mine, is_first=is_first) for mine in self.left[name])
                ]
                for level in gone:
                    self.left[other].remove(level)
                    self.struck[other][level] = _Struck("", rule)
                if gone:
                    waiting.append(other)
        return None

    def reasons(self, name: str, levels: Collection[int], steps: int = _MOST_STEPS) -> str:
        """Why a node cannot be on these tiers."""
        alike: dict[_Struck, list[int]] = {}
        for level in sorted(levels):
            alike.setdefault(self.struck[name][level], []).append(level)
        parts = []
        for struck, gone in alike.items():
            tiers = " or ".join(repr(self.graph.tiers[level]) for level in gone)
            words = struck.words if struck.rule is None else self._words(name, struck.rule, gone, steps)
            parts.append(f"not on {tiers}: {words}")
        return "; ".join(parts)

    def _words(self, name: str, rule: _Rule, gone: Sequence[int], steps: int) -> str:
        """How a rule with another node struck out the tiers `gone`, and why that node cannot be there."""
        tensor = f"{rule.tensor!r}{', which is not splittable,' if rule.together else ''}"
        levels, where = gone, ""
        if rule.second == name:
            other, what = rule.first, f"it reads {tensor} of"
            if not rule.together:
                levels, where = range(gone[-1] + 1), " or below"
        else:
            other, what = rule.second, f"it makes {tensor} for"
            if not rule.together:
                levels, where = range(gone[0], len(self.graph.tiers)), " or beyond"
        why = f" ({self.reasons(other, levels, steps - 1)})" if steps > 1 else ""
        return f"{what} {other!r}, which cannot run there{where}{why}"


def conflict(graph: CostGraph) -> str:
    """Why no placement of the graph is possible."""
    domains = _Domains(graph)
    name = domains.empty_node()
    if name is not None:
        reasons = domains.reasons(name, range(len(graph.tiers)))
        return f"no placement is possible: node {name!r} has no tier left; {reasons}"
    for tier in graph.non_empty:
        level = graph.tiers.index(tier)
        if not any(level in left for left in domains.left.values()):
            return f"no placement is possible: `non_empty` names the tier {tier!r}, on which no node can run"
    together = ", ".join(map(repr, dict.fromkeys(graph.non_empty)))
    return f"no placement is possible: the tiers {together} of `non_empty` cannot all hold a node at once"


_MOST_ALTERNATIVES = 5
"""Maximum number of other placements in a plan."""

_MOST_MOVES = 64
"""Number of node moves examined, first those whose own cost improves or changes least."""


def _others(arrays: Arrays, terms: Terms, best: Array, met: Iterable[Array]) -> list[tuple[Array, float]]:
    """The best few other placements with their totals: from those `met` elsewhere, or one node away."""
    found = {tuple(levels.tolist()): levels for levels in (*met, *_moved(arrays, terms, best))}
    found.pop(tuple(best.tolist()), None)
    totals = ((arrays.total_s(terms, levels), key) for key, levels in found.items())
    best_first = sorted((total_s, key) for total_s, key in totals if math.isfinite(total_s))
    return [(found[key], total_s) for total_s, key in best_first[:_MOST_ALTERNATIVES]]


def _moved(arrays: Arrays, terms: Terms, best: Array) -> Iterator[Array]:
    """The best placement with one node on another tier, not below what feeds it nor beyond what it feeds."""
    makers = arrays.makers[arrays.reads]
    is_made = makers >= 0
    lowest, highest = np.zeros_like(best), np.full_like(best, arrays.links)
    np.maximum.at(lowest, arrays.readers[is_made], best[makers[is_made]])
    np.minimum.at(highest, makers[is_made], best[arrays.readers[is_made]])
    level = np.arange(arrays.levels)
    costs_more = terms.compute - terms.compute[np.arange(arrays.nodes), best][:, None]
    is_move = (lowest[:, None] <= level) & (level <= highest[:, None]) & (level != best[:, None])
    moves = np.argwhere(is_move & np.isfinite(costs_more))
    order = np.argsort(costs_more[moves[:, 0], moves[:, 1]], kind="stable")
    for node, target in moves[order[:_MOST_MOVES]].tolist():
        levels = best.copy()
        levels[node] = target
        yield levels


_BANDWIDTH_FACTORS = (0.25, 4.0)
"""Factors of the links' bandwidth, equal for all links, at which other plans are searched for."""

_ROUNDING = 1 + 1e-9
_COARSE = 100.0
"""Factor by which the quanta of a total may be coarser than necessary."""


class NoPlan(UpwellError):
    """No placement of the graph is possible; the text names what is in conflict."""


class Cutter:
    """A graph prepared once, to be planned for any links: a bandwidth only changes the prices of arcs."""

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self._arrays = Arrays(graph)
        self._arcs = Arcs(self._arrays) if graph.links else None

    def solve(self, links: Sequence[TierLink] | None = None) -> Placement:
        """The placement with the least total, and among equals with the smallest edge side. Raises `NoPlan`.

        `links` replace the graph's own, one for one; a `bps` of infinity makes sending free.
        """
        return self._arrays.placement(self._best(self._terms(links)))

    def plan(self) -> PlacementPlan:
        """The best placement with the graph's own links, and alternatives. Raises `NoPlan`."""
        terms = self._terms(None)
        best = self._best(terms)
        placement = self._arrays.placement(best)
        one_tier_s = self._one_tier_s(terms)
        return PlacementPlan(
            placement=placement,
            total_s=self._arrays.total_s(terms, best),
            sent=sent(self.graph, placement),
            edge_only_s=one_tier_s.get(0),
            cloud_only_s=one_tier_s.get(len(self.graph.links)),
            alternatives=tuple(
                Alternative(self._arrays.placement(levels), total_s)
                for levels, total_s in _others(self._arrays, terms, best, self._met(terms))
            ),
        )

    def _terms(self, links: Sequence[TierLink] | None) -> Terms:
        return self._arrays.terms(self.graph.links if links is None else links)

    def _best(self, terms: Terms) -> Array:
        known = self._best_on_one_tier(terms)
        if known is None:
            known = self._least(terms, terms.whole_s, None)
        if known is None:
            raise NoPlan(conflict(self.graph))
        # A term longer than the best known total is not part of a better placement, so sentinels of years cost no
        # precision; if a much better one is found, it is computed again in finer quanta.
        most_s = self._most_s(terms, known)
        while True:
            found = self._least(terms, most_s, known)
            known = known if found is None else found
            counted_s, most_s = most_s, self._most_s(terms, known)
            if counted_s <= _COARSE * most_s:
                return known

    def _most_s(self, terms: Terms, levels: Array) -> float:
        """An upper bound on each term of a better placement."""
        return (self._arrays.spent(terms, levels) + float(np.abs(terms.saves).sum())) * _ROUNDING

    def _least(self, terms: Terms, most_s: float, known: Array | None) -> Array | None:
        """The best levels, if no term above `most_s` can be part of the best."""
        if self._arcs is None:
            return known
        return Search(self._arrays, self._arcs, terms.quanta(quanta_per_s(most_s), most_s), known).best()

    def _best_on_one_tier(self, terms: Terms) -> Array | None:
        choices = [(total_s, -level) for level, total_s in self._one_tier_s(terms).items()]
        return self._all_on(-min(choices)[1]) if choices else None

    def _all_on(self, level: int) -> Array:
        return np.full(self._arrays.nodes, level)

    def _one_tier_s(self, terms: Terms) -> dict[int, float]:
        """By level, the totals of the possible placements on a single tier."""
        totals = {level: self._arrays.total_s(terms, self._all_on(level)) for level in range(len(self.graph.tiers))}
        return {level: total_s for level, total_s in totals.items() if math.isfinite(total_s)}

    def _met(self, terms: Terms) -> Iterator[Array]:
        """Placements that are best at other bandwidths."""
        yield from map(self._all_on, self._one_tier_s(terms))
        for factor in _BANDWIDTH_FACTORS if self.graph.links else ():
            yield self._best(self._terms([replace(link, bps=link.bps * factor) for link in self.graph.links]))


def plan(graph: CostGraph) -> PlacementPlan:
    """The best placement, the tensors it sends, the baselines, and up to five alternatives. Raises `NoPlan`."""
    return Cutter(graph).plan()
