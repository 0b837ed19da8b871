"""Splits a model file of any format: operators, inputs and outputs of each half, and checks of the cut.

A half is made from the operators of its side, not found by walking back from its outputs. So nothing is lost that only
the body of an If or Loop reads, and nothing is duplicated but free operators: a quantized tensor crosses as it is, and
each half that reads it dequantizes it with its own copy of scale and zero point.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.partition.model_graph import Graph, Tensor, in_order
from upwell.shared.partition.split.halves_model_yaml import Format, description_of
from upwell.shared.partition.split.model_halves import Halves, ModelHalf, Part
from upwell.shared.signature.model_yaml import ModelDescription, load_description

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_NAME = 72
"""Maximum length of the name, which the cut and digest extend to at most 100 characters."""


class ModelFile(Protocol):
    """A model file to be split, read once. Tensors go by their names in the planner's graph."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def digest(self) -> str:
        """The digest of `upwell.shared.formats.model_digest`, as 64 hexadecimal digits."""

    @property
    def reads(self) -> Sequence[Collection[str]]:
        """By operator of the main graph: the tensors that it reads, weights included."""

    @property
    def maker(self) -> Mapping[str, int]:
        """By tensor: the operator of the main graph that makes it."""

    def ends(self, graph: Graph) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The model's inputs and outputs, by the names that callers use."""

    def half(self, part: Part, graph: Graph) -> ModelHalf:
        """A half as files. Raises `ConfigError` if it is not a valid model."""


def open_model_file(path: Path, graph: Graph) -> ModelFile:
    """Open the model at `path`, whose graph is `graph`. Raises `ConfigError`, and `ModuleNotFoundError`."""
    if graph.format == "onnx":
        from upwell.shared.partition.split.onnx_halves import OnnxModelFile

        return OnnxModelFile.read(path)
    if graph.format == "torch":
        from upwell.shared.partition.torch_graph import TorchModelFile

        return TorchModelFile.read(path)
    from upwell.shared.partition.split.tflite_halves import TfliteModelFile

    return TfliteModelFile.read(path)


def split_model(whole: ModelFile, graph: Graph, edge: frozenset[int]) -> Halves:
    """Split a model: the nodes of its contracted `graph` in `edge` make the head, the others the tail.

    The head gives the cut tensors and then the outputs of the model that it makes; the tail takes the cut tensors and
    then the inputs of the model that it reads, and gives the other outputs in the model's order.

    Raises `ConfigError` if the graph belongs to another model, or the cut is impossible.
    """
    _check(whole, graph, edge)
    head = {operator for index in edge for operator in graph.nodes[index].members}
    tail = {operator for node in graph.nodes for operator in node.members} - head
    crossing = graph.crossing(edge)
    cut = graph.sent(edge)
    made = [name for name in graph.outputs if whole.maker.get(name) not in tail]
    rest = [name for name in graph.outputs if name not in made]
    if not rest:
        raise ConfigError.at(whole.path, "the tail would have no outputs: the head produces every output of the model")
    if not cut:
        raise ConfigError.at(whole.path, "cannot be cut here: the tail takes nothing from the head")
    operators = _with_free(whole, head, tail, ())
    taken = {name for index in operators for name in whole.reads[index]}.union(made)
    inputs = [name for name in graph.inputs if name in taken]
    outputs = [*cut, *(name for name in made if name not in cut)]
    raw = [name for name in graph.inputs if name in crossing]
    first = whole.half(Part("head", operators, inputs, outputs, cut), graph)
    last = whole.half(Part("tail", _with_free(whole, tail, head, cut), [*cut, *raw], rest, cut), graph)
    return Halves(first, last, tuple(tensor.name for tensor in first.outputs[: len(cut)]))


def _check(whole: ModelFile, graph: Graph, edge: frozenset[int]) -> None:
    for node in graph.nodes:
        if any(whole.maker.get(name) not in node.members for name in node.outputs):
            raise ConfigError.at(whole.path, f"the graph belongs to another model: {node.name!r} is not in this file")
    if not edge:
        raise ConfigError.at(whole.path, "the head would be empty: nothing is on the edge side")
    if edge.issuperset(range(len(graph.nodes))):
        raise ConfigError.at(whole.path, "the tail would be empty: everything is on the edge side")
    if not graph.is_downset(edge):
        raise ConfigError.at(whole.path, "not a cut: the edge side reads tensors of the other side")
    unsized = [repr(name) for name in graph.crossing(edge) if not graph.tensors[name].is_sized]
    if unsized:
        raise ConfigError.at(whole.path, f"cannot be cut here: the size of {', '.join(unsized)} is unknown")


def _with_free(whole: ModelFile, own: set[int], other: set[int], given: Collection[str]) -> list[int]:
    """The operators of a half: its own, and the free ones that it needs; `given` are the tensors that it takes.

    In the file's order, but each after what it reads: some files are not in topological order, and runtimes accept
    that. Raises `ConfigError` if the half needs something else from the other one, as with a graph that is not
    contracted.
    """
    found, todo = set(own), list(own)
    while todo:
        for name in whole.reads[todo.pop()]:
            maker = whole.maker.get(name)
            if maker is None or maker in found or name in given:
                continue
            if maker in other:
                raise ConfigError.at(whole.path, f"cannot be cut here: {name!r} is also read on the other side")
            found.add(maker)
            todo.append(maker)
    listed = sorted(found)
    place = {index: at for at, index in enumerate(listed)}
    makers = ({whole.maker.get(name) for name in whole.reads[index]} for index in listed)
    return [listed[at] for at in in_order([{place[one] for one in made if one in place} for made in makers])]


@dataclass(frozen=True)
class UnsplitModel:
    """The model to split, its contracted graph, and its `model.yaml`, if there is one."""

    file: ModelFile
    name: str
    graph: Graph
    description: ModelDescription | None
    format: Format
    """The format of the heads: the file's, except for a program of torch.export."""

    @classmethod
    def open(cls, path: Path, graph: Graph, name: str, heads: Format = "onnx") -> UnsplitModel:
        """Open the model at `path`, whose contracted graph is `graph`. Raises `ConfigError`.

        `heads` is the format of the heads of a torch.export program.
        """
        if not _NAME.fullmatch(name) or len(name) > _MOST_NAME:
            raise ConfigError.at(
                None, f"{name!r}: expected a name of letters, digits, '.', '_' and '-', at most {_MOST_NAME}", "--name"
            )
        written = description_of(path)
        description = None if written is None else load_description(written)
        with ExtraMissing.on_import("partition", "PACKAGE is not installed", path=path):
            file = open_model_file(path, graph)
        return cls(file, name, graph, description, heads if graph.format == "torch" else graph.format)

    def divide(self, edge: frozenset[int]) -> Halves:
        """The halves of a cut; see `split_model`."""
        return split_model(self.file, self.graph, edge)
