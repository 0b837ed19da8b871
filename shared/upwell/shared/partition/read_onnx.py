"""ONNX as a graph: the operators of the main graph, bodies of control flow and functions inside their nodes.

Weights are constants and no part of it, and so is whatever an operator computes from constants alone. An initializer
that is listed among the inputs, too, is a constant: callers do not give it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.bytes import BadOnnxFile
from upwell.shared.formats.onnx.files import external_weights
from upwell.shared.formats.onnx.graph import OnnxGraph, OnnxNode, read_graph
from upwell.shared.formats.work import work_of
from upwell.shared.partition.graph import Graph, Node, Tensor, size_of
from upwell.shared.partition.onnx_shapes import tensors_of
from upwell.shared.partition.order import in_order

_DEQUANTIZE = ("DequantizeLinear", "com.microsoft:DequantizeLinear")
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Two copies of these give two results, so none may be copied."""


def read_onnx(path: Path) -> Graph:
    """The graph of the ONNX file at `path`; its weights may lie in files beside it, which are not read.

    Raises `ConfigError`.
    """
    try:
        external_weights(path)
        graph = read_graph(path)
    except BadOnnxFile as error:
        raise ConfigError.at(path, str(error)) from None
    except OSError as error:
        raise ConfigError.at(path, f"the model file cannot be read: {error.strerror or error}") from None
    try:
        order = _in_order(graph)
    except _Invalid as error:
        raise ConfigError.at(path, f"not a valid ONNX model: {error}") from None
    return _Reader(graph, order, tensors_of(path, order)).graph()


class _Invalid(Exception):
    """What is wrong with a model that is an ONNX file."""


def _in_order(graph: OnnxGraph) -> list[int]:
    """The nodes by position, each behind those that it reads from; as in the file where that is such an order."""
    if not graph.nodes:
        raise _Invalid("it has no operators")
    given = {*graph.initializers, *graph.inputs}
    makers: dict[str, int] = {}
    for at, node in enumerate(graph.nodes):
        for name in filter(None, node.outputs):
            if name in makers or name in given:
                raise _Invalid(f"tensor {name!r} is made twice")
            makers[name] = at
    order = in_order([_sources(node, given, makers) for node in graph.nodes])
    if len(order) < len(graph.nodes):
        raise _Invalid("its operators wait for each other in a circle")
    for name in graph.outputs:
        if name not in given and name not in makers:
            raise _Invalid(f"its output {name!r} is made by no operator")
    return order


def _sources(node: OnnxNode, given: Collection[str], makers: Mapping[str, int]) -> set[int]:
    """The nodes that a node reads from."""
    read = [name for name in node.reads if name not in given]
    for name in read:
        if name not in makers:
            raise _Invalid(f"operator {node.name or node.operator!r} reads {name!r}, which nothing makes")
    return {makers[name] for name in read}


@dataclass(frozen=True)
class _Reader:
    """A file's graph, its nodes in `order` by position, and what is known of its tensors."""

    file: OnnxGraph
    order: Sequence[int]
    known: Mapping[str, Tensor]

    def graph(self) -> Graph:
        inputs, outputs = tuple(self.file.inputs), tuple(dict.fromkeys(self.file.outputs))
        nodes = self._nodes(outputs)
        named = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*inputs, *outputs}
        tensors = {name: self.known.get(name, Tensor(name, "", None)) for name in sorted(named)}
        return Graph("onnx", nodes, tensors, inputs, outputs)

    def _nodes(self, outputs: Collection[str]) -> tuple[Node, ...]:
        weights = set(self.file.initializers)
        names = self._names()
        made = []
        for at in self.order:
            node = self.file.nodes[at]
            inputs = tuple(one for one in node.reads if one not in weights)
            results = tuple(filter(None, node.outputs))
            is_plain = (node.domain, node.operator) not in self.file.functions and not set(results) & set(outputs)
            is_constant = is_plain and not inputs and _gives_the_same(node)
            is_free = is_constant or (is_plain and node.op in _DEQUANTIZE and inputs == tuple(node.inputs[:1]))
            if is_constant:
                weights.update(results)
            shapes = ([self._one_row(one) for one in names] for names in (node.inputs, results, inputs))
            work = 0.0 if is_free else work_of(node.op, *shapes)
            made.append(Node(names[at], node.op, inputs, results, (at,), 0.0 if math.isnan(work) else work, is_free))
        return tuple(made)

    def _names(self) -> Mapping[int, str]:
        """By position: a node's own name where it has one to itself, else its operator and position."""
        counts = Counter(node.name for node in self.file.nodes)
        names: dict[int, str] = {}
        taken = {name for name, count in counts.items() if count == 1}
        for at in self.order:
            node = self.file.nodes[at]
            name = node.name if node.name and counts[node.name] == 1 else f"{node.operator}_{at}"
            while name != node.name and name in taken:
                name += "_"
            taken.add(name)
            names[at] = name
        return names

    def _one_row(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor for one row; None where it is not known."""
        tensor = self.known.get(name)
        return None if tensor is None or tensor.shape is None else tuple(size_of(dim, {}) for dim in tensor.shape)


def _gives_the_same(node: OnnxNode) -> bool:
    """Whether two copies of a node, given the same, give the same: an operator of ONNX's own that draws no numbers."""
    return all(
        (one.is_standard or one.operator == "DequantizeLinear") and one.operator not in _RANDOM
        for one in node.with_bodies()
    )
