"""ONNX as a graph: the operators of the main graph, bodies of control flow and functions inside their nodes.

Weights are constants and no part of it, and so is whatever an operator computes from constants alone. An initializer
that is listed among the inputs, too, is a constant: callers do not give it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.bytes import BadOnnxFile
from upwell.shared.formats.onnx.files import external_weights
from upwell.shared.partition.graph import Graph, Node, Tensor, size_of
from upwell.shared.partition.onnx_shapes import all_nodes, dimensions, drop_weights, tensors_of, weights_of
from upwell.shared.partition.order import in_order
from upwell.shared.partition.work import work_of

_STANDARD = ("", "ai.onnx")
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
        model = onnx.load(str(path), load_external_data=False)
    except BadOnnxFile as error:
        raise ConfigError.at(path, str(error)) from None
    except OSError as error:
        raise ConfigError.at(path, f"the model file cannot be read: {error.strerror or error}") from None
    except Exception:  # noqa: BLE001 (protobuf's errors; a pure module may not name that package)
        raise ConfigError.at(path, "not an ONNX model, or cut short") from None
    drop_weights(model.graph)
    try:
        _check_text(model.graph)
        order = _in_order(model.graph)
        nodes = [model.graph.node[at] for at in order]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        return _Reader(model, order).graph()
    except _Invalid as error:
        raise ConfigError.at(path, f"not a valid ONNX model: {error}") from None


class _Invalid(Exception):
    """What is wrong with a model that is an ONNX file."""


def _check_text(graph: Any) -> None:
    """Protobuf gives a text that is not UTF-8 as bytes."""
    values = (*graph.input, *graph.output, *graph.value_info)
    texts = [text for one in all_nodes(graph) for text in (one.name, one.op_type, one.domain, *one.input, *one.output)]
    texts += [text for one in values for text in (one.name, *(dim.dim_param for dim in dimensions(one)))]
    texts += weights_of(graph)
    if not all(isinstance(text, str) for text in texts):
        raise _Invalid("a name in it is not UTF-8")


def captured(node: Any) -> tuple[str, ...]:
    """The tensors from outside that the bodies of a node read, at any depth, in the order in which they do."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            found.update(dict.fromkeys(_free_names(body)))
    return tuple(found)


def _free_names(body: Any) -> Iterator[str]:
    own = weights_of(body) | {one.name for one in body.input}
    for node in body.node:
        yield from (name for name in (*node.input, *captured(node)) if name and name not in own)
        own.update(node.output)
    yield from (one.name for one in body.output if one.name and one.name not in own)


def _reads(node: Any) -> tuple[str, ...]:
    """What a node reads, its bodies included, once each."""
    return tuple(dict.fromkeys(name for name in (*node.input, *captured(node)) if name))


def _in_order(graph: Any) -> list[int]:
    """The nodes by position, each behind those that it reads from; as in the file where that is such an order."""
    if not graph.node:
        raise _Invalid("it has no operators")
    given = weights_of(graph) | {one.name for one in graph.input}
    makers: dict[str, int] = {}
    for at, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in makers or name in given:
                raise _Invalid(f"tensor {name!r} is made twice")
            makers[name] = at
    order = in_order([_sources(node, given, makers) for node in graph.node])
    if len(order) < len(graph.node):
        raise _Invalid("its operators wait for each other in a circle")
    for one in graph.output:
        if one.name not in given and one.name not in makers:
            raise _Invalid(f"its output {one.name!r} is made by no operator")
    return order


def _sources(node: Any, given: Collection[str], makers: Mapping[str, int]) -> set[int]:
    """The nodes that a node reads from."""
    read = [name for name in _reads(node) if name not in given]
    for name in read:
        if name not in makers:
            raise _Invalid(f"operator {node.name or node.op_type!r} reads {name!r}, which nothing makes")
    return {makers[name] for name in read}


@dataclass(frozen=True)
class _Reader:
    """A model whose nodes are in order, `order` being their positions in the file."""

    model: Any
    order: Sequence[int]

    def graph(self) -> Graph:
        graph = self.model.graph
        known = tensors_of(self.model)
        weights = weights_of(graph)
        outputs = tuple(dict.fromkeys(one.name for one in graph.output))
        inputs = tuple(one.name for one in graph.input if one.name not in weights)
        nodes = self._nodes(known, weights, outputs)
        named = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*inputs, *outputs}
        tensors = {name: known.get(name, Tensor(name, "", None)) for name in sorted(named)}
        return Graph("onnx", nodes, tensors, inputs, outputs)

    def _nodes(self, known: Mapping[str, Tensor], weights: set[str], outputs: Collection[str]) -> tuple[Node, ...]:
        """Adds to `weights` what is computed from them alone."""
        functions = {(one.domain, one.name) for one in self.model.functions}
        made = []
        for at, node, name in zip(self.order, self.model.graph.node, self._names(), strict=True):
            op = node.op_type if node.domain in _STANDARD else f"{node.domain}:{node.op_type}"
            inputs = tuple(one for one in _reads(node) if one not in weights)
            results = tuple(filter(None, node.output))
            shapes = [[_one_row(known.get(one)) for one in names] for names in (node.input, results, inputs)]
            is_plain = (node.domain, node.op_type) not in functions and not set(results) & set(outputs)
            is_constant = is_plain and not inputs and _gives_the_same(node)
            is_free = is_constant or (is_plain and op in _DEQUANTIZE and inputs == (node.input[0],))
            if is_constant:
                weights.update(results)
            made.append(Node(name, op, inputs, results, (at,), 0.0 if is_free else work_of(op, *shapes), is_free))
        return tuple(made)

    def _names(self) -> list[str]:
        """A name for each node: its own where it has one to itself, else its operator and position."""
        counts = Counter(node.name for node in self.model.graph.node)
        names: list[str] = []
        taken = {name for name, count in counts.items() if count == 1}
        for at, node in zip(self.order, self.model.graph.node, strict=True):
            name = node.name if node.name and counts[node.name] == 1 else f"{node.op_type}_{at}"
            while name != node.name and name in taken:
                name += "_"
            taken.add(name)
            names.append(name)
        return names


def _one_row(tensor: Tensor | None) -> tuple[int, ...] | None:
    """The shape for one row; None where it is not known."""
    if tensor is None or tensor.shape is None:
        return None
    return tuple(size_of(dim, {}) for dim in tensor.shape)


def _gives_the_same(node: Any) -> bool:
    """Whether two copies of a node, given the same, give the same: an operator of ONNX's own that draws no numbers."""
    bodies = (body for attribute in node.attribute for body in (attribute.g, *attribute.graphs))
    inside = (node, *(one for body in bodies for one in all_nodes(body)))
    return all(
        (one.domain in _STANDARD or one.op_type == "DequantizeLinear") and one.op_type not in _RANDOM for one in inside
    )
