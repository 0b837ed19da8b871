"""An ONNX file that is to be split, read once: what each of its operators reads, and where its weights lie.

The weights of an older or a large model may lie in files beside it. They are read per half, and only those that it
uses; their paths were found to stay in the model's folder before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from upwell.shared.digest import model_digest
from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.bytes import BadOnnxFile
from upwell.shared.formats.onnx.files import external_places

FunctionKey = tuple[str, str, str]
"""Domain, name and overload: what an operator names a function by."""

_PARTS = ("graph", "functions", "training_info")
_ABOUT_GRAPH = ("name", "doc_string", "metadata_props")


@dataclass(frozen=True)
class OnnxWhole:
    """The model in `path`, without the weights that lie elsewhere.

    `digest` is that of `upwell.shared.digest`, as 64 hexadecimal digits; `elsewhere` leads from the location of
    external weights, as written in the model, to their file.
    """

    path: Path
    model: onnx.ModelProto
    digest: str
    elsewhere: Mapping[str, Path]

    @classmethod
    def read(cls, path: Path) -> OnnxWhole:
        """Raises `ConfigError` where the file or one of its weights' files cannot be used."""
        try:
            elsewhere = external_places(path)
            digest = model_digest(path).partition(":")[2]
            model = onnx.load(str(path), load_external_data=False)
        except OSError as error:
            raise ConfigError.at(path, f"cannot read the model: {error.strerror or error}") from None
        except BadOnnxFile as error:
            raise ConfigError.at(path, str(error)) from None
        except Exception as error:  # noqa: BLE001  (protobuf's errors are no public class)
            raise ConfigError.at(path, f"not an ONNX file: {error}") from None
        return cls(path, model, digest, elsewhere)

    def frame(self) -> onnx.ModelProto:
        """A model without operators, weights, inputs and outputs that is otherwise like this one.

        What trains the model is no part of a half.
        """
        fields = {field.name: value for field, value in self.model.ListFields() if field.name not in _PARTS}
        about = {field.name: value for field, value in self.model.graph.ListFields() if field.name in _ABOUT_GRAPH}
        return onnx.ModelProto(**fields, graph=onnx.GraphProto(**about))

    @cached_property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """By operator of the main graph: all that it reads by name, weights and what its bodies capture included."""
        return tuple(tuple(dict.fromkeys(_reads(node))) for node in self.model.graph.node)

    @cached_property
    def maker(self) -> Mapping[str, int]:
        """By tensor: the operator of the main graph that makes it."""
        return {name: index for index, node in enumerate(self.model.graph.node) for name in node.output if name}

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
        """Put weights that lie elsewhere into a half. Raises `ConfigError` where their file is too short."""
        for tensor in tensors_of(model):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                self._fill(tensor)

    def _fill(self, tensor: onnx.TensorProto) -> None:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        file = self.elsewhere.get(entries.get("location", ""))
        if file is None:
            raise ConfigError.at(self.path, f"in which file {tensor.name!r} lies is not told")
        try:
            offset = int(entries.get("offset") or 0)
            there = file.stat().st_size - offset
            length = int(entries.get("length") or there)
            if offset < 0 or not 0 <= length <= there:
                raise ConfigError.at(
                    file, f"it holds {offset + there} bytes, but {tensor.name!r} is {length} at {offset}"
                )
            with open_plain(file) as opened:
                opened.seek(offset)
                tensor.raw_data = opened.read(length)
        except ValueError:
            raise ConfigError.at(
                self.path, f"where {tensor.name!r} lies in {file.name} is not told by numbers"
            ) from None
        except OSError as error:
            raise ConfigError.at(file, f"cannot read the weights: {error.strerror or error}") from None
        del tensor.external_data[:]
        tensor.ClearField("data_location")


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that a model holds: weights, also sparse ones, and those in attributes at any depth."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _tensors_of_attribute(attribute)
        for node in function.node:
            yield from _tensors_of_node(node)


def with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Operators, and those in the bodies that they have, at any depth."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in _bodies(attribute):
                yield from with_bodies(body.node)


def _tensors_of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _tensors_of_node(node)


def _tensors_of_node(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        yield from _tensors_of_attribute(attribute)


def _tensors_of_attribute(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for one in (*sparse, *attribute.sparse_tensors):
        yield from (one.values, one.indices)
    for body in _bodies(attribute):
        yield from _tensors_of_graph(body)


def _bodies(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What an operator reads by name; of its bodies what they do not make themselves."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in _bodies(attribute):
            own = {one.name for one in body.input} | {one.name for one in body.initializer}
            own.update(one.values.name for one in body.sparse_initializer)
            for inner in body.node:
                yield from (name for name in _reads(inner) if name not in own)
                own.update(inner.output)
            yield from (one.name for one in body.output if one.name not in own)
