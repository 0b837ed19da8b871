"""A small residual CNN for handwritten digits with random weights: two tensors cross some of its cuts."""

from __future__ import annotations

import onnx

from tests.models.onnx_layers import Layers

SIZE = 8
CLASSES = 10


def build_residual_digits(channels: int = 16, seed: int = 0, *, dynamic_batch: bool = False) -> onnx.ModelProto:
    """`picture` FP32 [rows, 1, 8, 8] to `scores` [rows, 10]; one row unless the batch is dynamic."""
    net = Layers(seed, SIZE, dynamic_batch, channels=1)
    x = net.conv("picture", channels, act="relu")
    for wide in (channels, 2 * channels):
        if wide != channels:
            x = net.conv(x, wide, stride=2, act="relu")
        y = net.conv(x, wide, groups=wide, act="relu")
        x = net.add(x, net.conv(y, wide, 1, gain=0.5), act="relu")
    return net.model("residual_digits", net.classify(x, CLASSES), CLASSES)
