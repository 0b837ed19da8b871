"""Networks written layer by layer as ONNX graphs, with seeded random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class Layers:
    """A network for pictures, FP32 NCHW [rows, 3, size, size]; every layer takes and gives the name of a tensor.

    Weights are drawn so that what passes through neither grows nor vanishes (He et al., 2015): a variance of
    `gain` / fan-in, 2 before a ReLU.
    """

    def __init__(self, seed: int, size: int, dynamic_batch: bool, *, channels: int = 3) -> None:
        self._random = np.random.default_rng(seed)
        self._rows: int | str = "rows" if dynamic_batch else 1
        self._input = ("picture", (channels, size, size))
        self._channels = {"picture": channels}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        act: str = "",
        gain: float = 2,
    ) -> str:
        """A convolution that keeps the size (but for its stride), then Clip to 0..6 or Relu if `act` says so."""
        name = self._name("conv")
        fan_in = self._channels[x] // groups * kernel * kernel
        shape = (channels, self._channels[x] // groups, kernel, kernel)
        inputs = [x, self._normal(f"{name}.weight", shape, gain / fan_in), self._normal(f"{name}.bias", channels, 0.01)]
        padding = [kernel // 2] * 4
        y = self._add(
            "Conv", inputs, name, channels, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=padding, group=groups
        )
        if act == "relu6":
            return self._add("Clip", [y, self._constant("zero", 0.0), self._constant("six", 6.0)], "", channels)
        return self._add("Relu", [y], "", channels) if act == "relu" else y

    def add(self, x: str, y: str, act: str = "") -> str:
        """The sum, then Relu if `act` says so."""
        made = self._add("Add", [x, y], "", self._channels[x])
        return self._add("Relu", [made], "", self._channels[x]) if act == "relu" else made

    def max_pool(self, x: str) -> str:
        """The largest of each 3 by 3, at half the size."""
        return self._add("MaxPool", [x], "", self._channels[x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def classify(self, x: str, classes: int) -> str:
        """The mean over the picture, then scores [rows, classes]."""
        flat = self._add("Flatten", [self._add("GlobalAveragePool", [x], "", self._channels[x])], "", self._channels[x])
        weights = self._normal("scores.weight", (classes, self._channels[x]), 1 / self._channels[x])
        inputs = [flat, weights, self._normal("scores.bias", classes, 0.01)]
        return self._add("Gemm", inputs, "scores", classes, transB=1)

    def channels(self, x: str) -> int:
        """Of a tensor."""
        return self._channels[x]

    def model(self, name: str, scores: str, classes: int) -> onnx.ModelProto:
        """The network as a model that takes `picture` and gives `scores`, with the shapes of all tensors between."""
        picture, size = self._input
        inputs = [helper.make_tensor_value_info(picture, TensorProto.FLOAT, [self._rows, *size])]
        outputs = [helper.make_tensor_value_info(scores, TensorProto.FLOAT, [self._rows, classes])]
        graph = helper.make_graph(self._nodes, name, inputs, outputs, self._weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="upwell tests")
        return onnx.shape_inference.infer_shapes(model)

    def _name(self, kind: str) -> str:
        return f"{kind}{len(self._nodes)}"

    def _add(self, operator: str, inputs: list[str], name: str, channels: int, **attributes: Any) -> str:
        output = name or self._name(operator.lower())
        self._nodes.append(helper.make_node(operator, inputs, [output], name=f"{output}/{operator}", **attributes))
        self._channels[output] = channels
        return output

    def _normal(self, name: str, shape: tuple[int, ...] | int, variance: float) -> str:
        values = self._random.standard_normal(shape, np.float32) * np.float32(np.sqrt(variance))
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def _constant(self, name: str, value: float) -> str:
        if all(one.name != name for one in self._weights):
            self._weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name
