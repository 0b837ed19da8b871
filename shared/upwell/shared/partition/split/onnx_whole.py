"""An ONNX file that is to be split, read once: what each of its operators reads, and where its weights lie.

The weights of an older or a large model may lie in files beside it. They are read per half, and only those that it
uses; their paths were found to stay in the model's folder before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from upwell.shared.digest import model_digest
from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.bytes import BadOnnxFile
from upwell.shared.formats.onnx.files import ExternalData
from upwell.shared.formats.onnx.graph import OnnxGraph, read_graph
from upwell.shared.partition.onnx_proto import held_tensors, load_proto, with_bodies

FunctionKey = tuple[str, str, str]
"""Domain, name and overload: what an operator names a function by."""

_PARTS = ("graph", "functions", "training_info")
_ABOUT_GRAPH = ("name", "doc_string", "metadata_props")


@dataclass(frozen=True)
class OnnxWhole:
    """The model in `path`, without the weights that lie elsewhere: its graph, and the objects that halves are made of.

    `digest` is that of `upwell.shared.digest`, as 64 hexadecimal digits.
    """

    path: Path
    graph: OnnxGraph
    model: onnx.ModelProto
    digest: str

    @classmethod
    def read(cls, path: Path) -> OnnxWhole:
        """Raises `ConfigError` where the file or one of its weights' files cannot be used."""
        try:
            digest = model_digest(path).partition(":")[2]
            graph = read_graph(path)
        except OSError as error:
            raise ConfigError.at(path, f"cannot read the model: {error.strerror or error}") from None
        except BadOnnxFile as error:
            raise ConfigError.at(path, str(error)) from None
        return cls(path, graph, load_proto(path), digest)

    def frame(self) -> onnx.ModelProto:
        """A model without operators, weights, inputs and outputs that is otherwise like this one.

        What trains the model is no part of a half.
        """
        fields = {field.name: value for field, value in self.model.ListFields() if field.name not in _PARTS}
        about = {field.name: value for field, value in self.model.graph.ListFields() if field.name in _ABOUT_GRAPH}
        return onnx.ModelProto(**fields, graph=onnx.GraphProto(**about))

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """By tensor: the operator of the main graph that makes it."""
        return {name: index for index, node in enumerate(self.graph.nodes) for name in node.outputs if name}

    @cached_property
    def functions(self) -> Mapping[FunctionKey, onnx.FunctionProto]:
        """The model's own functions."""
        return {(one.domain, one.name, one.overload): one for one in self.model.functions}

    def functions_of(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
        """Those that these operators call, also from bodies and from other functions, in the model's order."""
        called: set[FunctionKey] = set()
        todo = list(with_bodies(nodes))
        while todo:
            node = todo.pop()
            key = (node.domain, node.op_type, node.overload)
            if key in self.functions and key not in called:
                called.add(key)
                todo.extend(with_bodies(self.functions[key].node))
        return [function for key, function in self.functions.items() if key in called]

    def fill(self, model: onnx.ModelProto) -> None:
        """Put weights that lie elsewhere into a half. Raises `ConfigError` where they are not there."""
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
