"""The loop's next model: the device's network, trained on the old data and the cases, written as ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from pictures import nchw, split_digits
from rich.console import Console
from training import SEED, EdgeNet, train

from upwell.shared.tensors import Array

EPOCHS = 60
OPSET, IR_VERSION = 18, 10
CASES_COUNT = 2
"""A case counts as much as this many of the old pictures: it shows what requests look like today."""


def train_edge(images: Array, labels: Array) -> EdgeNet:
    """Train on uint8 [n, 8, 8] pictures of cases with their labels, and on the first model's data."""
    split = split_digits(SEED)
    pictures = np.concatenate([split.train_images, *[images] * CASES_COUNT])
    truth = np.concatenate([split.train_labels, *[labels.astype(np.int64)] * CASES_COUNT])
    return train(EdgeNet, pictures, truth, to_tensor=nchw, zoom=1, epochs=EPOCHS, console=Console(stderr=True))


def write_edge_onnx(net: EdgeNet, path: Path) -> None:
    """Write it as float32 ONNX, `x` [batch, 1, 8, 8] to `logits` [batch, 10]; node by node, without an exporter."""
    weights = {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}
    nodes = [
        helper.make_node("Conv", ["x", "first.weight", "first.bias"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second.weight", "second.bias"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
