"""A TFLite file that is to be split, read once: what each operator of its main graph reads, and what is called how."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from upwell.shared.digest import model_digest
from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.tflite.flatbuffer import BadTfliteFile
from upwell.shared.formats.tflite.model import TfliteSubgraph, read_model
from upwell.shared.partition.graph import Graph, Tensor
from upwell.shared.partition.read_tflite import tensor_names
from upwell.shared.partition.split.tflite_half import Named

_UNREADABLE = (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error)
_DEFAULT_KEY = "serving_default"


@dataclass(frozen=True)
class TfliteWhole:
    """The model in `path`: its main graph, which is split, and the objects of the schema that halves are made of.

    All of its weights are in the buffers of the objects; `digest` is in hex.

    Where it has exactly one signature and that names every input and output, they are called so, else as their tensors
    are. Operators and tensors go by their numbers in the main graph.
    """

    path: Path
    main: TfliteSubgraph
    model: Any
    digest: str

    @classmethod
    def read(cls, path: Path) -> TfliteWhole:
        """Raises `ConfigError` for what is no TFLite model, or one with weights in files of their own."""
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
            complete = bool(whole.inputs) and bool(whole.outputs)
        except (BadTfliteFile, *_UNREADABLE) as error:
            raise ConfigError.at(path, f"the model file cannot be read: {error}") from None
        if outside:
            raise ConfigError.at(path, "its weights lie in files of their own; export it with them inside")
        if not complete:
            raise ConfigError.at(path, "it has no inputs or no outputs")
        return whole

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """By operator: the tensors that it reads, weights included."""
        return tuple(tuple(one for one in operator.inputs if one >= 0) for operator in self.main.operators)

    @cached_property
    def maker(self) -> Mapping[int, int]:
        """By tensor: the operator that makes it."""
        return {one: index for index, operator in enumerate(self.main.operators) for one in operator.outputs}

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """By tensor: its name in the graph that is planned on."""
        return tensor_names(tensor.name for tensor in self.main.tensors)

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The tensor that the graph knows by a name."""
        return {name: index for index, name in enumerate(self.tensor_names)}

    def cut_name(self, tensor: int) -> str:
        """What a tensor is called where it crosses a cut: as in the graph, or as the output of the model that it is."""
        given = next((name for name, one in self.outputs if one == tensor), None)
        if given is not None:
            return given
        name, taken = self.tensor_names[tensor], {name for name, _ in (*self.inputs, *self.outputs)}
        while name in taken:
            name += "#"
        return name

    @cached_property
    def inputs(self) -> tuple[Named, ...]:
        """The model's inputs in the order of its graph, by the names that a caller uses."""
        return self._named(self.main.inputs, "inputs")

    @cached_property
    def outputs(self) -> tuple[Named, ...]:
        """The model's outputs, likewise; a tensor that has two names there is two outputs."""
        return self._named(self.main.outputs, "outputs")

    def described(self, names: Sequence[Named], graph: Graph) -> tuple[Tensor, ...]:
        """These tensors as the graph knows them, by these names."""
        return tuple(replace(graph.tensors[self.tensor_names[tensor]], name=name) for name, tensor in names)

    @property
    def key(self) -> str:
        """What its signature is called."""
        return _DEFAULT_KEY if self._signature is None else self._signature.signatureKey.decode()

    @cached_property
    def _signature(self) -> Any:
        """The one that names the inputs and outputs, or None."""
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
            return tuple((self.tensor_names[one], one) for one in ordered)
        maps = getattr(self._signature, side)
        return tuple((each.name.decode(), one) for one in ordered for each in maps if int(each.tensorIndex) == one)


def _pull_in(model: Any, data: bytes) -> None:
    """Bring in what a large file keeps behind its flatbuffer. Raises `ValueError` where that is not there."""
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
        raise ValueError("weights are said to lie behind its end")
    return np.frombuffer(data, np.uint8, size, start)
