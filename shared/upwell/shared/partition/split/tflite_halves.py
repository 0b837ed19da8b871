"""A TFLite file to be split, read once: the tensors of each operator of its main graph, their names, and its halves."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.formats.tflite import BadTfliteFile, TfliteSubgraph, read_model
from upwell.shared.partition.model_graph import Graph, Tensor
from upwell.shared.partition.read_tflite import tensor_names
from upwell.shared.partition.split.model_halves import ModelHalf, Part

MODEL_FILE = "model.tflite"
IDENTIFIER = b"TFL3"

_MOST_INLINE_BYTES = 1 << 30
"""Maximum size of weights in the flatbuffer, whose limit is 2 GiB; larger ones are stored behind it in the file."""

_LEAST_BEHIND_BYTES = 1024
_ALIGNMENT_BYTES = 16
"""Alignment of weights required by the schema, on which kernels rely for mapped memory."""

_SUBGRAPH_FIELDS = (
    "subgraph", "thenSubgraphIndex", "elseSubgraphIndex", "condSubgraphIndex", "bodySubgraphIndex", "initSubgraphIndex",
    "comparatorSubgraphIndex", "updateComputationSubgraphIndex", "decompositionSubgraphIndex", "branchSubgraphIndices",
)  # fmt: skip
"""The fields of an operator's options with subgraph numbers."""

Named: TypeAlias = "tuple[str, int]"
"""The name of an input or output, and its tensor."""


class _Numbers:
    """New numbers for the parts of a model that are kept, from 0 in order of first use."""

    def __init__(self, *first: int) -> None:
        self._old = list(first)
        self._new = {old: new for new, old in enumerate(first)}

    def __call__(self, old: int) -> int:
        if old not in self._new:
            self._new[old] = len(self._old)
            self._old.append(old)
        return self._new[old]

    def __iter__(self) -> Iterator[int]:
        """The parts in order; more may be added meanwhile."""
        return iter(self._old)


class Rewriting:
    """Makes a model from parts of another, whose objects are not changed."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._subgraphs = _Numbers(0)
        self._codes = _Numbers()
        self._buffers = _Numbers(0)  # the first one is empty by convention

    def model(self, operators: Sequence[int], inputs: Sequence[Named], outputs: Sequence[Named], key: str) -> Any:
        """The model with these operators of the main graph, and a signature that names inputs and outputs.

        Whatever the operators refer to is included: bodies of control flow, operator codes, weights. So are the
        description and the metadata of the whole, except `TFLITE_METADATA`, which describes inputs and outputs that a
        half lacks.
        """
        whole = self._whole
        made = copy.copy(whole)
        main, numbers = self._main(operators, inputs, outputs)
        bodies = [self._body(whole.subgraphs[old]) for old in self._subgraphs if old != 0]
        made.subgraphs = [main, *bodies]
        made.operatorCodes = [whole.operatorCodes[old] for old in self._codes]
        made.signatureDefs = [
            signature_of(key, *([(name, numbers(old)) for name, old in side] for side in (inputs, outputs)))
        ]
        made.metadata = [
            self._with(one, buffer=self._buffers(one.buffer))
            for one in whole.metadata or ()
            if _text(one.name) != "TFLITE_METADATA"
        ]
        made.metadataBuffer = None
        made.buffers = [copy.copy(whole.buffers[old]) if old else schema.BufferT() for old in self._buffers]
        return made

    def _main(
        self, operators: Sequence[int], inputs: Sequence[Named], outputs: Sequence[Named]
    ) -> tuple[Any, _Numbers]:
        """The main graph, and the new number of each of its tensors."""
        main = self._whole.subgraphs[0]
        numbers = _Numbers()
        made = copy.copy(main)
        made.inputs = _vector(numbers, dict.fromkeys(tensor for _, tensor in inputs))
        made.operators = [self._operator(main.operators[index], numbers) for index in operators]
        made.outputs = _vector(numbers, dict.fromkeys(tensor for _, tensor in outputs))
        made.tensors = [self._tensor(main.tensors[old]) for old in numbers]
        return made, numbers

    def _body(self, subgraph: Any) -> Any:
        """A whole subgraph: its tensors keep their numbers."""
        operators = [self._operator(one, lambda old: old) for one in subgraph.operators]
        return self._with(subgraph, operators=operators, tensors=[self._tensor(one) for one in subgraph.tensors])

    def _tensor(self, tensor: Any) -> Any:
        return self._with(tensor, buffer=self._buffers(tensor.buffer))

    def _operator(self, operator: Any, number: Callable[[int], int]) -> Any:
        made = self._with(operator, opcodeIndex=self._codes(operator.opcodeIndex))
        for field in ("inputs", "outputs", "intermediates"):
            if getattr(operator, field) is not None:
                setattr(made, field, _vector(number, getattr(operator, field)))
        for field in ("builtinOptions", "builtinOptions2"):
            setattr(made, field, self._options(getattr(operator, field, None)))
        return made

    def _options(self, options: Any) -> Any:
        made = copy.copy(options)
        for field in _SUBGRAPH_FIELDS:
            old = getattr(options, field, None)
            if old is not None:
                one_or_more = _vector(self._subgraphs, old) if np.ndim(old) else _renumbered(self._subgraphs, old)
                setattr(made, field, one_or_more)
        return made

    @staticmethod
    def _with(part: Any, **changed: Any) -> Any:
        made = copy.copy(part)
        for field, value in changed.items():
            setattr(made, field, value)
        return made


def add_metadata(model: Any, name: str, content: bytes) -> None:
    """Add a metadata entry to a model that is already a copy."""
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(content, np.uint8)
    model.buffers = [*model.buffers, buffer]
    entry = schema.MetadataT()
    entry.name, entry.buffer = name, len(model.buffers) - 1
    model.metadata = [*model.metadata, entry]


def packed(model: Any, most_inline_bytes: int = _MOST_INLINE_BYTES) -> bytes:
    """The model as the bytes of a file; large weights go behind the flatbuffer if they exceed `most_inline_bytes`.

    Its buffers are changed.
    """
    large = [one for one in model.buffers if one.data is not None and len(one.data) >= _LEAST_BEHIND_BYTES]
    if sum(len(one.data) for one in large) <= most_inline_bytes:
        return flatbuffer_of(model)
    weights = [one.data for one in large]
    for one, data in zip(large, weights, strict=True):
        one.data, one.offset, one.size = None, 1, len(data)
    end = len(flatbuffer_of(model))  # numbers have a fixed size, so the right ones do not make it longer
    parts = []
    for one, data in zip(large, weights, strict=True):
        gap = -end % _ALIGNMENT_BYTES
        parts += [bytes(gap), data.tobytes()]
        one.offset = end + gap
        end = one.offset + len(data)
    return b"".join([flatbuffer_of(model), *parts])


def flatbuffer_of(model: Any) -> bytes:
    """The model as the bytes of a file."""
    builder = _Aligned(1 << 16)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


class _Aligned(flatbuffers.Builder):  # type: ignore[misc]  # it has no stubs
    """Aligns byte vectors to 16, which the schema requires and the generated code does not do."""

    def StartVector(self, elem_size: int, count: int, alignment: int) -> int:  # noqa: N802  (the name it has there)
        return int(super().StartVector(elem_size, count, _ALIGNMENT_BYTES if elem_size == 1 else alignment))


def signature_of(key: str, inputs: Sequence[Named], outputs: Sequence[Named]) -> Any:
    """A signature of the main graph."""
    made = schema.SignatureDefT()
    made.signatureKey, made.subgraphIndex = key, 0
    made.inputs, made.outputs = ([_tensor_map(*named) for named in side] for side in (inputs, outputs))
    return made


def _tensor_map(name: str, tensor: int) -> Any:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name, tensor
    return made


def _vector(number: Callable[[int], int], old: Any) -> Any:
    return np.array([_renumbered(number, one) for one in old], np.int32)


def _renumbered(number: Callable[[int], int], old: Any) -> int:
    """The new number; a negative one means "none" and stays."""
    return int(old) if old < 0 else number(int(old))


def _text(name: bytes | str | None) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name or ""


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
        with ConfigError.on_os_error(path, "cannot read the model"):
            with open_plain(path) as file:
                data = file.read()
            digest = model_digest(path).partition(":")[2]
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
        key = _DEFAULT_KEY if self._signature is None else _text(self._signature.signatureKey)
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
