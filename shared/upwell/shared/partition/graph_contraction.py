"""Groups operators that stay together into nodes, so that the remaining cuts are possible and worthwhile.

- Free operators are left out: a reader of a DequantizeLinear's result reads the quantized tensor instead.
- Operators that share state stay together, as do those on both sides of a tensor of unknown size. Everything on a path
that leaves such a group and returns to it joins the group.
- QuantizeLinear stays with what it quantizes.
- ONNX runtimes fuse elementwise operators into the producer of their input. So an operator joins the only reader of its
results if that is elementwise. Layer normalization, softmax, GELU and SiLU written out in operators fold up by the same
rule. TFLite's kernels already include their activations.

The last two rules lose nothing: they apply only if every cut between the two operators sends no less than the cut after
the second or before the first, and if only an elementwise operator, or a part of a normalization, moves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from upwell.shared.partition.mincut import strong_components
from upwell.shared.partition.model_graph import Graph, Node, in_order

_QUANTIZERS = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "com.microsoft:QuantizeLinear", "com.microsoft:DequantizeLinear"}
    | {"QUANTIZE", "DEQUANTIZE"}
)
"""Operators that stay with their inputs. A DequantizeLinear that is not free produces a model output."""

_ELEMENTWISE = frozenset({
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div",
    "Dropout", "Elu", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid",
    "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min",
    "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Reshape", "Round", "Selu",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Unsqueeze", "Where", "Xor", "com.microsoft:BiasGelu", "com.microsoft:FastGelu",
    "com.microsoft:Gelu", "com.microsoft:QuickGelu",
})  # fmt: skip
"""ONNX operators that work per element (or channel), or do no work."""

_REDUCTIONS = frozenset({"ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"})
"""Operators that, with elementwise ones, make up decomposed normalizations."""

_SHOWN_OPS = 4


def contract(graph: Graph) -> Graph:
    """The same model with groups of operators as nodes, in topological order, without free operators.

    A group has the name of its operator with the most work, and the names of all its operators joined by `+`.
    """
    groups = _Groups(_without_free(graph))
    groups.join_bound()
    groups.join_unsized()
    groups.join_circles()
    groups.join_quantizers()
    if graph.format in ("onnx", "torch"):
        groups.fuse()
    return groups.contracted()


def _without_free(graph: Graph) -> Graph:
    """Every node reads the inputs of free operators instead of their results."""
    behind: dict[str, tuple[str, ...]] = {}
    kept = []
    for node in graph.nodes:
        inputs = tuple(dict.fromkeys(source for tensor in node.inputs for source in behind.get(tensor, (tensor,))))
        if node.is_free:
            behind.update(dict.fromkeys(node.outputs, inputs))
        else:
            kept.append(replace(node, inputs=inputs))
    return replace(graph, nodes=tuple(kept))


class _Groups:
    """Groups of nodes by index, each identified by one of its nodes (its root)."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._parent = list(range(len(graph.nodes)))
        self._group = {
            index: _Group(
                [index],
                {node.op},
                set(node.inputs),
                {name for name in node.inputs if name in graph.producer},
                set(node.outputs),
                {name: list(graph.consumers[name]) for name in node.outputs if name in graph.consumers},
            )
            for index, node in enumerate(graph.nodes)
        }

    def _root(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = index = self._parent[self._parent[index]]
        return index

    def _join(self, indices: Iterable[int]) -> None:
        first, *others = sorted(
            {self._root(index) for index in indices}, key=lambda root: -len(self._group[root].nodes)
        )
        for other in others:
            self._parent[other] = first
            self._group[first].take_in(self._group.pop(other))

    def join_bound(self) -> None:
        """Join the nodes of each bond."""
        bonds: dict[str, list[int]] = {}
        for index, node in enumerate(self._graph.nodes):
            if node.bond:
                bonds.setdefault(node.bond, []).append(index)
        for indices in bonds.values():
            self._join(indices)

    def join_unsized(self) -> None:
        """Join the maker and the readers of a tensor that cannot cross.

        That includes a tensor with several times the rows of the request, since the server of a tail takes its first
        dimension for rows.
        """
        for tensor, index in self._graph.producer.items():
            if not self._graph.tensors[tensor].is_sized or self._folds_rows(tensor):
                self._join((index, *self._graph.consumers.get(tensor, ())))

    def _folds_rows(self, tensor: str) -> bool:
        rows = (*(self._graph.tensors[tensor].shape or ()), 0)[0]
        return isinstance(rows, str) and "*" in rows

    def join_circles(self) -> None:
        """Join everything on a path that leaves a group and returns to it."""
        place = {root: at for at, root in enumerate(self._group)}
        ends = [(place[source], place[root]) for root in self._group for source in self._sources(root)]
        circles: dict[int, list[int]] = {}
        for root, circle in zip(place, strong_components(len(place), ends), strict=True):
            circles.setdefault(circle, []).append(root)
        for roots in circles.values():
            self._join(roots)

    def join_quantizers(self) -> None:
        """A tensor that is only quantized, or only made for the caller, does not cross."""
        for tensor, index in self._graph.producer.items():
            readers = self._graph.consumers.get(tensor, ())
            found = [one for one in readers if self._only_quantizes(one)]
            made = {one: self._size(self._leaving(one)) for one in found}
            if len(found) < len(readers) or sum(made.values()) > self._size({tensor}):
                found = [one for one in found if not made[one]]
            self._join((index, *found))

    def _only_quantizes(self, index: int) -> bool:
        node = self._graph.nodes[index]
        return node.op in _QUANTIZERS and len(node.inputs) == 1 and len(self._group[self._root(index)].nodes) == 1

    def fuse(self) -> None:
        """Join elementwise operators with the producers of their inputs; see the module."""
        for index in range(len(self._graph.nodes)):
            while (source := self._fusible(self._root(index))) is not None:
                self._join((index, source))

    def _fusible(self, reader: int) -> int | None:
        """A group that this one may absorb."""
        if not self._group[reader].is_light:
            return None
        return next((source for source in sorted(self._sources(reader)) if self._may_fuse(source, reader)), None)

    def _may_fuse(self, source: int, reader: int) -> bool:
        maker, taker = self._group[source], self._group[reader]
        if not self._is_only_reader(reader, source) or not maker.made.isdisjoint(self._graph.outputs):
            return False
        between = maker.made & taker.read
        if any(self._graph.nodes[self._graph.producer[tensor]].op in _QUANTIZERS for tensor in between):
            return False
        if maker.is_light and maker.read <= taker.read:
            return True  # all that it reads crosses anyway if it is cut off
        is_fused = taker.is_elementwise or maker.is_light
        is_less = self._size(self._leaving(reader)) <= self._size(between)
        return is_fused and is_less and self._come_before(taker.read - between, source)

    def _come_before(self, tensors: Collection[str], root: int) -> bool:
        """Whether all these tensors exist wherever this group runs: it reads them, or a group that it needs makes
        them."""
        producer = self._graph.producer
        makers = {self._root(producer[tensor]) for tensor in tensors if tensor in producer}
        waiting = [root] if makers else []
        seen = set(waiting)
        while waiting and not makers <= seen:
            new = self._sources(waiting.pop()) - seen
            seen |= new
            waiting += new
        return makers <= seen

    def _size(self, tensors: Collection[str]) -> float:
        """Bytes for one row; infinite if unknown."""
        found = [self._graph.tensors[tensor] for tensor in tensors]
        return sum(one.size_bytes() if one.is_sized else math.inf for one in found)

    def _is_only_reader(self, reader: int, root: int) -> bool:
        """Whether this other group, and no further one, reads this group's results."""
        tensors = self._leaving(root)
        waiting = (index for tensor in tensors for index in reversed(self._group[root].readers[tensor]))
        return bool(tensors) and all(self._root(index) in (reader, root) for index in waiting)

    def _leaving(self, root: int) -> set[str]:
        """The tensors of this group that others read."""
        readers = self._group[root].readers
        # What the group itself reads stays so: groups grow. Asked anew of all, long chains take quadratic time.
        for tensor, waiting in list(readers.items()):
            while waiting and self._root(waiting[-1]) == root:
                waiting.pop()
            if not waiting:
                del readers[tensor]
        return set(readers)

    def _sources(self, root: int) -> set[int]:
        """The other groups whose results this one reads."""
        producer = self._graph.producer
        return {self._root(producer[tensor]) for tensor in self._group[root].awaited} - {root}

    def contracted(self) -> Graph:
        """The graph of groups; where there is a choice, the group with the earliest operator comes first."""
        roots = sorted(self._group, key=lambda root: min(self._group[root].nodes))
        rank = {root: at for at, root in enumerate(roots)}
        order = in_order([{rank[source] for source in self._sources(root)} for root in roots])
        nodes = tuple(self._node(roots[at]) for at in order)
        named = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        named |= {*self._graph.inputs, *self._graph.outputs}
        tensors = {name: tensor for name, tensor in self._graph.tensors.items() if name in named}
        return replace(self._graph, nodes=nodes, tensors=tensors)

    def _node(self, root: int) -> Node:
        group, leaving = self._group[root], self._leaving(root) | set(self._graph.outputs)
        nodes = [self._graph.nodes[index] for index in sorted(group.nodes)]
        if len(nodes) == 1:
            return nodes[0]
        most = max(nodes, key=lambda node: node.work)
        ops = [node.op for node in nodes]
        return Node(
            most.name,
            "+".join(ops[:_SHOWN_OPS]) + ("+…" if len(ops) > _SHOWN_OPS else ""),
            tuple(dict.fromkeys(name for node in nodes for name in node.inputs if name not in group.made)),
            tuple(name for node in nodes for name in node.outputs if name in leaving),
            tuple(sorted(member for node in nodes for member in node.members)),
            sum(node.work for node in nodes),
            bond=most.bond,
        )


@dataclass
class _Group:
    """Nodes by index, their operators, the tensors that they read from outside, those of them that other nodes make,
    the tensors that they make, and by tensor of the latter the nodes that may be readers outside.
    """

    nodes: list[int]
    ops: set[str]
    read: set[str]
    awaited: set[str]
    made: set[str]
    readers: dict[str, list[int]]

    def take_in(self, other: _Group) -> None:
        """Add another group, the smaller one: it takes time in proportion to that."""
        self.nodes += other.nodes
        self.ops |= other.ops
        self.made |= other.made
        self.readers |= other.readers
        for ours, theirs in ((self.read, other.read), (self.awaited, other.awaited)):
            ours.difference_update(other.made)
            ours.update(theirs - self.made)

    @property
    def is_elementwise(self) -> bool:
        """Whether a runtime may fuse all of it into the producer of its input."""
        return self.ops <= _ELEMENTWISE | _QUANTIZERS

    @property
    def is_light(self) -> bool:
        """Whether it may be part of a normalization written out in operators."""
        return self.ops <= _ELEMENTWISE | _QUANTIZERS | _REDUCTIONS
