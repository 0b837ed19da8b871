"""Programs of torch.export as files, and their halves as torch runs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.torch.torch_engine import TorchEngine
from upwell.shared.partition.split.model_halves import ModelHalf
from upwell.shared.tensors import Array

BRANCHES = Path(__file__).with_name("branches.pt2")
"""`Branches` as torch 2.13 writes it; `python -m tests.models.torch_programs` makes it again."""


class Branches(nn.Module):
    """A residual network with what exporters write: operators in place, views that name the rows, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.norm, self.act = nn.BatchNorm2d(2), nn.ReLU(inplace=True)
        self.dense, self.again = nn.Linear(32, 32), nn.Linear(32, 32)
        self.again.weight = self.dense.weight
        self.drop, self.head = nn.Dropout(), nn.Linear(32, 10)
        self.shift: torch.Tensor
        self.register_buffer("shift", torch.linspace(0, 1, 10))

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.act(self.first(picture))
        left, right = (x + self.norm(self.second(x))).chunk(2, dim=1)
        x = nn.functional.max_pool2d(torch.cat([right, left], dim=1), 2)
        x = x.view(x.size(0), -1)
        x = self.drop(torch.tanh(self.again(nn.functional.gelu(self.dense(x)))))
        scores = self.head(x) + self.shift * torch.arange(10).float()
        return scores, scores.argmax(1)


def saved(module: nn.Module, examples: tuple[torch.Tensor, ...], path: Path, rows: bool = True) -> Path:
    """The module as `torch.export.save` writes it."""
    open_rows = torch.export.Dim("rows")
    shapes = tuple({0: open_rows} for _ in examples) if rows else None
    torch.export.save(torch.export.export(module.eval(), examples, dynamic_shapes=shapes), path)
    return path


def branches(path: Path, rows: bool = True) -> Path:
    """`Branches` with random weights: picture [rows, 1, 8, 8]."""
    torch.manual_seed(0)
    return saved(Branches(), (torch.randn(2 if rows else 1, 1, 8, 8),), path, rows)


def run(half: ModelHalf, feed: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    """A half in engine torch, on what it takes of `feed`."""
    engine = TorchEngine.load("half", half.write(folder), ModelSettings(engine="torch"))
    return engine.run({spec.name: feed[spec.name] for spec in engine.inputs})


if __name__ == "__main__":
    branches(BRANCHES)
