"""The words for a graph that has no placement."""

from __future__ import annotations

import pytest

from upwell.shared.partition.cost_graph import CostGraph, CostNode, CostTensor, TierLink
from upwell.shared.partition.planner import conflict

TIERS = ("device", "gateway", "cloud")
ANYWHERE = dict.fromkeys(TIERS, 1.0)


def graph(*nodes: CostNode, fixed: tuple[str, ...] = (), non_empty: tuple[str, ...] = ()) -> CostGraph:
    names = {"x", *(name for node in nodes for name in (*node.inputs, *node.outputs))}
    tensors = {name: CostTensor(1.0, splittable=name not in fixed) for name in names}
    return CostGraph(
        TIERS, nodes, tensors, ("x",), (), (TierLink(1.0), TierLink(1.0)), "gateway", None, non_empty=non_empty
    )


def node(name: str, reads: str, makes: str, *tiers: str) -> CostNode:
    return CostNode(name, (reads,) if reads else (), (makes,), dict.fromkeys(tiers, 1.0))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            graph(CostNode("a", (), (), {"cloud": 1.0}, "device")),
            "node 'a' has no tier left; not on 'device': it has no cost there; "
            "not on 'gateway' or 'cloud': `only` pins it to 'device'",
        ),
        (
            graph(node("a", "x", "y", "device")),
            "node 'a' has no tier left; not on 'device': it reads the input 'x', which is made on 'gateway'; "
            "not on 'gateway' or 'cloud': it has no cost there",
        ),
        (
            graph(node("a", "x", "y", "cloud"), fixed=("x",)),
            "node 'a' has no tier left; not on 'device' or 'gateway': it has no cost there; "
            "not on 'cloud': it reads the input 'x', which is not splittable and made on 'gateway'",
        ),
        (
            graph(node("a", "", "y", "gateway"), node("b", "y", "z", "device", "cloud"), fixed=("y",)),
            "node 'b' has no tier left; "
            "not on 'device' or 'cloud': it reads 'y', which is not splittable, of 'a', which cannot run there "
            "(not on 'device' or 'cloud': it has no cost there); not on 'gateway': it has no cost there",
        ),
        (
            graph(node("a", "", "y", "cloud"), node("b", "y", "z", *TIERS), node("c", "z", "w", "gateway")),
            "node 'c' has no tier left; not on 'device' or 'cloud': it has no cost there; "
            "not on 'gateway': it reads 'z' of 'b', which cannot run there or below (not on 'device' or 'gateway': "
            "it reads 'y' of 'a', which cannot run there or below "
            "(not on 'device' or 'gateway': it has no cost there))",
        ),
        (
            graph(node("a", "", "y", "gateway", "cloud"), non_empty=("cloud", "device")),
            "`non_empty` names the tier 'device', on which no node can run",
        ),
        (
            graph(node("a", "", "y", *TIERS), non_empty=("cloud", "device")),
            "the tiers 'cloud', 'device' of `non_empty` cannot all hold a node at once",
        ),
    ],
)
def test_a_conflict_names_what_clashes(given: CostGraph, words: str) -> None:
    assert conflict(given) == f"no placement is possible: {words}"
