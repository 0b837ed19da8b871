"""The small network of the device, and the training of both networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from pictures import augmented, lay_out, resized, tiles
from rich.console import Console
from rich.progress import track
from torch import nn
from torch.nn import functional

from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import CELL_PX, CELLS, COLUMNS, ROWS

SEED = 0
BATCH = 64

Net = TypeVar("Net", bound=nn.Module)
ToTensor = Callable[[Array], Array]
"""From uint8 pictures [n, height, width] to the float32 batch that a network takes."""


class EdgeNet(nn.Module):
    """One grey digit, float32 NCHW [N, 1, 8, 8] in 0..1, to logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, 10] of `x` [N, 1, 8, 8]."""
        features = functional.relu(self.second(functional.relu(self.first(x))))
        logits: torch.Tensor = self.head(functional.max_pool2d(features, 2).flatten(1))
        return logits


class EdgePageNet(EdgeNet):
    """A page, float32 NCHW [N, 1, 48, 80] in 0..1, to logits [N, 60, 10]: `EdgeNet` on every cell, row by row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, 60, 10] of `x` [N, 1, 48, 80]."""
        grid = x.reshape(-1, ROWS, CELL_PX, COLUMNS, CELL_PX).permute(0, 1, 3, 2, 4)
        return super().forward(grid.reshape(-1, 1, CELL_PX, CELL_PX)).reshape(-1, CELLS, 10)


def train(
    kind: type[Net], images: Array, labels: Array, *, to_tensor: ToTensor, zoom: int, epochs: int, console: Console
) -> Net:
    """Train a network of `kind` on augmented digits, singly and as cells of noisy pages, both resized by `zoom`.

    AdamW under a one-cycle schedule; the last epoch's weights are kept, so no held-out figure chooses them.
    """
    rng = np.random.default_rng(SEED)
    torch.manual_seed(SEED)
    net = kind()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    cells = len(labels) + len(labels) // CELLS * CELLS
    steps = epochs * math.ceil(cells / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    for _ in track(range(epochs), description=kind.__name__, console=console):
        pictures, targets = _epoch(images, labels, zoom, rng)
        batch, truth = torch.from_numpy(to_tensor(pictures)), torch.from_numpy(targets)
        for rows in torch.from_numpy(rng.permutation(len(truth))).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(net(batch[rows]), truth[rows]).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    return net


def _epoch(images: Array, labels: Array, zoom: int, rng: np.random.Generator) -> tuple[Array, Array]:
    order = rng.permutation(len(labels))
    moved, truth = augmented(images[order], rng), labels[order]
    pages = tiles(resized(lay_out(moved, rng), zoom))
    return np.concatenate([resized(moved, zoom), pages]), np.concatenate([truth, truth[: len(pages)]])
