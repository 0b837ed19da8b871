"""Makes `mobilenet_v2_int8.tflite`, which lies beside this script: MobileNetV2 with random weights, as static int8.

The topology is the real one (Sandler et al., 2018: inverted residuals with linear bottlenecks, batch normalization
folded, ReLU6 fused into the convolutions) at width 0.35 for pictures of 96 by 96 and 100 classes. What it answers means
nothing; how its tensors meet again behind each block is what cuts are tested on.

    python -m tests.models.make_mobilenet_tflite
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.unit.tflite_for_tests import Op, T, save
from upwell.shared.tensors import Array
from upwell.tools.quantize.model_quantization import open_float_model, quantizer_of
from upwell.tools.quantize.quantizer import QuantizeSettings

PATH = Path(__file__).with_name("mobilenet_v2_int8.tflite")

SIDE = 96
CLASSES = 100
WIDTH = 0.35
SEED = 0
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks and the stride of the first of them, as in table 2 of the paper."""

_CODES, _KINDS = schema.BuiltinOperator, schema.BuiltinOptions
_RELU6 = schema.ActivationFunctionType.RELU6
_CALIBRATION_ROWS = 32


class Net:
    """Tensors and operators, one after the other; every method returns the index of its output."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.tensors: list[T] = []
        self.operators: list[Op] = []

    def tensor(self, shape: tuple[int, ...], data: Array | None = None) -> int:
        datatype = "INT32" if data is not None and data.dtype == np.int32 else "FP32"
        self.tensors.append(T(f"t{len(self.tensors)}", shape, datatype, data))
        return len(self.tensors) - 1

    def weights(self, shape: tuple[int, ...], fan_in: int) -> int:
        """He initialization: the size of what passes through stays about the same."""
        values = self._random.standard_normal(shape) * np.sqrt(2 / fan_in)
        return self.tensor(shape, values.astype(np.float32))

    def bias(self, channels: int) -> int:
        return self.tensor((channels,), self._random.uniform(-0.1, 0.1, channels).astype(np.float32))

    def shape(self, tensor: int) -> tuple[int, ...]:
        return self.tensors[tensor].shape

    def apply(self, code: int, inputs: tuple[int, ...], shape: tuple[int, ...], kind: int, options: object) -> int:
        out = self.tensor(shape)
        self.operators.append(Op(code, inputs, (out,), kind, options))
        return out

    def conv(self, x: int, channels: int, size: int = 1, stride: int = 1, activation: int = _RELU6) -> int:
        options = schema.Conv2DOptionsT()
        options.strideW = options.strideH = stride
        options.dilationWFactor = options.dilationHFactor = 1
        options.fusedActivationFunction = activation
        _, height, width, depth = self.shape(x)
        inputs = (x, self.weights((channels, size, size, depth), size * size * depth), self.bias(channels))
        shape = (1, -(-height // stride), -(-width // stride), channels)
        return self.apply(_CODES.CONV_2D, inputs, shape, _KINDS.Conv2DOptions, options)

    def depthwise(self, x: int, stride: int) -> int:
        options = schema.DepthwiseConv2DOptionsT()
        options.strideW = options.strideH = stride
        options.dilationWFactor = options.dilationHFactor = options.depthMultiplier = 1
        options.fusedActivationFunction = _RELU6
        _, height, width, depth = self.shape(x)
        inputs = (x, self.weights((1, 3, 3, depth), 9), self.bias(depth))
        shape = (1, -(-height // stride), -(-width // stride), depth)
        return self.apply(_CODES.DEPTHWISE_CONV_2D, inputs, shape, _KINDS.DepthwiseConv2DOptions, options)

    def block(self, x: int, expansion: int, channels: int, stride: int) -> int:
        """An inverted residual: widen, filter by channel, narrow without an activation, and add where shapes allow."""
        kept, depth = x, self.shape(x)[-1]
        if expansion > 1:
            x = self.conv(x, expansion * depth)
        x = self.conv(self.depthwise(x, stride), channels, activation=0)
        if self.shape(x) != self.shape(kept):
            return x
        return self.apply(_CODES.ADD, (kept, x), self.shape(x), _KINDS.AddOptions, schema.AddOptionsT())

    def classifier(self, x: int, classes: int) -> int:
        depth = self.shape(x)[-1]
        axes = self.tensor((2,), np.array([1, 2], np.int32))
        pooled = self.apply(_CODES.MEAN, (x, axes), (1, depth), _KINDS.ReducerOptions, schema.ReducerOptionsT())
        weights = (pooled, self.weights((classes, depth), depth), self.bias(classes))
        options = schema.FullyConnectedOptionsT()
        scores = self.apply(_CODES.FULLY_CONNECTED, weights, (1, classes), _KINDS.FullyConnectedOptions, options)
        softmax = schema.SoftmaxOptionsT()
        softmax.beta = 1.0
        return self.apply(_CODES.SOFTMAX, (scores,), (1, classes), _KINDS.SoftmaxOptions, softmax)


def channels_of(channels: int) -> int:
    """At this width: a multiple of eight, and not below nine tenths of what the width asks for."""
    wanted = channels * WIDTH
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8


def write_float(folder: Path) -> Path:
    """The float model: `scores` FP32 [1, 100] of `image` FP32 [1, 96, 96, 3]."""
    net = Net(SEED)
    given = net.tensor((1, SIDE, SIDE, 3))
    x = net.conv(given, channels_of(32), size=3, stride=2)
    for expansion, channels, blocks, stride in STAGES:
        for block in range(blocks):
            x = net.block(x, expansion, channels_of(channels), stride if block == 0 else 1)
    scores = net.classifier(net.conv(x, 1280), CLASSES)
    signature = ({"image": given}, {"scores": scores})
    return save(folder / "mobilenet_v2.tflite", net.tensors, net.operators, [given], [scores], signature)


def quantized(path: Path) -> bytes:
    """The float model at `path` as static int8, calibrated on seeded noise, as the bytes of its file."""
    model = open_float_model(path)
    quantizer = quantizer_of(model, QuantizeSettings())
    random = np.random.default_rng(SEED)
    shapes = {one.name: one.shape for one in model.inputs}
    quantizer.calibrate(
        {name: random.random(shape, np.float32) for name, shape in shapes.items()} for _ in range(_CALIBRATION_ROWS)
    )
    return quantizer.quantized(())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PATH.write_bytes(quantized(write_float(Path(scratch))))
