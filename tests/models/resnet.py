"""ResNet-50 with random weights in ONNX: the topology of He et al. (2016), batch normalization folded."""

from __future__ import annotations

import onnx

from tests.models.onnx_layers import Layers

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Channels in the middle of a block, blocks and the stride of the first of them: table 1 of the paper."""

_EXPANSION = 4


def build_resnet50(
    width: float = 1.0, size: int = 224, seed: int = 0, *, classes: int = 1000, dynamic_batch: bool = False
) -> onnx.ModelProto:
    """`picture` FP32 [rows, 3, size, size] to `scores` [rows, classes]; one row unless the batch is dynamic."""
    net = Layers(seed, size, dynamic_batch)
    x = net.max_pool(net.conv("picture", round(64 * width), 7, stride=2, act="relu"))
    for channels, blocks, stride in STAGES:
        for block in range(blocks):
            x = _bottleneck(net, x, round(channels * width), stride if block == 0 else 1)
    return net.model("resnet50", net.classify(x, classes), classes)


def _bottleneck(net: Layers, x: str, channels: int, stride: int) -> str:
    """As torchvision has it, with the stride at the convolution of 3 by 3."""
    y = net.conv(x, channels, 1, act="relu")
    y = net.conv(y, channels, stride=stride, act="relu")
    y = net.conv(y, channels * _EXPANSION, 1, gain=0.25)
    is_same = stride == 1 and net.channels(x) == channels * _EXPANSION
    return net.add(x if is_same else net.conv(x, channels * _EXPANSION, 1, stride=stride, gain=1.0), y, act="relu")
