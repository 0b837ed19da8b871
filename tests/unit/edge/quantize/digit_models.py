"""A network that reads scikit-learn's digits, trained in a few seconds, as float32 ONNX and TFLite files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema
from onnx import helper
from torch import nn
from torch.nn import functional

from tests.unit import models_for_tests as onnx_models
from tests.unit.tflite_for_tests import Op, T
from tests.unit.tflite_for_tests import save as save_tflite
from upwell.shared.tensors import Array

CHANNELS = 8
TRAINED = 1200


class _Net(nn.Module):
    """float32 [n, 1, 8, 8] in 0..1 -> logits [n, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.head = nn.Linear(CHANNELS * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = functional.max_pool2d(functional.relu(self.first(x)), 2)
        quarter = functional.max_pool2d(functional.relu(self.second(half)), 2)
        logits: torch.Tensor = self.head(quarter.flatten(1))
        return logits


@cache
def digits() -> tuple[Array, Array]:
    """Pictures float32 [n, 1, 8, 8], white on black turned to black on white, and labels int64 [n]."""
    from sklearn.datasets import load_digits  # takes a second

    loaded = load_digits()
    order = np.random.default_rng(0).permutation(len(loaded.target))
    pictures = (1 - loaded.images / 16).astype(np.float32)[:, None]
    return pictures[order], loaded.target[order].astype(np.int64)


@cache
def weights() -> Mapping[str, Array]:
    """The trained weights by name, as torch lays them out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = _Net()
    pictures, labels = (torch.from_numpy(array[:TRAINED]) for array in digits())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for _ in range(10):
        for batch in torch.randperm(TRAINED).split(64):  # type: ignore[no-untyped-call]  # torch's
            optimizer.zero_grad()
            functional.cross_entropy(net(pictures[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
    torch.set_num_threads(threads)
    return MappingProxyType({name: tensor.detach().numpy() for name, tensor in net.state_dict().items()})


def with_outlier(factor: float) -> dict[str, Array]:
    """The same function with one channel between the convolutions `factor` times as large as the others."""
    changed = {name: array.copy() for name, array in weights().items()}
    for name in ("first.weight", "first.bias"):
        changed[name][0] *= factor
    changed["second.weight"][:, 0] /= factor
    return changed


def write_onnx(path: Path, values: Mapping[str, Array] | None = None) -> Path:
    """`x` FP32 [n, 1, 8, 8] -> `logits` FP32 [n, 10]."""
    nodes = [
        helper.make_node("Conv", ["x", "first.weight", "first.bias"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["ar"], name="first_relu"),
        helper.make_node("MaxPool", ["ar"], ["ap"], name="first_pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["ap", "second.weight", "second.bias"], ["b"], name="second", pads=[1] * 4),
        helper.make_node("Relu", ["b"], ["br"], name="second_relu"),
        helper.make_node("MaxPool", ["br"], ["bp"], name="second_pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["bp"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["logits"], name="head", transB=1),
    ]
    inputs, outputs = [onnx_models.tensor("x", ["n", 1, 8, 8])], [onnx_models.tensor("logits", ["n", 10])]
    return onnx_models.save(path, nodes, inputs, outputs, dict(values or weights()))


def write_tflite(path: Path, *, signature: bool = True) -> Path:
    """`x` FP32 [n, 8, 8, 1] -> `logits` FP32 [n, 10]; the same function."""
    value = weights()
    code, kind = schema.BuiltinOperator, schema.BuiltinOptions
    head = value["head.weight"].reshape(10, CHANNELS, 2, 2).transpose(0, 2, 3, 1).reshape(10, -1)
    tensors = [
        T("x", (-1, 8, 8, 1)),
        *(
            T("w1", (CHANNELS, 3, 3, 1), data=_hwc(value["first.weight"])),
            T("b1", (CHANNELS,), data=value["first.bias"]),
        ),
        T("a", (-1, 8, 8, CHANNELS)),
        T("ap", (-1, 4, 4, CHANNELS)),
        T("w2", (CHANNELS, 3, 3, CHANNELS), data=_hwc(value["second.weight"])),
        T("b2", (CHANNELS,), data=value["second.bias"]),
        T("b", (-1, 4, 4, CHANNELS)),
        T("bp", (-1, 2, 2, CHANNELS)),
        T("shape", (2,), "INT32", np.array([-1, CHANNELS * 4], np.int32)),
        T("f", (-1, CHANNELS * 4)),
        T("w3", (10, CHANNELS * 4), data=head),
        T("b3", (10,), data=value["head.bias"]),
        T("logits", (-1, 10)),
    ]
    reshape, dense = schema.ReshapeOptionsT(), schema.FullyConnectedOptionsT()
    reshape.newShape = [-1, CHANNELS * 4]
    operators = [
        Op(code.CONV_2D, (0, 1, 2), (3,), kind.Conv2DOptions, _convolution()),
        Op(code.MAX_POOL_2D, (3,), (4,), kind.Pool2DOptions, _pool()),
        Op(code.CONV_2D, (4, 5, 6), (7,), kind.Conv2DOptions, _convolution()),
        Op(code.MAX_POOL_2D, (7,), (8,), kind.Pool2DOptions, _pool()),
        Op(code.RESHAPE, (8, 9), (10,), kind.ReshapeOptions, reshape),
        Op(code.FULLY_CONNECTED, (10, 11, 12), (13,), kind.FullyConnectedOptions, dense),
    ]
    return save_tflite(path, tensors, operators, [0], [13], ({"x": 0}, {"logits": 13}) if signature else None)


def _hwc(convolution: Array) -> Array:
    return np.ascontiguousarray(convolution.transpose(0, 2, 3, 1))


def _convolution() -> schema.Conv2DOptionsT:
    options = schema.Conv2DOptionsT()
    options.padding, options.strideW, options.strideH = schema.Padding.SAME, 1, 1
    options.fusedActivationFunction = schema.ActivationFunctionType.RELU
    return options


def _pool() -> schema.Pool2DOptionsT:
    options = schema.Pool2DOptionsT()
    options.padding = schema.Padding.VALID
    options.strideW = options.strideH = options.filterWidth = options.filterHeight = 2
    return options


def save_data(path: Path, rows: slice = slice(TRAINED, None), *, labels: bool = True, last: bool = False) -> Path:
    """Digits that training has not seen, named as the models' input; `last` puts the channel last, as TFLite has it."""
    pictures, classes = (array[rows] for array in digits())
    arrays: dict[str, Any] = {
        "x": pictures.transpose(0, 2, 3, 1) if last else pictures,
        **({"labels": classes} if labels else {}),
    }
    np.savez(path, **arrays)
    return path
