"""An ONNX file to be split, read once, and its halves.

The weights of an older or a large model may be in files beside it. Each half reads only those that it uses; their paths
were checked to stay in the model's folder before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import onnx
from onnx import TensorProto, helper

from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.file_checks import ExternalData
from upwell.shared.formats.onnx.graph import OnnxGraph, read_graph
from upwell.shared.formats.onnx.protobuf_reader import BadOnnxFile
from upwell.shared.model_digest import model_digest
from upwell.shared.partition.model_graph import Graph, Tensor
from upwell.shared.partition.onnx_proto import held_tensors, load_proto, with_bodies
from upwell.shared.partition.split.model_halves import ModelHalf, Part

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"

ELEMENT_TYPES: Mapping[str, int] = MappingProxyType(
    {
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
)
"""Maps OIP datatypes that can cross a cut to ONNX element types."""

_METADATA = "upwell.split."
_MOST_INLINE_BYTES = 1 << 30
"""Maximum size of weights in the message, since protobuf's limit is 2 GiB; larger ones are stored beside it."""

_LEAST_BESIDE_BYTES = 1024
"""Maximum size of tensors that stay in the model, such as shapes and scales, which shape inference reads."""

_ALIGNMENT_BYTES = 4096
"""Alignment of weights, which runtimes map into memory by page."""


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


FunctionKey = tuple[str, str, str]
"""Domain, name and overload: the key of a function."""

_PARTS = ("graph", "functions", "training_info")
_ABOUT_GRAPH = ("name", "doc_string", "metadata_props")


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
