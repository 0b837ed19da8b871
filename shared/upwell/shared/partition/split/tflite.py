"""Head and tail of a TFLite model: two models that hold each operator once, and the free ones where they are needed.

A half is the operators of its side, in the order of the file, with all that they refer to: a quantized tensor crosses
as it is, since both halves keep its scale and zero point.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph import Graph
from upwell.shared.partition.split.halves import Halves, ModelHalf, check_cut
from upwell.shared.partition.split.tflite_half import MODEL_FILE, Named, Rewriting, add_metadata, packed
from upwell.shared.partition.split.tflite_whole import TfliteWhole


def split_whole(whole: TfliteWhole, graph: Graph, edge: frozenset[int]) -> Halves:
    """Split a model: the nodes of its contracted `graph` in `edge` make the head, the others the tail.

    Raises `ConfigError` where the graph is another model's, or it cannot be cut so.
    """
    _check(whole, graph, edge)
    crossing = [whole.number[name] for name in graph.crossing(edge)]
    raw = [one for one in whole.inputs if one[1] in crossing]
    taken = {tensor for _, tensor in whole.inputs}
    cut = [(whole.cut_name(tensor), tensor) for tensor in crossing if tensor not in taken]
    sides = _Sides(whole, graph, edge)
    given = [one for one in whole.outputs if sides.is_of_head(one[1])]
    rest = [one for one in whole.outputs if one not in given]
    if not cut and not given:
        raise ConfigError.at(whole.path, "the head would give nothing: no output of the model and no tensor to cut at")
    if not rest:
        raise ConfigError.at(whole.path, "the tail would give nothing: the head makes every output of the model")
    outputs = [*cut, *(one for one in given if one not in cut)]
    crossed = {tensor for _, tensor in cut}
    head_operators = sides.closed(sides.head, (tensor for _, tensor in outputs), ())
    tail_operators = sides.closed(sides.tail, (tensor for _, tensor in rest), crossed)
    read = {tensor for index in head_operators for tensor in whole.reads[index]} | {tensor for _, tensor in given}
    head = _Part("head", head_operators, [one for one in whole.inputs if one[1] in read], outputs)
    tail = _Part("tail", tail_operators, [*cut, *raw], rest)
    names = tuple(name for name, _ in cut)
    return Halves(head.written(whole, graph, names), tail.written(whole, graph, names), names)


def _check(whole: TfliteWhole, graph: Graph, edge: frozenset[int]) -> None:
    operators = whole.main.operators
    for node in graph.nodes:
        made = {tensor for index in node.members if index < len(operators) for tensor in operators[index].outputs}
        if graph.format != "tflite" or not made.issuperset(whole.number.get(name, -1) for name in node.outputs):
            raise ConfigError.at(whole.path, f"the graph is of another model: {node.name!r} is not in this file")
    check_cut(whole.path, graph, edge)


class _Sides:
    """Which operators of the file belong to which half."""

    def __init__(self, whole: TfliteWhole, graph: Graph, edge: frozenset[int]) -> None:
        self._whole = whole
        self.head = {one for index in edge for one in graph.nodes[index].members}
        self.tail = {one for node in graph.nodes for one in node.members} - self.head

    def is_of_head(self, output: int) -> bool:
        """Whether the head can make an output of the model; it does then, so that nothing is sent for it."""
        todo, seen = [output], set()
        while todo:
            index = self._whole.maker.get(todo.pop())
            if index in self.tail:
                return False
            if index is not None and index not in self.head and index not in seen:
                seen.add(index)
                todo.extend(self._whole.reads[index])
        return True

    def closed(self, own: Collection[int], outputs: Iterable[int], given: Collection[int]) -> list[int]:
        """The operators of a half in the order of the file: its own, and the free ones that it or its outputs need.

        `given` are the tensors that it takes. Raises `ConfigError` where it needs another from the other half.
        """
        found = set(own)
        todo = [*outputs, *(tensor for index in own for tensor in self._whole.reads[index])]
        while todo:
            tensor = todo.pop()
            index = self._whole.maker.get(tensor)
            if index is None or index in found or tensor in given:
                continue
            if index in self.head or index in self.tail:
                name = self._whole.tensor_names[tensor]
                raise ConfigError.at(self._whole.path, f"cannot be cut here: {name!r} is needed on the other side, too")
            found.add(index)
            todo.extend(self._whole.reads[index])
        return sorted(found)


@dataclass(frozen=True)
class _Part:
    """What a half is to hold: operators of the main graph, and inputs and outputs with their names."""

    side: str
    operators: Sequence[int]
    inputs: Sequence[Named]
    outputs: Sequence[Named]

    def written(self, whole: TfliteWhole, graph: Graph, cut: Sequence[str]) -> ModelHalf:
        """The half as a file."""
        model = Rewriting(whole.model).model(self.operators, self.inputs, self.outputs, whole.key)
        facts = {"half": self.side, "whole": whole.digest, "cut": list(cut)}
        add_metadata(model, "upwell.split", json.dumps(facts).encode())
        inputs, outputs = (whole.described(side, graph) for side in (self.inputs, self.outputs))
        return ModelHalf({MODEL_FILE: packed(model)}, inputs, outputs)
