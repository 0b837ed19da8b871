"""Prepares an ONNX model for quantization: checks it, folds constants, names nodes, raises the opset if needed."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from upwell.edge.runtimes.onnx.providers import plain_text
from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.shared.errors import ConfigError
from upwell.shared.formats.operator_work import work_of
from upwell.shared.partition.model_graph import in_order
from upwell.shared.partition.read_onnx import opset_of, with_bodies
from upwell.tools.quantize.quantizer import Arithmetic, LayerNode, own_names

LEAST_OPSET = 13
"""The first opset in which DequantizeLinear has an axis, needed for per-channel weights."""

_LEAST_IR = 7
"""The IR version of opset 12 and later. From version 4 on, weights need not be inputs."""

_QUANTIZED = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger"}
    | {"MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits", "QGemm", "QAttention"}
)
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
CPU = ("CPUExecutionProvider",)
_LOG_FATAL = 4
_NO_SATURATION = ("session.x64quantprecision", "1")
"""The agent's session setting for models that would saturate: use the slower kernel that does not."""


def session_of(model: onnx.ModelProto, arithmetic: Arithmetic = "served", threads: int = 0) -> Any:
    """A session on the CPU that computes in one of the ways of `Arithmetic`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_FATAL
    options.intra_op_num_threads = threads
    if arithmetic == "exact":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    elif arithmetic == "served":
        options.add_session_config_entry(*_NO_SATURATION)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=list(CPU))


def read_model(path: Path) -> onnx.ModelProto:
    """The float model at `path` with all its weights, whose locations were checked.

    Raises `ConfigError` if it cannot be quantized at all.
    """
    try:
        model = onnx.load(str(path))
    except Exception as error:  # noqa: BLE001 (protobuf, ValidationError and OSError share no base class)
        raise ConfigError.at(path, f"the onnx package cannot read it: {plain_text(error)}") from None
    found = sorted({node.op_type for node in with_bodies(model.graph.node)} & _QUANTIZED)
    if found:
        raise ConfigError.at(path, f"it is already quantized (it has {', '.join(found)}); expected a float model")
    half = next(_in_half(onnx.shape_inference.infer_shapes(model).graph), None)
    if half is not None:
        raise ConfigError.at(path, f"{half} computes in half precision; expected float32: export it without")
    return model


def prepared(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model with constants folded, batch normalization in its convolutions and every shape that can be inferred.

    Raises `ConfigError` if ONNX Runtime or the opset converter rejects it.
    """
    _fix_weights(model)
    _name_nodes(model)
    version = opset_of(model)
    try:
        if version < LEAST_OPSET:
            model = onnx.version_converter.convert_version(model, LEAST_OPSET)
            _fix_weights(model)
            _name_nodes(model)
    except Exception as error:  # noqa: BLE001 (the converter raises what C++ gives it)
        raise ConfigError.at(
            path,
            f"its opset {version} is too old for per-channel weights and cannot be raised to {LEAST_OPSET}: "
            f"{plain_text(error)}; export it with opset 18",
        ) from None
    made = _folded(model, path)
    kept = {node.domain for node in with_bodies(made.graph.node)} | {""}
    imports = [one for one in made.opset_import if one.domain in kept]
    del made.opset_import[:]
    made.opset_import.extend(imports)
    _name_nodes(made)
    return onnx.shape_inference.infer_shapes(made)


def float_tensors(model: onnx.ModelProto) -> set[str]:
    """The names of float32 values in the main graph, as far as inference can tell, without weights."""
    graph = model.graph
    weights = {one.name for one in graph.initializer}
    return {
        value.name
        for value in (*graph.value_info, *graph.input, *graph.output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT and value.name not in weights
    }


def layer_nodes(model: onnx.ModelProto) -> list[LayerNode]:
    """The nodes of the main graph. Convolutions and matrix products include the weights that they read."""
    weights = {one.name: tuple(one.dims) for one in model.graph.initializer}
    shapes = weights | {
        value.name: tuple(dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim)
        for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    nodes = []
    for node in model.graph.node:
        reads = tuple(name for name in node.input if name and name not in weights)
        makes = tuple(name for name in node.output if name)
        if node.op_type not in _WEIGHTED:
            nodes.append(LayerNode(node.name, node.op_type, reads, makes))
            continue
        count = sum(math.prod(weights.get(name, (0,))) for name in node.input)
        work = work_of(node.op_type, [shapes.get(name) for name in node.input], [shapes.get(makes[0])], ())
        nodes.append(LayerNode(node.name, node.op_type, reads, makes, count, 0.0 if math.isnan(work) else work))
    return nodes


def float_weights(model: onnx.ModelProto) -> set[str]:
    """The names of float32 weights in the main graph."""
    return {one.name for one in model.graph.initializer if one.data_type == TensorProto.FLOAT}


def read_float_values(graph: onnx.GraphProto, floats: Collection[str]) -> None:
    """Let the float nodes `floats` read each other's values and inputs of the graph as they are.

    onnxruntime's quantizer gives all readers of a value the rounded one if one of them is quantized.
    """
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        for at, name in enumerate(node.input if node.name in floats else ()):
            rounded = makers.get(name)
            if rounded is None or rounded.op_type != "DequantizeLinear" or rounded.input[0] not in makers:
                continue
            value = makers[rounded.input[0]].input[0]
            if value not in makers or makers[value].name in floats:
                node.input[at] = value


def put_in_order(graph: onnx.GraphProto) -> None:
    """Put each node of the main graph after those whose results it, or a subgraph in it, reads, as ONNX requires."""
    nodes = list(graph.node)
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    read = ({name for one in with_bodies([node]) for name in one.input} for node in nodes)
    order = in_order([{makers[name] for name in names & makers.keys()} for names in read])
    del graph.node[:]
    graph.node.extend(nodes[index] for index in order)


def exposing(model: onnx.ModelProto, names: Iterable[tuple[str, int]]) -> onnx.ModelProto:
    """A copy whose outputs are these values, each with its ONNX datatype."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.output[:]
    made.graph.output.extend(helper.make_tensor_value_info(name, datatype, None) for name, datatype in names)
    return made


def _in_half(graph: onnx.GraphProto, outside: frozenset[str] = frozenset()) -> Iterator[str]:
    """Layers, in bodies too, that read a 16-bit value: they and their weights would stay as they are."""
    values = (*graph.value_info, *graph.input, *graph.output)
    half = outside.union(
        (one.name for one in graph.initializer if one.data_type in _HALF),
        (one.name for one in values if one.type.tensor_type.elem_type in _HALF),
    )
    for node in graph.node:
        if node.op_type in _WEIGHTED and not half.isdisjoint(node.input):
            yield f"{node.op_type} {node.name!r}"
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _in_half(body, half)


def _folded(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="upwell-quantize-") as folder:
        target = Path(folder, "folded.onnx")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _LOG_FATAL
        options.optimized_model_filepath = str(target)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=list(CPU))
            return onnx.load(str(target))
        except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
            raise ConfigError.at(path, f"ONNX Runtime cannot fold its constants: {plain_text(error)}") from None


def _fix_weights(model: onnx.ModelProto) -> None:
    """Make all weights constant. Old files list weights as inputs, too, so that a caller may replace them."""
    weights = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, _LEAST_IR)


def _name_nodes(model: onnx.ModelProto) -> None:
    """Give each node of the main graph a unique name, by which it can be kept float and reported."""
    nodes = model.graph.node
    names = own_names([node.name for node in nodes], [f"{node.op_type}_{at}" for at, node in enumerate(nodes)])
    for node, name in zip(nodes, names, strict=True):
        node.name = name
