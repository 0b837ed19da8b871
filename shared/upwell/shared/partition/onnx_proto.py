"""ONNX files as objects of the `onnx` package, for shape inference and for writing models.

For reading, use `upwell.shared.formats.onnx`; this is only for what is passed on to that package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from upwell.shared.errors import ConfigError


def load_proto(path: Path) -> onnx.ModelProto:
    """Load the model at `path` without its external weights. Raises `ConfigError`."""
    try:
        return onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise ConfigError.at(path, f"cannot read the model: {error.strerror or error}") from None
    except Exception:  # noqa: BLE001 (protobuf's errors; a pure module must not name that package)
        raise ConfigError.at(path, "not an ONNX file, or truncated") from None


def opset_of(model: onnx.ModelProto) -> int:
    """The opset version of ONNX's own operators in a model."""
    return next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 1)


def held_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor in a model: weights, sparse ones included, and those in attributes at any depth."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _tensors_of_attribute(attribute)
        for node in function.node:
            yield from _tensors_of_node(node)


def with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Operators, and those in their bodies, at any depth."""
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
