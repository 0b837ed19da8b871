"""ResNet-50 for torch with random weights: the topology of He et al. (2016), for engine torch and for a bare loop."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from tests.models.resnet import STAGES

_EXPANSION = 4
_MEAN, _SPREAD = 114.0, 58.0
"""Of the pixels of photographs, 0 to 255, about; one for all colours, since nothing is recognized here."""


def _convolution(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out))


class _Bottleneck(nn.Module):
    """1 by 1, 3 by 3 and 1 by 1, with the stride at the 3 by 3, beside the input itself or a projection of it."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        channels_out = channels * _EXPANSION
        self.reduce = _convolution(channels_in, channels, 1)
        self.conv = _convolution(channels, channels, 3, stride)
        self.expand = _convolution(channels, channels_out, 1)
        is_same = stride == 1 and channels_in == channels_out
        self.beside = nn.Identity() if is_same else _convolution(channels_in, channels_out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, channels_in, H, W] to [N, 4 channels, H / stride, W / stride]."""
        y = functional.relu(self.conv(functional.relu(self.reduce(x))))
        return functional.relu(self.expand(y) + self.beside(x))


class ResNet50(nn.Module):
    """Pixels UINT8 [N, 224, 224, 3] to scores FP32 [N, 1000]; computes in the type of its weights."""

    inputs: ClassVar = (("pixels", "UINT8", (-1, 224, 224, 3)),)
    outputs: ClassVar = (("scores", "FP32", (-1, 1000)),)

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolution(3, 64, 7, 2)
        blocks: list[nn.Module] = []
        channels_in = 64
        for channels, count, stride in STAGES:
            for block in range(count):
                blocks.append(_Bottleneck(channels_in, channels, stride if block == 0 else 1))
                channels_in = channels * _EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels_in, 1000)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave this form out

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Scores of the pixels."""
        x = (pixels.permute(0, 3, 1, 2).to(self.head.weight.dtype) - _MEAN) / _SPREAD
        x = functional.max_pool2d(functional.relu(self.stem(x)), 3, 2, 1)
        scores: torch.Tensor = self.head(self.blocks(x).mean((2, 3)))
        return scores


class SmallResNet50(ResNet50):
    """The same on pixels [N, 64, 64, 3], for a first look."""

    inputs: ClassVar = (("pixels", "UINT8", (-1, 64, 64, 3)),)


def seeded(network: type[ResNet50]) -> ResNet50:
    """The network with seeded random weights, which keep the size of what flows through it."""
    torch.manual_seed(0)
    return network().eval()
