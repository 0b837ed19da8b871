"""Head and tail of an ONNX model: two models that hold each operator once, and the free ones where they are needed.

A half is made from the operators of its side and not found by going back from its outputs, so nothing is lost that only
the body of an If or Loop reads, and nothing is done twice but what is free: a quantized tensor crosses as it is, and
each half that reads it dequantizes it with a scale and zero point of its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx

from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph import Graph
from upwell.shared.partition.order import in_order
from upwell.shared.partition.split.halves import Halves, ModelHalf, check_cut
from upwell.shared.partition.split.onnx_half import files_of, put_metadata, value_info
from upwell.shared.partition.split.onnx_whole import OnnxWhole


def split_whole(whole: OnnxWhole, graph: Graph, edge: frozenset[int]) -> Halves:
    """Split a model: the nodes of its contracted `graph` in `edge` make the head, the others the tail.

    The head gives the cut tensors and then those outputs of the model that it makes; the tail takes the cut tensors and
    then those inputs of the model that it reads, and gives the other outputs in the model's order. Each half keeps the
    model's metadata and adds `upwell.split.half`, `.whole` (digest), `.cut` and `.outputs` (names, as JSON).

    Raises `ConfigError` where the graph is another model's, or it cannot be cut so.
    """
    _check(whole, graph, edge)
    head = {operator for index in edge for operator in graph.nodes[index].members}
    tail = {operator for node in graph.nodes for operator in node.members} - head
    crossing = graph.crossing(edge)
    cut = tuple(name for name in crossing if name not in graph.inputs)
    made = [name for name in graph.outputs if whole.maker.get(name) not in tail]
    rest = [name for name in graph.outputs if name not in made]
    if not cut and not made:
        raise ConfigError.at(whole.path, "the head would give nothing: no output of the model and nothing to send")
    if not rest:
        raise ConfigError.at(whole.path, "the tail would give nothing: the head makes every output of the model")
    operators = _with_free(whole, head, tail, ())
    taken = {name for index in operators for name in whole.graph.nodes[index].reads}.union(made)
    inputs = [name for name in graph.inputs if name in taken]
    head_part = _Part("head", operators, inputs, [*cut, *(name for name in made if name not in cut)])
    raw = [name for name in graph.inputs if name in crossing]
    tail_part = _Part("tail", _with_free(whole, tail, head, cut), [*cut, *raw], rest)
    return Halves(head_part.written(whole, graph, cut), tail_part.written(whole, graph, cut), cut)


def _check(whole: OnnxWhole, graph: Graph, edge: frozenset[int]) -> None:
    nodes = whole.graph.nodes
    for node in graph.nodes:
        made = {name for index in node.members if index < len(nodes) for name in nodes[index].outputs}
        if graph.format != "onnx" or not made.issuperset(node.outputs):
            raise ConfigError.at(whole.path, f"the graph is of another model: {node.name!r} is not in this file")
    check_cut(whole.path, graph, edge)


def _with_free(whole: OnnxWhole, own: set[int], other: set[int], given: Collection[str]) -> list[int]:
    """The operators of a half: its own, and the free ones that it needs; `given` are the tensors that it takes.

    Raises `ConfigError` where it needs something else from the other half, as a graph that is not contracted may say.
    """
    found = set(own)
    todo = list(own)
    while todo:
        index = todo.pop()
        for name in whole.graph.nodes[index].reads:
            maker = whole.maker.get(name)
            if maker is None or maker in found or name in given:
                continue
            if maker in other:
                raise ConfigError.at(whole.path, f"cannot be cut here: {name!r} is read on the other side, too")
            found.add(maker)
            todo.append(maker)
    return _in_order(whole, found)


def _in_order(whole: OnnxWhole, operators: set[int]) -> list[int]:
    """As in the file, but each behind what it reads: some files have them otherwise, and runtimes cope."""
    listed = sorted(operators)
    place = {index: at for at, index in enumerate(listed)}
    makers = ({whole.maker.get(name) for name in whole.graph.nodes[index].reads} for index in listed)
    return [listed[at] for at in in_order([{place[one] for one in made if one in place} for made in makers])]


@dataclass(frozen=True)
class _Part:
    """What a half is to hold: operators by position in the file, inputs and outputs by name."""

    side: str
    operators: Sequence[int]
    inputs: Sequence[str]
    outputs: Sequence[str]

    def written(self, whole: OnnxWhole, graph: Graph, cut: Sequence[str]) -> ModelHalf:
        """The half as files. Raises `ConfigError` where it is no valid model."""
        model = whole.frame()
        nodes = [whole.model.graph.node[index] for index in self.operators]
        model.graph.node.extend(nodes)
        model.functions.extend(whole.functions_of(nodes))
        self._put_weights(whole, model.graph)
        self._put_ends(whole, graph, model.graph)
        self._put_facts(whole, model.graph)
        facts = {"whole": whole.digest, "cut": json.dumps(cut), "outputs": json.dumps(graph.outputs)}
        put_metadata(model, {"half": self.side, **facts})
        whole.fill(model)
        try:
            files = files_of(model)
        except ConfigError as error:
            raise ConfigError.at(whole.path, error.problems[0].message) from None
        return ModelHalf(
            files, *(tuple(graph.tensors[name] for name in names) for names in (self.inputs, self.outputs))
        )

    def _put_weights(self, whole: OnnxWhole, graph: onnx.GraphProto) -> None:
        """The weights that the half uses, each under the one name that all share who use it."""
        used = {name for index in self.operators for name in whole.graph.nodes[index].reads}.union(self.outputs)
        graph.initializer.extend(one for one in whole.model.graph.initializer if one.name in used)
        sparse = whole.model.graph.sparse_initializer
        graph.sparse_initializer.extend(one for one in sparse if one.values.name in used)

    def _put_ends(self, whole: OnnxWhole, graph: Graph, made: onnx.GraphProto) -> None:
        """Inputs and outputs: those of the whole as it declares them, with the weights that it has among its inputs."""
        source = whole.model.graph
        declared = {one.name: one for one in (*source.input, *source.output)}
        for names, ends in ((self.inputs, made.input), (self.outputs, made.output)):
            ends.extend(declared[name] if name in declared else value_info(graph.tensors[name]) for name in names)
        weights = {one.name for one in made.initializer}
        made.input.extend(one for one in source.input if one.name in weights)

    def _put_facts(self, whole: OnnxWhole, made: onnx.GraphProto) -> None:
        """What the file says about the tensors between operators."""
        source = whole.model.graph
        ends = {one.name for one in made.input} | {one.name for one in made.output}
        inner = {name for node in made.node for name in node.output} - ends
        made.value_info.extend(one for one in source.value_info if one.name in inner)
        known = inner | ends | {one.name for one in made.initializer}
        made.quantization_annotation.extend(one for one in source.quantization_annotation if one.tensor_name in known)
