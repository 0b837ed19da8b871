"""ResNet-18 (He et al. 2016) and MobileNetV2 (Sandler et al. 2018) in torch, with random weights."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from tests.models.mobilenet import STAGES as INVERTED

SIZE = 64
CLASSES = 100
Tensors = tuple[tuple[str, str, tuple[int, ...]], ...]


def conv(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after))


class _Picture(nn.Module):
    inputs: ClassVar[Tensors] = (("picture", "FP32", (-1, 3, SIZE, SIZE)),)
    outputs: ClassVar[Tensors] = (("scores", "FP32", (-1, CLASSES)),)

    def warm_up(self) -> _Picture:
        """Statistics of batches that are none of training's, so that batch normalization has something to do."""
        torch.manual_seed(0)
        with torch.no_grad():
            for _ in range(3):
                self(torch.randn(4, 3, SIZE, SIZE))
        return self.eval()


class _Basic(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv(before, after, 3, stride), conv(after, after, 3)
        self.skip = nn.Identity() if stride == 1 and before == after else conv(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


class ResNet18(_Picture):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 64, 7, 2)
        channels = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
        self.blocks = nn.Sequential(*(_Basic(*one) for one in (*channels, (512, 512, 1))))
        self.head = nn.Linear(512, CLASSES)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.stem(picture)), 3, 2, 1)
        scores: torch.Tensor = self.head(nn.functional.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))
        return scores


class _Inverted(nn.Module):
    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = before * expansion
        widening = [conv(before, wide, 1), nn.ReLU6()] if expansion > 1 else []
        self.layers = nn.Sequential(*widening, conv(wide, wide, 3, stride, wide), nn.ReLU6(), conv(wide, after, 1))
        self.is_residual = stride == 1 and before == after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return x + made if self.is_residual else made


class MobileNetV2(_Picture):
    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [conv(3, 32, 3, 2), nn.ReLU6()]
        before = 32
        for expansion, channels, count, stride in INVERTED:
            for block in range(count):
                blocks.append(_Inverted(before, channels, expansion, stride if block == 0 else 1))
                before = channels
        self.blocks = nn.Sequential(*blocks, conv(before, 1280, 1), nn.ReLU6())
        self.head = nn.Linear(1280, CLASSES)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(nn.functional.adaptive_avg_pool2d(self.blocks(picture), 1).flatten(1))
        return scores
