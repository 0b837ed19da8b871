"""Contraction against every cut there is, on small graphs of any kind."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from upwell.shared.partition.contraction import contract
from upwell.shared.partition.cuts import prefix_cuts, random_downsets
from upwell.shared.partition.graph import Graph, Node, Tensor

QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}
LIGHT = {"Relu", "Add", "Mul", "Cast", "ReduceMean", *QUANTIZERS}
INPUTS = {"Add": 2, "Mul": 2, "Conv": 2, "Split": 2, "Constant": 0}
"""The most that an operator reads; 1 where nothing is said."""

OPS = st.sampled_from(["Conv", "Split", "Constant", *sorted(LIGHT)])
SIZES = st.sampled_from([1, 1, 4, 4, 4, 16, None])
BONDS = st.sampled_from(["", "", "", "", "a"])
MOST_OPERATORS = 9


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs of which every tensor has one byte, four, sixteen or an unknown number."""
    tensors = {name: Tensor(name, "UINT8", (4,)) for name in ("x", "z")}
    nodes: list[Node] = []
    for at in range(draw(st.integers(1, MOST_OPERATORS))):
        op = draw(OPS)
        most = INPUTS.get(op, 1)
        inputs = draw(st.lists(st.sampled_from(sorted(tensors)), min_size=min(1, most), max_size=most, unique=True))
        outputs = (f"t{at}", f"u{at}") if op == "Split" else (f"t{at}",)
        is_free = op == "Constant" or (op == "DequantizeLinear" and draw(st.booleans()))
        bond = draw(BONDS) if op == "Conv" else ""
        nodes.append(Node(f"n{at}", op, tuple(inputs), outputs, (at,), float(draw(st.integers(0, 9))), is_free, bond))
        if op != "Constant":  # nobody names what a constant gives as an input
            for name in outputs:
                size = draw(SIZES)
                tensors[name] = Tensor(name, "UINT8", None if size is None else (size,))
    free = {name for node in nodes if node.is_free for name in node.outputs}
    given_back = draw(st.lists(st.sampled_from(sorted(set(tensors) - free)), min_size=1, max_size=3, unique=True))
    form = draw(st.sampled_from(["onnx", "onnx", "tflite"]))
    return Graph(form, tuple(nodes), tensors, ("x", "z"), tuple(given_back))


@dataclass(frozen=True)
class Oracle:
    """What may lie where, told from the operators as they are."""

    graph: Graph

    def reads(self, operator: int) -> set[str]:
        """What has to be there for an operator and the free ones that are copied for it."""
        found: set[str] = set()
        for tensor in self.graph.nodes[operator].inputs:
            maker = self.graph.producer.get(tensor)
            found |= {tensor} if maker is None or not self.graph.nodes[maker].is_free else self.reads(maker)
        return found

    def crossing(self, edge: Collection[int]) -> set[str]:
        rest = [at for at, node in enumerate(self.graph.nodes) if at not in edge and not node.is_free]
        return {name for at in rest for name in self.reads(at) if self.graph.producer.get(name, -1) in {-1, *edge}}

    def bytes_of(self, edge: Collection[int]) -> int:
        return sum(self.graph.tensors[name].size_bytes() for name in self.crossing(edge))

    def is_legal(self, edge: Collection[int]) -> bool:
        makers = {self.graph.producer.get(name, -1) for at in edge for name in self.reads(at)} - {-1}
        bound = [at in edge for at, node in enumerate(self.graph.nodes) if node.bond]
        sized = all(self.graph.tensors[name].is_sized for name in self.crossing(edge))
        return makers <= set(edge) and len(set(bound)) <= 1 and sized


def subsets(count: Collection[int]) -> Iterator[frozenset[int]]:
    return (frozenset(one) for size in range(len(count) + 1) for one in itertools.combinations(count, size))


def cuts(graph: Graph) -> list[frozenset[int]]:
    return [edge for edge in subsets(range(len(graph.nodes))) if graph.is_downset(edge)]


def members(graph: Graph, edge: Collection[int]) -> frozenset[int]:
    return frozenset(member for at in edge for member in graph.nodes[at].members)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_every_operator_is_in_one_node_and_nodes_are_in_order(graph: Graph) -> None:
    made = contract(graph)
    counts = Counter(member for node in made.nodes for member in node.members)
    assert counts == Counter(at for at, node in enumerate(graph.nodes) if not node.is_free)
    assert len({node.name for node in made.nodes}) == len(made.nodes)
    assert sum(node.work for node in made.nodes) == sum(node.work for node in graph.nodes if not node.is_free)
    for at, node in enumerate(made.nodes):
        assert all(made.producer.get(tensor, -1) < at for tensor in node.inputs)
    assert (made.inputs, made.outputs) == (graph.inputs, graph.outputs)
    named = {name for node in made.nodes for name in (*node.inputs, *node.outputs)}
    assert set(made.tensors) == {*named, *made.inputs, *made.outputs}
    assert set(made.producer) >= set(made.outputs) - set(made.inputs)


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_every_cut_of_the_contracted_graph_is_one_of_operators_with_the_same_tensors(graph: Graph) -> None:
    oracle, made = Oracle(graph), contract(graph)
    for edge in cuts(made):
        assert made.can_cross(edge)
        assert oracle.is_legal(members(made, edge))
        assert set(made.crossing(edge)) == oracle.crossing(members(made, edge))


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_no_cut_is_lost_that_sends_less_or_moves_more_than_light_operators(graph: Graph) -> None:
    oracle, made = Oracle(graph), contract(graph)
    light = LIGHT if graph.format == "onnx" else QUANTIZERS
    left = [(oracle.bytes_of(edge), edge) for edge in (members(made, one) for one in cuts(made))]
    for edge in subsets([at for at, node in enumerate(graph.nodes) if not node.is_free]):
        if oracle.is_legal(edge):
            bound = oracle.bytes_of(edge)
            assert any(sent <= bound and {graph.nodes[at].op for at in edge ^ other} <= light for sent, other in left)


@settings(max_examples=200, deadline=None)
@given(graphs(), st.integers(0, 1000))
def test_cuts_along_an_order_and_at_random_are_legal_and_all_there(graph: Graph, seed: int) -> None:
    def is_cut(edge: Collection[int]) -> bool:
        return 0 < len(edge) < len(graph.nodes) and bool(graph.crossing(edge)) and graph.can_cross(edge)

    assert prefix_cuts(graph) == [count for count in range(len(graph.nodes)) if is_cut(range(count))]
    drawn = random_downsets(graph, Random(seed), 5)
    assert drawn == random_downsets(graph, Random(seed), 5)
    others = {edge for edge in cuts(graph) if is_cut(edge)} - {frozenset(range(n)) for n in range(len(graph.nodes))}
    assert len(drawn) == len(set(drawn)) == min(5, len(others))
    assert set(drawn) <= others
