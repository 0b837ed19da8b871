"""Light graphs of the `onnx` package: published networks, here with seeded random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from upwell.shared.tensors import Array

_FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
_SCORES_SPREAD = 2.0
"""Standard deviation of the scores before the Softmax: none is near 1, so that an error shows behind it, too."""

LIGHT_ZOO = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
)
"""Not VGG-19 and ZFNet-512, chains of operators that AlexNet has, nor Inception v1, whose branches v2 has as well."""


def light_zoo_model(name: str, seed: int = 0) -> onnx.ModelProto:
    """One of the light graphs: FP32 [1, 3, 224, 224] to 1,000 probabilities, of IR version 3 and opset 9 as there.

    Its file makes all weights the same by ConstantOfShape. Here they are initializers, drawn so that what passes
    through neither grows nor vanishes.
    """
    model = onnx.load(str(_FOLDER / f"light_{name}.onnx"))
    roles = {name: role for node in model.graph.node for name, role in _roles(node).items()}
    for node in reversed(model.graph.node):  # weights that are brought into shape first
        if node.op_type in ("Unsqueeze", "Reshape") and node.output[0] in roles:
            roles[node.input[0]] = roles[node.output[0]]
    random = np.random.default_rng(seed)
    shapes = dict(_shapes(model))
    drawn = {name: _draw(random, roles[name], shape) for name, shape in shapes.items() if name in roles}
    _replace(model, drawn)
    _temper(model, drawn)
    return model


def _roles(node: onnx.NodeProto) -> dict[str, str]:
    """By operand: what it is for."""
    names = list(node.input)
    if node.op_type == "BatchNormalization":
        return dict(zip(names[1:], ("scale", "shift", "shift", "scale"), strict=True))
    if node.op_type in ("Conv", "Gemm"):
        return dict(zip(names[1:], (node.op_type, "shift"), strict=False))
    return {"Mul": {names[-1]: "scale"}, "Add": {names[-1]: "shift"}}.get(node.op_type, {})


def _shapes(model: onnx.ModelProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of every weight, in the order of the graph, wherever the file has it."""
    values = {one.name: one for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            yield node.output[0], tuple(int(size) for size in numpy_helper.to_array(values[node.input[0]]))
    for one in model.graph.initializer:
        if one.data_type == onnx.TensorProto.FLOAT:
            yield one.name, tuple(one.dims)


def _draw(random: np.random.Generator, role: str, shape: tuple[int, ...]) -> Array:
    if role == "scale":
        return random.uniform(0.8, 1.2, shape).astype(np.float32)
    if role == "shift":
        return random.normal(0, 0.1, shape).astype(np.float32)
    drawn: Array = random.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
    return drawn


def _replace(model: onnx.ModelProto, drawn: dict[str, Array]) -> None:
    graph = model.graph
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {name for node in nodes for name in node.input}
    kept = [one for one in graph.initializer if one.name in used and one.name not in drawn]
    declared = {one.name for one in graph.input}
    inputs = [one for one in graph.input if one.name in used]
    for name, array in drawn.items():
        kept.append(numpy_helper.from_array(array, name))
        if name not in declared:  # IR version 3 asks for it
            inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape))
    for field in ("node", "initializer", "input"):
        graph.ClearField(field)
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    graph.input.extend(inputs)


def _temper(model: onnx.ModelProto, drawn: dict[str, Array]) -> None:
    """Scale the last layer with weights so that its scores have the spread wanted."""
    last = next(node for node in reversed(model.graph.node) if node.op_type in ("Conv", "Gemm"))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(onnx.ValueInfoProto(name=last.output[0]))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    picture = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    scores = session.run([last.output[0]], {session.get_inputs()[0].name: picture})[0]
    for one in model.graph.initializer:
        if one.name in last.input[1:]:
            one.CopyFrom(numpy_helper.from_array(drawn[one.name] * np.float32(_SCORES_SPREAD / scores.std()), one.name))
