"""The training and test data of the networks: pictures exactly as pre-processing passes them to a served model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn import functional

from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import CELL_PX, CELLS, COLUMNS, ROWS, page_picture


@dataclass(frozen=True)
class Split:
    """uint8 [n, 8, 8] pictures and int64 [n] labels, to train with and held out."""

    train_images: Array
    train_labels: Array
    heldout_images: Array
    heldout_labels: Array


def split_digits(seed: int) -> Split:
    """scikit-learn's 1,797 digits, a stratified third of them held out; their 17 grey levels spread over 0..255."""
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    parts = train_test_split(images, digits.target, test_size=0.33, random_state=seed, stratify=digits.target)
    train_images, heldout_images, train_labels, heldout_labels = parts
    return Split(train_images, train_labels.astype(np.int64), heldout_images, heldout_labels.astype(np.int64))


def resized(pictures: Array, factor: int) -> Array:
    """uint8 [n, height, width] pictures made `factor` times larger with Pillow's bilinear filter."""
    if factor == 1:
        return pictures
    size = (pictures.shape[2] * factor, pictures.shape[1] * factor)
    return np.stack([np.asarray(Image.fromarray(one).resize(size, Image.Resampling.BILINEAR)) for one in pictures])


def nchw(pictures: Array) -> Array:
    """uint8 [n, height, width] as the edge model's float32 [n, 1, height, width] in 0..1."""
    return (pictures.astype(np.float32) * np.float32(1 / 255))[:, None]


def nhwc(pictures: Array) -> Array:
    """uint8 [n, height, width] as the cloud model's float32 [n, height, width, 1] in 0..1."""
    return (pictures.astype(np.float32) * np.float32(1 / 255))[..., None]


def tiles(pages: Array) -> Array:
    """Cut uint8 [n, height, width] pages into their cells, [n * 60, height / 6, width / 10]."""
    height, width = pages.shape[1] // ROWS, pages.shape[2] // COLUMNS
    return pages.reshape(-1, ROWS, height, COLUMNS, width).transpose(0, 1, 3, 2, 4).reshape(-1, height, width)


def lay_out(images: Array, rng: np.random.Generator) -> Array:
    """Noisy pages, uint8 [n // 60, 48, 80], of as many digits as fill whole pages, in their order."""
    whole = len(images) // CELLS * CELLS
    return np.stack([page_picture(cells, rng) for cells in images[:whole].reshape(-1, CELLS, CELL_PX, CELL_PX)])


def augmented(images: Array, rng: np.random.Generator) -> Array:
    """uint8 [n, 8, 8] digits, each turned by up to 10 degrees, scaled by up to 8 % and shifted by up to 0.6 pixels."""
    count = len(images)
    angle = rng.uniform(-1, 1, count) * math.radians(10)
    scale = 1 + rng.uniform(-0.08, 0.08, count)
    shift = rng.uniform(-1, 1, (count, 2, 1)) * (0.6 * 2 / CELL_PX)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * scale
    matrix = torch.tensor(np.concatenate([turn.transpose(2, 0, 1), shift], axis=2), dtype=torch.float32)
    pictures = torch.tensor(images[:, None], dtype=torch.float32)
    grid = functional.affine_grid(matrix, list(pictures.shape), align_corners=False)
    moved = functional.grid_sample(pictures, grid, padding_mode="zeros", align_corners=False)
    return moved.round().clamp(0, 255).to(torch.uint8).numpy()[:, 0]
