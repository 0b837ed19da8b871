"""The torch networks behind the programs of these tests; only what exports them needs torch."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional

from upwell.cloud.engines.torch.demo import LargeNet, Tensors


class LargeNetTail(LargeNet):
    """`LargeNet` from its second rectifier on, with its weights; the input is named as in the ONNX model."""

    inputs: ClassVar[Tensors] = (("relu_1", "FP32", (-1, 48, 8, 8)),)

    def forward(self, relu_1: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of `relu_1` [N, 48, 8, 8]."""
        features = functional.relu(relu_1 + self.second(functional.relu(self.first(relu_1))))
        features = functional.relu(self.wide(features)).mean((2, 3))
        logits: torch.Tensor = self.head(features)
        return logits


class Several(torch.nn.Module):
    """Two inputs and two outputs, one of each of 64 bits; a tied weight, a table, and weights too many."""

    inputs: ClassVar[Tensors] = (("x", "FP32", (-1, 4)), ("place", "INT64", (-1,)))
    outputs: ClassVar[Tensors] = (("best", "INT64", (-1,)), ("y", "FP32", (-1, 4)))

    table: torch.Tensor

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.first = torch.nn.Linear(size, size)
        self.again = torch.nn.Linear(size, size)
        self.again.weight = self.first.weight
        self.unused = torch.nn.Linear(size, size)
        self.register_buffer("table", torch.arange(2.0 * size).reshape(2, size), persistent=False)

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.again(torch.tanh(self.first(x))) + self.table[place]
        return y.argmax(1), y


class Branching(Several):
    """What tracing cannot follow: which way it goes hangs on a value."""

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(-x if bool(x.sum() > 0) else x, place)


class Leaning(Several):
    """What answers each row by how it compares with the others of its batch."""

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best, y = super().forward(x, place)
        return best, y - y.mean(0, keepdim=True)


class Noisy(torch.nn.Module):
    """What answers in another way each time, so that no program agrees with it."""

    inputs: ClassVar[Tensors] = (("x", "FP32", (-1, 4)),)
    outputs: ClassVar[Tensors] = (("y", "FP32", (-1, 4)),)

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.factor * self.count
