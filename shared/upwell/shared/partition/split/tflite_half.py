"""A half as a TFLite file: its parts with new numbers, and the place of its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

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
        made.buffers = [copy.copy(whole.buffers[old]) for old in self._buffers]
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
