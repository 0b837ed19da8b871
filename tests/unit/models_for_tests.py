"""Small ONNX models for tests, made in milliseconds and readable by ONNX Runtime 1.20 and later."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.unit.weights_for_tests import linear_weights as linear_weights  # also for those who import it from here
from upwell.shared.partition.split.onnx_halves import ELEMENT_TYPES
from upwell.shared.tensors import Array

OPSET = 17
IR_VERSION = 8

_ONNX_TYPES = {**ELEMENT_TYPES, "BYTES": TensorProto.STRING}

Size = int | str | None
"""A dimension: fixed, varying under a name, or varying without one."""


def tensor(name: str, shape: Sequence[Size], datatype: str = "FP32") -> Any:
    """The declaration of an input or output."""
    return helper.make_tensor_value_info(name, _ONNX_TYPES[datatype], list(shape))


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: dict[str, Array] | None = None,
    *,
    domains: Sequence[str] = (),
) -> Path:
    """Write a model of these nodes; `constants` become initializers."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializers)
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    path.write_bytes(model.SerializeToString())
    return path


def identity(directory: Path, datatype: str = "FP32", shape: Sequence[Size] = ("rows", 2)) -> Path:
    """`y = x` for any datatype."""
    node = helper.make_node("Identity", ["x"], ["y"], name="copy")
    path = directory / f"identity_{datatype.lower()}.onnx"
    return save(path, [node], [tensor("x", shape, datatype)], [tensor("y", shape, datatype)])


def linear(directory: Path, seed: int = 0, *, rows: int | None = None, features: int = 8, classes: int = 3) -> Path:
    """`scores = x @ weights + bias`, x FP32 [rows, features]; `rows` None varies."""
    weights, bias = linear_weights(seed, features, classes)
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["product"], name="matmul"),
        helper.make_node("Add", ["product", "bias"], ["scores"], name="add"),
    ]
    leading: Size = "rows" if rows is None else rows
    path = directory / f"linear_{seed}_{leading}x{features}x{classes}.onnx"
    inputs, outputs = [tensor("x", [leading, features])], [tensor("scores", [leading, classes])]
    return save(path, nodes, inputs, outputs, {"weights": weights, "bias": bias})


def refer(made: Any, location: str) -> Any:
    """Make a tensor message refer to a file instead of holding its numbers."""
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    del made.external_data[:]
    made.external_data.add(key="offset", value="0")
    made.external_data.add(key="location", value=location)
    return made


def linear_elsewhere(directory: Path, location: str) -> Path:
    """`linear` with its weights in the file at `location`, which is not written."""
    path = linear(directory)
    model = onnx.load(str(path))
    refer(model.graph.initializer[0], location)
    path.write_bytes(model.SerializeToString())
    return path


def branch_elsewhere(outer: str, inner: str) -> bytes:
    """A model with a weight in the file `outer` and another, in both branches of an If, in the file `inner`."""
    weight, constant = (numpy_helper.from_array(np.ones(4, np.float32), name) for name in ("w", "c"))
    node = helper.make_node("Constant", [], ["c"], value=refer(constant, inner))
    branch = helper.make_graph([node], "branch", [], [tensor("c", [4])])
    choice = helper.make_node("If", ["choice"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([choice], "graph", [], [tensor("y", [4])], [refer(weight, outer)])
    return bytes(helper.make_model(graph, ir_version=IR_VERSION).SerializeToString())


def two_in_two_out(directory: Path) -> Path:
    """`sum = a + b`, `product = a * b`, all FP32 [rows, 3]."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"], name="add"),
        helper.make_node("Mul", ["a", "b"], ["product"], name="mul"),
    ]
    inputs, outputs = ([tensor(name, ["rows", 3]) for name in names] for names in (("a", "b"), ("sum", "product")))
    return save(directory / "two_in_two_out.onnx", nodes, inputs, outputs)


def slow(directory: Path, *, size: int = 512, layers: int = 20) -> Path:
    """`y = x` times `layers` rotations, x FP32 [rows, size]: 2 * rows * layers * size² operations per run.

    The weights are one shared orthogonal matrix, so numbers neither grow nor vanish.
    """
    matrix = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0].astype(np.float32)
    names = ["x", *(f"h{layer}" for layer in range(1, layers)), "y"]
    nodes = [
        helper.make_node("MatMul", [before, "matrix"], [after], name=f"layer_{after}")
        for before, after in itertools.pairwise(names)
    ]
    path = directory / f"slow_{layers}x{size}.onnx"
    return save(path, nodes, [tensor("x", ["rows", size])], [tensor("y", ["rows", size])], {"matrix": matrix})


def fatal(directory: Path) -> Path:
    """`y = x`, FP32 [1, 2]; on x86 a run with a number from -2 down to above -3 ends the process (see
    `write_crashing`)."""
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT32),
        helper.make_node("Add", ["whole", "one"], ["divisor"]),
        helper.make_node("Div", ["least", "divisor"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["number", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    constants: dict[str, Array] = {
        "one": np.ones((1, 2), np.int32),
        "least": np.full((1, 2), -(2**31), np.int32),
        "zero": np.zeros((1, 2), np.float32),
    }
    return save(directory / "fatal.onnx", nodes, [tensor("x", [1, 2])], [tensor("y", [1, 2])], constants)


def endless(directory: Path, rows: Size = "rows", most: float = 0.0) -> Path:
    """`y = x`, FP32 [rows, 2], for numbers up to `most`; a run with any other number never ends."""
    steps = [helper.make_node("Identity", ["go"], ["goes_on"]), helper.make_node("Identity", ["value"], ["next"])]
    taken = [tensor("step", [], "INT64"), tensor("go", [], "BOOL"), tensor("value", [rows, 2])]
    body = helper.make_graph(steps, "body", taken, [tensor("goes_on", [], "BOOL"), tensor("next", [rows, 2])])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Greater", ["largest", "most"], ["above"]),
        helper.make_node("Loop", ["", "above", "x"], ["y"], body=body),
    ]
    limit = {"most": np.array(most, np.float32)}
    return save(directory / "endless.onnx", nodes, [tensor("x", [rows, 2])], [tensor("y", [rows, 2])], limit)


def slow_picture(folder: Path, *, layers: int = 20, side: int = 128, width: int = 512) -> Path:
    """A bundle in `folder` of a classifier whose input is a picture, as slow as `layers` say: its model's file.

    The picture, FP32 [1, 3, side, side], is taken as rows of `width` numbers, which are rotated `layers` times; their
    mean gives 10 logits. That is 6 * side² * width * layers operations.
    """
    matrix = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0].astype(np.float32)
    names = [f"h{layer}" for layer in range(layers + 1)]
    nodes = [
        helper.make_node("Reshape", ["image", "shape"], [names[0]]),
        *(helper.make_node("MatMul", [before, "matrix"], [after]) for before, after in itertools.pairwise(names)),
        helper.make_node("ReduceMean", [names[-1]], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Slice", ["mean", "first", "last", "axis"], ["y"]),
    ]
    whole = {"shape": [1, -1, width], "first": [0], "last": [10], "axis": [1]}
    constants = {"matrix": matrix} | {name: np.array(numbers, np.int64) for name, numbers in whole.items()}
    (folder / "model.yaml").write_text(
        "version: 1\n"
        "signature:\n"
        "  inputs: {image: {kind: image}}\n"
        "  outputs: {y: {kind: logits}}\n"
        "pre:\n"
        "  - decode: image\n"
        f"  - resize: {{to: [{side}, {side}], filter: bilinear}}\n"
        "  - normalize: {scale: 0.00392156862745098}\n"
        "  - layout: NCHW\n"
    )
    inputs, outputs = [tensor("image", [1, 3, side, side])], [tensor("y", [1, 10])]
    return save(folder / "model.onnx", nodes, inputs, outputs, constants)


def with_ir_version(path: Path, ir_version: int) -> Path:
    """A copy of the model beside it that claims another IR version."""
    model = onnx.load(str(path))
    model.ir_version = ir_version
    copy = path.with_name(f"{path.stem}_ir{ir_version}.onnx")
    copy.write_bytes(model.SerializeToString())
    return copy
