"""Random small cost graphs, and the best placement of one by trying all: the formula of the file format, word by word.

Nothing of the planner is used here, and nothing of `arrays`: both are held against this.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np

from upwell.shared.partition.cost_graph import Codec, CostGraph, CostNode, CostTensor, Fused, TierLink
from upwell.shared.tensors import Array


def every_total(graph: CostGraph) -> tuple[Array, Array]:
    """All placements as rows of levels, nodes in the graph's order, and the total of each; infinite where it cannot be.

    Each term is a sentence of the format, worked out for all rows at once.
    """
    tiers, count = graph.tiers, len(graph.nodes)
    rows = np.array(list(itertools.product(range(len(tiers)), repeat=count)), np.int8).reshape(-1, count)
    column = {node.name: rows[:, index] for index, node in enumerate(graph.nodes)}
    total = np.zeros(len(rows))
    for node in graph.nodes:
        costs = [node.cost_s[tier] if tier in node.cost_s and node.only in (None, tier) else math.inf for tier in tiers]
        total += np.array(costs)[column[node.name]]
    for fused in graph.fused:
        a, b = (column[name] for name in fused.pair)
        saves = np.array([fused.saves_s.get(tier, 0.0) for tier in tiers])
        total -= np.where(a == b, saves[a], 0.0)
    for k, link in enumerate(graph.links):
        total += np.where((rows > k).any(axis=1), link.fixed_s, 0.0)
    made = {name: np.full(len(rows), tiers.index(graph.input_tier)) for name in graph.inputs}
    made |= {name: column[node.name] for node in graph.nodes for name in node.outputs}
    for name, tensor in graph.tensors.items():
        readers = [column[node.name] for node in graph.nodes if name in node.inputs]
        if not readers:
            continue
        total[np.min(readers, axis=0) < made[name]] = math.inf
        for k, link in enumerate(graph.links):
            ways = [tensor.bytes * 8 / link.bps]
            ways += [one.encode_s + one.bytes * 8 / link.bps + one.decode_s for one in tensor.codecs]
            crosses = (made[name] <= k) & (np.max(readers, axis=0) > k)
            total += np.where(crosses, min(ways) if tensor.splittable else math.inf, 0.0)
    if graph.output_tier is not None:
        for name, (k, link) in itertools.product(graph.outputs, enumerate(graph.links)):
            returns = (made[name] > k) & (k >= tiers.index(graph.output_tier))
            total += np.where(returns, graph.tensors[name].bytes * 8 / link.return_bps, 0.0)
    for tier in graph.non_empty:
        total[~(rows == tiers.index(tier)).any(axis=1)] = math.inf
    return rows, total


@dataclass(frozen=True)
class Kind:
    """What random graphs are made of. `whole`: small whole numbers, so that many placements take the same."""

    tiers: tuple[str, ...] = ("edge", "cloud")
    nodes: tuple[int, int] = (4, 12)
    whole: bool = False
    any_savings: bool = False
    may_be_needed: bool = False


def random_graph(chance: random.Random, kind: Kind) -> CostGraph:
    """A graph of multi-output nodes, fan-out, skips, pins, missing costs, tensors that may not cross, fused pairs."""
    tensors: dict[str, CostTensor] = {}
    names = [f"in{index}" for index in range(chance.choice((1, 1, 2)))]
    inputs = tuple(names)
    for name in names:
        tensors[name] = _tensor(chance, kind)
    nodes = []
    for index in range(chance.randint(*kind.nodes)):
        read = [chance.choice(names[-6:]) for _ in range(chance.choice((1, 1, 1, 2, 2, 3)))]
        made = [f"t{index}_{number}" for number in range(chance.choice((1, 1, 1, 2)))]
        tensors |= {name: _tensor(chance, kind) for name in made}
        names += made
        # A node may read the same tensor twice, or nothing at all.
        nodes.append(
            CostNode(
                f"n{index}",
                tuple(read) if chance.random() < 0.95 else (),
                tuple(made),
                {tier: _number(chance, kind) for tier in kind.tiers if chance.random() < 0.95},
                chance.choice(kind.tiers) if chance.random() < 0.06 else None,
            )
        )
    outputs = tuple(dict.fromkeys(chance.choice(names[-4:]) for _ in range(chance.choice((1, 1, 2)))))
    if chance.random() < 0.05:
        outputs = tuple(dict.fromkeys((*outputs, inputs[0])))
    chance.shuffle(nodes)  # they come in any order
    return CostGraph(
        kind.tiers,
        tuple(nodes),
        tensors,
        inputs,
        outputs,
        tuple(_link(chance, kind) for _ in kind.tiers[1:]),
        kind.tiers[0] if chance.random() < 0.85 else chance.choice(kind.tiers),
        chance.choice((None, kind.tiers[0], kind.tiers[0], chance.choice(kind.tiers))),
        tuple(_fused(chance, kind, [node.name for node in nodes]) for _ in range(chance.choice((0, 1, 2, 4)))),
        tuple(tier for tier in kind.tiers if kind.may_be_needed and chance.random() < 0.35),
    )


def _number(chance: random.Random, kind: Kind) -> float:
    return float(chance.randint(0, 3)) if kind.whole else chance.random() * 6


def _tensor(chance: random.Random, kind: Kind) -> CostTensor:
    codecs = (Codec("short", _number(chance, kind) / 2, 0.25, 0.5),) if chance.random() < 0.15 else ()
    return CostTensor(_number(chance, kind), chance.random() < 0.92, codecs)


def _link(chance: random.Random, kind: Kind) -> TierLink:
    fixed_s = _number(chance, kind) if chance.random() < 0.7 else 0.0
    return TierLink(chance.choice((4.0, 8.0, 16.0, 64.0)), fixed_s, chance.choice((4.0, 8.0, math.inf)))


def _fused(chance: random.Random, kind: Kind, names: list[str]) -> Fused:
    """Of any two nodes, neighbours or not; a saving may be larger than what its nodes cost."""
    tiers = kind.tiers if kind.any_savings else (kind.tiers[0], kind.tiers[-1])
    sign = -1 if kind.any_savings and chance.random() < 0.3 else 1
    first, second = chance.sample(names, 2)
    return Fused((first, second), {tier: sign * _number(chance, kind) for tier in tiers if chance.random() < 0.7})
