"""Contraction against every cut there is, on small graphs of any kind."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random

from tests.examples import examples
from tests.models.legal_cuts import can_cross, prefix_cuts, random_downsets
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.model_graph import Graph, Node, Tensor

QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}
LIGHT = {"Relu", "Add", "Mul", "Cast", "ReduceMean", *QUANTIZERS}
INPUTS = {"Add": 2, "Mul": 2, "Concat": 2, "Constant": 0}
"""How many tensors an operator reads, if there are as many; 1 where nothing is said."""

OPS = ["Conv", "Conv", "Conv", "Concat", "Split", "Constant", *sorted(LIGHT)]
SIZES = [1, 4, 4, 4, 4, 16]
MOST_OPERATORS = 8


def graph_of(seed: int) -> Graph:
    """A small graph of which every tensor has one byte, four, sixteen or, if made, an unknown number."""
    random = Random(seed)
    tensors = {name: Tensor(name, "UINT8", (4,)) for name in ("x", "z")}
    nodes: list[Node] = []
    unread = list(tensors)
    for at in range(random.randint(2, MOST_OPERATORS)):
        op = random.choice(OPS)
        inputs: dict[str, None] = {}
        while len(inputs) < min(INPUTS.get(op, 1), len(tensors)):
            inputs[random.choice(unread if unread and random.random() < 0.7 else sorted(tensors))] = None
        outputs: tuple[str, ...] = (f"t{at}", f"u{at}") if op == "Split" else (f"t{at}",)
        is_free = op == "Constant" or (op == "DequantizeLinear" and random.random() < 0.7)
        bond = "a" if op == "Conv" and random.random() < 0.2 else ""
        nodes.append(Node(f"n{at}", op, tuple(inputs), outputs, (at,), random.randint(0, 9), is_free, bond))
        unread = [name for name in unread if name not in inputs]
        if op != "Constant":  # nobody names what a constant gives as an input
            is_known = random.random() > 0.05
            tensors |= {one: Tensor(one, "UINT8", (random.choice(SIZES),) if is_known else None) for one in outputs}
            unread += outputs
    free = {name for node in nodes if node.is_free for name in node.outputs}
    may_be_outputs = sorted(set(tensors) - free)
    given_back = tuple(random.sample(may_be_outputs, random.randint(1, min(2, len(may_be_outputs)))))
    return Graph(random.choice(["onnx", "onnx", "tflite"]), tuple(nodes), tensors, ("x", "z"), given_back)


SEEDS = 400


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


def is_cut(graph: Graph, edge: Collection[int]) -> bool:
    return 0 < len(edge) < len(graph.nodes) and bool(graph.sent(edge)) and can_cross(graph, edge)


def members(graph: Graph, edge: Collection[int]) -> frozenset[int]:
    return frozenset(member for at in edge for member in graph.nodes[at].members)


def test_every_operator_is_in_one_node_and_nodes_are_in_order() -> None:
    for seed in range(SEEDS):
        graph = graph_of(seed)
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


def test_every_cut_of_the_contracted_graph_is_one_of_operators_with_the_same_tensors() -> None:
    for seed in range(SEEDS):
        graph = graph_of(seed)
        oracle, made = Oracle(graph), contract(graph)
        for edge in cuts(made):
            assert can_cross(made, edge)
            assert oracle.is_legal(members(made, edge))
            assert set(made.crossing(edge)) == oracle.crossing(members(made, edge))


def test_for_every_cut_one_is_left_that_sends_no_more_and_moves_light_operators_alone() -> None:
    for seed in range(SEEDS):
        graph = graph_of(seed)
        oracle, made = Oracle(graph), contract(graph)
        light = LIGHT if graph.format == "onnx" else QUANTIZERS
        left = [(oracle.bytes_of(edge), edge) for edge in (members(made, one) for one in cuts(made))]
        for edge in subsets([at for at, node in enumerate(graph.nodes) if not node.is_free]):
            if oracle.is_legal(edge):
                bound = oracle.bytes_of(edge)
                assert any(
                    sent <= bound and {graph.nodes[at].op for at in edge ^ other} <= light for sent, other in left
                )


def test_cuts_along_an_order_and_at_random_are_legal_and_all_there() -> None:
    for seed in range(examples(SEEDS)):
        graph = graph_of(seed)
        prefixes = [frozenset(range(count)) for count in range(len(graph.nodes))]
        assert prefix_cuts(graph) == [len(edge) for edge in prefixes if is_cut(graph, edge)]
        drawn = random_downsets(graph, Random(seed), 5)
        assert drawn == random_downsets(graph, Random(seed), 5)
        others = {edge for edge in cuts(graph) if is_cut(graph, edge)} - set(prefixes)
        assert len(drawn) == len(set(drawn)) == min(5, len(others))
        assert set(drawn) <= others
