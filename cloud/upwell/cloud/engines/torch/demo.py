"""The torch classes of the demo's large networks, for `upwell serve` with `engine: torch`.

A class declares its tensors, since a safetensors file has only weights: `inputs` and
`outputs` are (name, OIP dtype, shape) with -1 for the batch.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

Tensors = tuple[tuple[str, str, tuple[int, ...]], ...]

TILE_PX = 32
ROWS, COLUMNS = 6, 10


def _normalized_conv(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out))


class LargeNet(nn.Module):
    """One grey digit, float32 NHWC [N, 32, 32, 1] in 0..1, to logits [N, 10]."""

    inputs: ClassVar[Tensors] = (("x", "FP32", (-1, TILE_PX, TILE_PX, 1)),)
    outputs: ClassVar[Tensors] = (("logits", "FP32", (-1, 10)),)

    def __init__(self) -> None:
        super().__init__()
        self.stem = _normalized_conv(1, 24, stride=2)
        self.down = _normalized_conv(24, 48, stride=2)
        self.first = _normalized_conv(48, 48)
        self.second = _normalized_conv(48, 48)
        self.wide = _normalized_conv(48, 96, stride=2)
        self.head = nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of `x` [N, 32, 32, 1]."""
        return self._classify(x.permute(0, 3, 1, 2))

    def _classify(self, tiles: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.down(functional.relu(self.stem(tiles))))
        features = functional.relu(features + self.second(functional.relu(self.first(features))))
        features = functional.relu(self.wide(features)).mean((2, 3))
        logits: torch.Tensor = self.head(features)
        return logits


class LargePageNet(LargeNet):
    """A page of 6 x 10 digits, float32 NHWC [N, 192, 320, 1] in 0..1, to logits [N, 60, 10], cells row by row.

    It has the weights of `LargeNet`, name by name, and applies them to every cell.
    """

    inputs: ClassVar[Tensors] = (("x", "FP32", (-1, ROWS * TILE_PX, COLUMNS * TILE_PX, 1)),)
    outputs: ClassVar[Tensors] = (("logits", "FP32", (-1, ROWS * COLUMNS, 10)),)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, 60, 10] of `x` [N, 192, 320, 1]."""
        grid = x.reshape(-1, ROWS, TILE_PX, COLUMNS, TILE_PX).permute(0, 1, 3, 2, 4)
        return self._classify(grid.reshape(-1, 1, TILE_PX, TILE_PX)).reshape(-1, ROWS * COLUMNS, 10)
