"""A larger TFLite model for tests: many operators, with branches that meet again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tests.unit.tflite_for_tests import Op, T, add, mul, save

_CODES, _KINDS = schema.BuiltinOperator, schema.BuiltinOptions


class _Graph:
    """Tensors and operators, one after the other; every method returns the index of its output."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.tensors: list[T] = []
        self.operators: list[Op] = []

    def tensor(
        self, shape: tuple[int, ...], data: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None = None
    ) -> int:
        datatype = "INT32" if data is not None and data.dtype == np.int32 else "FP32"
        self.tensors.append(T(f"t{len(self.tensors)}", shape, datatype, data))
        return len(self.tensors) - 1

    def weights(self, *shape: int) -> int:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return self.tensor(shape, (self._random.standard_normal(shape) * scale).astype(np.float32))

    def shape(self, tensor: int) -> tuple[int, ...]:
        return self.tensors[tensor].shape

    def apply(
        self, code: int, inputs: tuple[int, ...], shape: tuple[int, ...], kind: int = 0, options: object = None
    ) -> int:
        out = self.tensor(shape)
        self.operators.append(Op(code, inputs, (out,), kind, options))
        return out

    def conv(self, x: int, channels: int, size: int) -> int:
        options = schema.Conv2DOptionsT()
        options.strideW = options.strideH = options.dilationWFactor = options.dilationHFactor = 1
        *rows, depth = self.shape(x)
        inputs = (x, self.weights(channels, size, size, depth), self.weights(channels))
        return self.apply(_CODES.CONV_2D, inputs, (*rows, channels), _KINDS.Conv2DOptions, options)

    def depthwise(self, x: int) -> int:
        options = schema.DepthwiseConv2DOptionsT()
        options.strideW = options.strideH = options.dilationWFactor = options.dilationHFactor = 1
        options.depthMultiplier = 1
        depth = self.shape(x)[-1]
        inputs = (x, self.weights(1, 3, 3, depth), self.weights(depth))
        return self.apply(_CODES.DEPTHWISE_CONV_2D, inputs, self.shape(x), _KINDS.DepthwiseConv2DOptions, options)

    def both(self, left: int, right: int, *, times: bool) -> int:
        out = self.tensor(self.shape(left))
        self.operators.append((mul if times else add)(left, right, out))
        return out

    def same(self, code: int, x: int) -> int:
        return self.apply(code, (x,), self.shape(x))

    def dense(self, x: int, units: int) -> int:
        inputs = (x, self.weights(units, self.shape(x)[-1]), self.weights(units))
        options = schema.FullyConnectedOptionsT()
        return self.apply(_CODES.FULLY_CONNECTED, inputs, (1, units), _KINDS.FullyConnectedOptions, options)

    def mean(self, x: int) -> int:
        axes = self.tensor((2,), np.array([1, 2], np.int32))
        options = schema.ReducerOptionsT()
        return self.apply(_CODES.MEAN, (x, axes), (1, self.shape(x)[-1]), _KINDS.ReducerOptions, options)


def mobile(directory: Path, blocks: int = 8, seed: int = 0) -> Path:
    """`scores` [1, 5] of `x` FP32 [1, 8, 8, 3]: a convolution, `blocks` of nine nodes each, and a classifier.

    A block widens, filters by channel, gates with a branch of its own, narrows and adds what it was given.
    """
    graph = _Graph(seed)
    x = given = graph.tensor((1, 8, 8, 3))
    x = graph.same(_CODES.RELU, graph.conv(x, 8, 3))
    for _ in range(blocks):
        kept, wide = x, graph.conv(x, 16, 1)
        filtered = graph.same(_CODES.RELU, graph.depthwise(graph.same(_CODES.RELU, wide)))
        gate = graph.same(_CODES.LOGISTIC, graph.conv(wide, 16, 1))
        narrow = graph.conv(graph.both(filtered, gate, times=True), 8, 1)
        x = graph.both(narrow, kept, times=False)
    scores = graph.same(_CODES.TANH, graph.dense(graph.mean(x), 5))
    signature = ({"x": given}, {"scores": scores})
    return save(
        directory / f"mobile_{blocks}_{seed}.tflite", graph.tensors, graph.operators, [given], [scores], signature
    )
