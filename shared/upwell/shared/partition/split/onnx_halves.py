"""An ONNX file to be split, read once, and its halves; between them float tensors may cross in fewer bytes.

The weights of an older or a large model may be in files beside it. Each half reads only those that it uses; their paths
were checked to stay in the model's folder before anything is read.

`fp16` halves the bytes: Cast there and back. Values above 65,504 become infinite. `int8` quarters them: QuantizeLinear
to uint8 in the head, DequantizeLinear in the tail. Scale and zero point map the range seen on samples, extended to
include 0, to 0..255; values outside are clipped.

Only ordinary tensors are sent, so any server can run the tail. `upwell partition verify` measures the loss: the halves
together against the whole model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.formats.onnx.file import BadOnnxFile, ExternalData
from upwell.shared.formats.onnx.graph import OnnxGraph, read_graph
from upwell.shared.partition.model_graph import Graph, Tensor
from upwell.shared.partition.read_onnx import held_tensors, load_proto, opset_of, with_bodies
from upwell.shared.partition.split.model_halves import Halves, ModelHalf, Part
from upwell.shared.tensors import Array

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"

ELEMENT_TYPES: Mapping[str, int] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
}
"""Maps OIP datatypes that can cross a cut to ONNX element types."""

_METADATA = "upwell.split."
_MOST_INLINE_BYTES = 1 << 30
"""Maximum size of weights in the message, since protobuf's limit is 2 GiB; larger ones are stored beside it."""

_LEAST_BESIDE_BYTES = 1024
"""Maximum size of tensors that stay in the model, such as shapes and scales, which shape inference reads."""

_ALIGNMENT_BYTES = 4096
"""Alignment of weights, which runtimes map into memory by page."""

FunctionKey = tuple[str, str, str]
"""Domain, name and overload: the key of a function."""

_PARTS = ("graph", "functions", "training_info")
_ABOUT_GRAPH = ("name", "doc_string", "metadata_props")
CutCodec = Literal["fp16", "int8"]

Ranges = Mapping[str, tuple[float, float]]
"""The smallest and largest sample value of each cut tensor."""

_CODED = "FP32"
_SENT_AS: Mapping[CutCodec, str] = {"fp16": "FP16", "int8": "UINT8"}
_LEAST_OPSET: Mapping[CutCodec, int] = {"fp16": 6, "int8": 10}
_LARGEST_FP16 = float(np.finfo(np.float16).max)
_LEVELS = 255


def value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    """The declaration of an input or output that crosses a cut; open dimensions keep their names."""
    return helper.make_tensor_value_info(tensor.name, ELEMENT_TYPES[tensor.datatype], tensor.shape)


def put_metadata(model: onnx.ModelProto, facts: Mapping[str, str]) -> None:
    """Add facts about the split to a model's metadata, with the prefix `upwell.split.`; replaces those of the same
    name."""
    kept = {one.key: one.value for one in model.metadata_props}
    helper.set_model_props(model, kept | {f"{_METADATA}{key}": value for key, value in facts.items()})


def metadata(model: onnx.ModelProto, key: str) -> str:
    """A fact written by `put_metadata`; "" if it is missing."""
    return next((one.value for one in model.metadata_props if one.key == f"{_METADATA}{key}"), "")


def files_of(model: onnx.ModelProto, most_inline_bytes: int = _MOST_INLINE_BYTES) -> dict[str, bytes]:
    """A model with its weights as files by name: large weights move to a second file if all together are too large.

    The model is changed. Raises `ConfigError` if it is not valid.
    """
    is_inline = sum(len(tensor.raw_data) for tensor in held_tensors(model)) <= most_inline_bytes
    beside = {} if is_inline else {WEIGHTS_FILE: _moved_out(model)}
    return {MODEL_FILE: serialized(model, is_inline), **beside}


def serialized(model: onnx.ModelProto, is_inline: bool = True) -> bytes:
    """The model's file, checked if it needs no other. Raises `ConfigError` if it is not valid."""
    try:
        data = bytes(model.SerializeToString())
        if is_inline:  # the checker looks for external files beside the model, which is not on disk yet
            onnx.checker.check_model(data)
    except Exception as error:  # noqa: BLE001  (protobuf's and the checker's errors share no base class)
        raise ConfigError.at(None, f"a half of it would not be a valid ONNX model: {error}") from None
    return data


def _moved_out(model: onnx.ModelProto) -> bytes:
    """Remove the large weights from a model; returns them concatenated."""
    parts: list[bytes] = []
    end = 0
    for tensor in held_tensors(model):
        size = len(tensor.raw_data)
        if size < _LEAST_BESIDE_BYTES:
            continue
        gap = -end % _ALIGNMENT_BYTES
        parts += [bytes(gap), tensor.raw_data]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS_FILE), ("offset", end + gap), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        end += gap + size
    return b"".join(parts)


@dataclass(frozen=True)
class OnnxModelFile:
    """A `ModelFile` without external weights: its graph, and the objects from which halves are made."""

    path: Path
    main: OnnxGraph
    model: onnx.ModelProto
    digest: str

    @classmethod
    def read(cls, path: Path) -> OnnxModelFile:
        """Read a file. Raises `ConfigError` if it or one of its weight files cannot be used."""
        try:
            digest = model_digest(path).partition(":")[2]
            main = read_graph(path)
        except OSError as error:
            raise ConfigError.at(path, f"cannot read the model: {error.strerror or error}") from None
        except BadOnnxFile as error:
            raise ConfigError.at(path, str(error)) from None
        return cls(path, main, load_proto(path), digest)

    @cached_property
    def reads(self) -> list[tuple[str, ...]]:
        """See `ModelFile`."""
        return [node.reads for node in self.main.nodes]

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """See `ModelFile`."""
        return {name: index for index, node in enumerate(self.main.nodes) for name in node.outputs if name}

    def ends(self, graph: Graph) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See `ModelFile.ends`."""
        inputs, outputs = (tuple(graph.tensors[name] for name in side) for side in (graph.inputs, graph.outputs))
        return inputs, outputs

    def half(self, part: Part, graph: Graph) -> ModelHalf:
        """See `ModelFile.half`. It keeps the model's metadata and adds facts with the prefix `upwell.split.`.

        They are `half`, `whole` (digest), `cut` and `outputs` (names, as JSON).
        """
        model = self._frame()
        nodes = [self.model.graph.node[index] for index in part.operators]
        model.graph.node.extend(nodes)
        model.functions.extend(self._functions_of(nodes))
        self._put_weights(part, model.graph)
        self._put_ends(part, graph, model.graph)
        self._put_facts(model.graph)
        facts = {"whole": self.digest, "cut": json.dumps(part.cut), "outputs": json.dumps(graph.outputs)}
        put_metadata(model, {"half": part.side, **facts})
        self._fill(model)
        try:
            files = files_of(model)
        except ConfigError as error:
            raise ConfigError.at(self.path, error.problems[0].message) from None
        return ModelHalf(
            files, *(tuple(graph.tensors[name] for name in names) for names in (part.inputs, part.outputs))
        )

    def _frame(self) -> onnx.ModelProto:
        """A model like this one, without operators, weights, inputs and outputs.

        Training information is not part of a half.
        """
        fields = {field.name: value for field, value in self.model.ListFields() if field.name not in _PARTS}
        about = {field.name: value for field, value in self.model.graph.ListFields() if field.name in _ABOUT_GRAPH}
        return onnx.ModelProto(**fields, graph=onnx.GraphProto(**about))

    def _functions_of(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
        """The model's own functions that these operators call, also from bodies and functions, in the model's order."""
        functions = {(one.domain, one.name, one.overload): one for one in self.model.functions}
        called: set[FunctionKey] = set()
        todo = list(with_bodies(nodes))
        while todo:
            node = todo.pop()
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in called:
                called.add(key)
                todo.extend(with_bodies(functions[key].node))
        return [function for key, function in functions.items() if key in called]

    def _put_weights(self, part: Part, made: onnx.GraphProto) -> None:
        """The weights that the half uses, each under its one shared name."""
        used = {name for index in part.operators for name in self.main.nodes[index].reads}.union(part.outputs)
        made.initializer.extend(one for one in self.model.graph.initializer if one.name in used)
        sparse = self.model.graph.sparse_initializer
        made.sparse_initializer.extend(one for one in sparse if one.values.name in used)

    def _put_ends(self, part: Part, graph: Graph, made: onnx.GraphProto) -> None:
        """Inputs and outputs: those of the whole as it declares them, with the weights listed among its inputs."""
        source = self.model.graph
        declared = {one.name: one for one in (*source.input, *source.output)}
        for names, ends in ((part.inputs, made.input), (part.outputs, made.output)):
            ends.extend(declared[name] if name in declared else value_info(graph.tensors[name]) for name in names)
        weights = {one.name for one in made.initializer}
        made.input.extend(one for one in source.input if one.name in weights)

    def _put_facts(self, made: onnx.GraphProto) -> None:
        """The file's declarations of tensors between operators."""
        source = self.model.graph
        ends = {one.name for one in made.input} | {one.name for one in made.output}
        inner = {name for node in made.node for name in node.output} - ends
        made.value_info.extend(one for one in source.value_info if one.name in inner)
        known = inner | ends | {one.name for one in made.initializer}
        made.quantization_annotation.extend(one for one in source.quantization_annotation if one.tensor_name in known)

    def _fill(self, model: onnx.ModelProto) -> None:
        """Put external weights into a half. Raises `ConfigError` if they are missing."""
        for tensor in held_tensors(model):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                external = ExternalData.of((entry.key, entry.value) for entry in tensor.external_data)
                try:
                    file, offset, size_bytes = external.part(self.path)
                    with open_plain(file) as opened:
                        opened.seek(offset)
                        tensor.raw_data = opened.read(size_bytes)
                except BadOnnxFile as error:
                    raise ConfigError.at(self.path, f"{tensor.name!r}: {error}") from None
                except OSError as error:
                    raise ConfigError.at(self.path, f"cannot read its weights: {error.strerror or error}") from None
                del tensor.external_data[:]
                tensor.ClearField("data_location")


def with_codec(halves: Halves, codec: CutCodec, ranges: Ranges | None = None) -> Halves:
    """These ONNX halves with every FP32 cut tensor sent by `codec`, under a new name; all others cross unchanged.

    `int8` needs the range of each such tensor; for `fp16` given ranges are checked to fit. A model output that is also
    a cut tensor is still given unchanged. Raises `ConfigError` if nothing can be encoded.
    """
    head, tail = (onnx.ModelProto.FromString(half.files[MODEL_FILE]) for half in (halves.head, halves.tail))
    known = {tensor.name: tensor for tensor in halves.head.outputs}
    taken = _names(head) | _names(tail)
    coded = {
        name: _Coded.of(known[name], codec, ranges or {}, taken)
        for name in halves.cut
        if known[name].datatype == _CODED
    }
    if not coded:
        raise ConfigError.at(None, f"no tensor in this cut is {_CODED}, so there is nothing to encode")
    sent = {name: coded[name].sent if name in coded else known[name] for name in halves.cut}
    also_given = set(json.loads(metadata(head, "outputs") or "[]")).intersection(coded)
    given = [tensor for tensor in halves.head.outputs if tensor.name not in sent or tensor.name in also_given]
    outputs = (*sent.values(), *given)
    inputs = tuple(sent.get(tensor.name, tensor) for tensor in halves.tail.inputs)
    _declare(head.graph.output, halves.head.outputs, outputs)
    _declare(tail.graph.input, halves.tail.inputs, inputs)
    for model, side in ((head, "head"), (tail, "tail")):
        _check_opset(model, codec)
        _put_nodes(model, side, coded.values())
        put_metadata(model, {"codec": codec, "cut": json.dumps([tensor.name for tensor in sent.values()])})
    return Halves(
        _rewritten(halves.head, head, halves.head.inputs, outputs),
        _rewritten(halves.tail, tail, inputs, halves.tail.outputs),
        tuple(tensor.name for tensor in sent.values()),
    )


@dataclass(frozen=True)
class _Coded:
    """A cut tensor, its encoded tensor, and scale and zero point if it has them."""

    plain: Tensor
    sent: Tensor
    constants: tuple[onnx.TensorProto, ...]

    @classmethod
    def of(cls, plain: Tensor, codec: CutCodec, ranges: Ranges, taken: set[str]) -> _Coded:
        """`taken` are names in use in either graph."""
        name = f"{plain.name}_{codec}"
        while any(one.startswith(name) for one in taken):
            name += "_"
        constants: tuple[onnx.TensorProto, ...] = ()
        if codec == "int8":
            arrays = zip(("scale", "zero_point"), _parameters(plain.name, ranges), strict=True)
            constants = tuple(numpy_helper.from_array(array, f"{name}_{kind}") for kind, array in arrays)
        elif not all(abs(end) <= _LARGEST_FP16 for end in ranges.get(plain.name, ())):
            text = f"values of {plain.name!r} exceed {_LARGEST_FP16:.0f}, the largest FP16 number, or are NaN"
            raise ConfigError.at(None, text)
        return cls(plain, replace(plain, name=name, datatype=_SENT_AS[codec]), constants)

    def node(self, side: str) -> onnx.NodeProto:
        """The operator that encodes it in the head, or decodes it in the tail."""
        ends = (self.plain, self.sent) if side == "head" else (self.sent, self.plain)
        source, target = (tensor.name for tensor in ends)
        name = f"{self.sent.name}_{side}"
        if not self.constants:
            return helper.make_node("Cast", [source], [target], name=name, to=ELEMENT_TYPES[ends[1].datatype])
        operator = "QuantizeLinear" if side == "head" else "DequantizeLinear"
        return helper.make_node(operator, [source, *(one.name for one in self.constants)], [target], name=name)


def _parameters(name: str, ranges: Ranges) -> tuple[Array, Array]:
    """Scale, FP32, and zero point, UINT8: the range including 0 is mapped to 0..255, so that zeros stay zeros."""
    if name not in ranges:
        raise ConfigError.at(
            None, f"int8 needs the range of {name!r}; there are only samples of {sorted(ranges) or 'none'}"
        )
    low, high = ranges[name]
    if not -math.inf < low <= high < math.inf:
        raise ConfigError.at(None, f"the range of {name!r} is {low} to {high}; expected two numbers, the smaller first")
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(np.float32((high - low) / _LEVELS), np.finfo(np.float32).tiny)
    zero_point = np.clip(round(-low / float(scale)), 0, _LEVELS)
    return np.asarray(scale, np.float32), np.asarray(zero_point, np.uint8)


def _put_nodes(model: onnx.ModelProto, side: str, coded: Collection[_Coded]) -> None:
    """Put encoders last in the head, or decoders first in the tail."""
    graph = model.graph
    nodes = [one.node(side) for one in coded]
    ordered = [*graph.node, *nodes] if side == "head" else [*nodes, *graph.node]
    del graph.node[:]
    graph.node.extend(ordered)
    graph.initializer.extend(constant for one in coded for constant in one.constants)
    known = {one.name for one in graph.value_info} | {one.name for one in graph.output}
    graph.value_info.extend(value_info(one.plain) for one in coded if one.plain.name not in known)


def _declare(ends: Any, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """Change inputs or outputs of a graph; weights among its inputs stay, after the others."""
    declared = {one.name: one for one in ends}
    weights = declared.keys() - {tensor.name for tensor in before}
    made = [declared[one.name] if one.name in declared else value_info(one) for one in after]
    made += [one for name, one in declared.items() if name in weights]
    del ends[:]
    ends.extend(made)


def _check_opset(model: onnx.ModelProto, codec: CutCodec) -> None:
    version = opset_of(model)
    if version < _LEAST_OPSET[codec]:
        raise ConfigError.at(
            None, f"{codec} at the cut needs opset {_LEAST_OPSET[codec]} or later, but the model has opset {version}"
        )


def _names(model: onnx.ModelProto) -> set[str]:
    graph = model.graph
    nodes = {name for node in with_bodies(graph.node) for name in (node.name, *node.input, *node.output)}
    return nodes | {one.name for one in graph.initializer} | {one.name for one in graph.input}


def _rewritten(
    half: ModelHalf, model: onnx.ModelProto, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> ModelHalf:
    data = serialized(model, is_inline=len(half.files) == 1)
    return ModelHalf({**half.files, MODEL_FILE: data}, tuple(inputs), tuple(outputs))
