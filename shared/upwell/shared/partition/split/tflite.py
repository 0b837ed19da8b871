"""A TFLite file to be split, read once: the tensors of each operator of its main graph, and their names."""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.tflite.flatbuffer import BadTfliteFile
from upwell.shared.formats.tflite.model import TfliteSubgraph, read_model
from upwell.shared.model_digest import model_digest
from upwell.shared.partition.graph import Graph, Tensor
from upwell.shared.partition.read_tflite import tensor_names
from upwell.shared.partition.split.halves import ModelHalf, Part
from upwell.shared.partition.split.tflite_half import MODEL_FILE, Named, Rewriting, add_metadata, packed

_UNREADABLE = (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error)
_DEFAULT_KEY = "serving_default"


@dataclass(frozen=True)
class TfliteModelFile:
    """A `ModelFile`: its main graph, which is split, and the schema's objects from which halves are made.

    All its weights are in buffers of the objects. If it has exactly one signature, and that names every input and
    output, callers use those names, else those of the tensors.
    """

    path: Path
    main: TfliteSubgraph
    model: Any
    digest: str

    @classmethod
    def read(cls, path: Path) -> TfliteModelFile:
        """Read a file. Raises `ConfigError` if it is not a TFLite model, or has weights in other files."""
        try:
            with open_plain(path) as file:
                data = file.read()
            digest = model_digest(path).partition(":")[2]
        except OSError as error:
            raise ConfigError.at(path, f"cannot read the model: {error.strerror or error}") from None
        try:
            main = read_model(data)[0]
            model = schema.ModelT.InitFromPackedBuf(data, 0)
            _pull_in(model, data)
            outside = any(getattr(one, "externalBuffer", 0) for graph in model.subgraphs for one in graph.tensors)
            whole = cls(path, main, model, digest)
            complete = bool(whole._inputs) and bool(whole._outputs)
        except (BadTfliteFile, *_UNREADABLE) as error:
            raise ConfigError.at(path, f"the model file cannot be read: {error}") from None
        if outside:
            raise ConfigError.at(path, "its weights are in separate files; export it with its weights inside")
        if not complete:
            raise ConfigError.at(path, "it has no inputs or no outputs")
        return whole

    @cached_property
    def reads(self) -> list[tuple[str, ...]]:
        """See `ModelFile`."""
        return [tuple(self._names[one] for one in operator.inputs if one >= 0) for operator in self.main.operators]

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """See `ModelFile`."""
        return {self._names[one]: at for at, operator in enumerate(self.main.operators) for one in operator.outputs}

    def ends(self, graph: Graph) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See `ModelFile.ends`. A tensor with two names in the signature is two outputs."""
        return self._described(self._inputs, graph), self._described(self._outputs, graph)

    def half(self, part: Part, graph: Graph) -> ModelHalf:
        """See `ModelFile.half`; the operators are in the file's order, with everything that they refer to.

        A cut tensor is named as in the graph, or as the model output that it is.
        """
        cut = [self._called(name) for name in part.cut]
        sent, taken = (cut, ()) if part.side == "head" else ((), cut)
        inputs = [*taken, *_among(self._inputs, part.inputs, self._names)]
        outputs = [*sent, *(one for one in _among(self._outputs, part.outputs, self._names) if one not in sent)]
        key = _DEFAULT_KEY if self._signature is None else self._signature.signatureKey.decode()
        model = Rewriting(self.model).model(part.operators, inputs, outputs, key)
        facts = {"half": part.side, "whole": self.digest, "cut": [name for name, _ in cut]}
        add_metadata(model, "upwell.split", json.dumps(facts).encode())
        return ModelHalf({MODEL_FILE: packed(model)}, self._described(inputs, graph), self._described(outputs, graph))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """By tensor: its name in the planner's graph."""
        return tensor_names(tensor.name for tensor in self.main.tensors)

    @cached_property
    def _inputs(self) -> tuple[Named, ...]:
        """The model's inputs in the order of its graph, by the names that callers use."""
        return self._named(self.main.inputs, "inputs")

    @cached_property
    def _outputs(self) -> tuple[Named, ...]:
        """The model's outputs, likewise."""
        return self._named(self.main.outputs, "outputs")

    def _called(self, name: str) -> Named:
        tensor = self._names.index(name)
        given = next((one for one in self._outputs if one[1] == tensor), None)
        taken = {name for name, _ in (*self._inputs, *self._outputs)}
        while given is None and name in taken:
            name += "#"
        return given or (name, tensor)

    def _described(self, names: Sequence[Named], graph: Graph) -> tuple[Tensor, ...]:
        """These tensors from the graph, under these names."""
        return tuple(replace(graph.tensors[self._names[tensor]], name=name) for name, tensor in names)

    @cached_property
    def _signature(self) -> Any:
        """The signature that names the inputs and outputs, or None."""
        (*others, one) = self.model.signatureDefs or (None,)
        if others or one is None or one.subgraphIndex != 0:
            return None
        covers = all(
            {int(each.tensorIndex) for each in names or ()} == {*tensors}
            for names, tensors in ((one.inputs, self.main.inputs), (one.outputs, self.main.outputs))
        )
        return one if covers else None

    def _named(self, tensors: Sequence[int], side: str) -> tuple[Named, ...]:
        ordered = dict.fromkeys(tensors)
        if self._signature is None:
            return tuple((self._names[one], one) for one in ordered)
        maps = getattr(self._signature, side)
        return tuple((each.name.decode(), one) for one in ordered for each in maps if int(each.tensorIndex) == one)


def _among(ends: Sequence[Named], names: Collection[str], known: Sequence[str]) -> list[Named]:
    return [one for one in ends if known[one[1]] in names]


def _pull_in(model: Any, data: bytes) -> None:
    """Read what a large file keeps behind its flatbuffer. Raises `ValueError` if it is missing."""
    for buffer in model.buffers:
        if buffer.offset > 1:
            buffer.data, buffer.offset, buffer.size = _part(data, buffer.offset, buffer.size), 0, 0
    for graph in model.subgraphs:
        for operator in graph.operators:
            if operator.largeCustomOptionsOffset > 1:
                start, size = operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize
                operator.customOptions = _part(data, start, size)
                operator.largeCustomOptionsOffset = operator.largeCustomOptionsSize = 0


def _part(data: bytes, start: int, size: int) -> Any:
    if start + size > len(data):
        raise ValueError("its weights would be beyond its end")
    return np.frombuffer(data, np.uint8, size, start)
