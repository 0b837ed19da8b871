"""Explains why no placement of a graph is possible, naming the nodes, tensors and tiers in conflict.

Every rule is an order or an equality of two nodes' tiers, or a set of tiers for one node. Such rules can all be met
exactly if each node has a tier left after repeatedly striking out those that leave a neighbour without one (both kinds
are closed under the minimum and the maximum of two placements). So tiers are struck out, each with its reason, until
nothing changes or a node has none left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from upwell.shared.partition.cost_graph import CostGraph, CostNode

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
    """The tiers that each node has left, and why the others are gone."""

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
