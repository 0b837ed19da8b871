"""MobileNetV2 with random weights in ONNX: the topology of Sandler et al. (2018), batch normalization folded."""

from __future__ import annotations

import onnx

from tests.models.onnx_layers import Layers

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks and the stride of the first of them: table 2 of the paper."""


def build_mobilenet_v2(
    width: float = 1.0, size: int = 224, seed: int = 0, *, classes: int = 1000, dynamic_batch: bool = False
) -> onnx.ModelProto:
    """`picture` FP32 [rows, 3, size, size] to `scores` [rows, classes]; one row unless the batch is dynamic."""
    net = Layers(seed, size, dynamic_batch)
    x = net.conv("picture", _scaled(32, width), stride=2, act="relu6")
    for expansion, channels, blocks, stride in STAGES:
        for block in range(blocks):
            x = _inverted_residual(net, x, expansion, _scaled(channels, width), stride if block == 0 else 1)
    x = net.conv(x, _scaled(1280, max(1.0, width)), 1, act="relu6")
    return net.model("mobilenet_v2", net.classify(x, classes), classes)


def _inverted_residual(net: Layers, x: str, expansion: int, channels: int, stride: int) -> str:
    wide = net.channels(x) * expansion
    y = net.conv(x, wide, 1, act="relu6") if expansion > 1 else x
    y = net.conv(y, wide, stride=stride, groups=wide, act="relu6")
    is_residual = stride == 1 and net.channels(x) == channels
    y = net.conv(y, channels, 1, gain=0.5 if is_residual else 1.0)
    return net.add(x, y) if is_residual else y


def _scaled(channels: float, width: float) -> int:
    """Channels at a width, as a multiple of 8 that loses at most a tenth of them."""
    rounded = max(8, int(channels * width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels * width else rounded
