"""The demo's requests: handwritten digits that no demo model was trained on, singly and on pages, in one fixed order.

They are the held-out third of scikit-learn's bundled digits; `examples/digits/make_models.py` made the split.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from upwell.shared.tensors import Array

ASSETS = Path(__file__).parent / "assets"
ROWS, COLUMNS, CELL_PX = 6, 10, 8
CELLS = ROWS * COLUMNS
NOISE_LEVELS = 6.0
"""Standard deviation of a page's scanner noise, in grey levels of 255."""

DIGITS, PAGES = "digits", "pages"
"""The two models by the names that callers use; also the two kinds of requests."""

_SEED = 7


@dataclass(frozen=True)
class Digits:
    """Pictures of single digits: `images` uint8 [n, 8, 8], 0 paper to 255 ink; `labels` int64 [n], 0 to 9."""

    images: Array
    labels: Array


@dataclass(frozen=True)
class Page:
    """One PNG page of 6 x 10 digits and the `labels` int64 [60] of its cells, row by row."""

    png: bytes
    labels: Array


def heldout() -> Digits:
    """The digits that the demo's models never saw in training."""
    with np.load(ASSETS / "heldout.npz", allow_pickle=False) as split:
        return Digits(images=split["images"], labels=split["labels"])


def digit_png(image: Array) -> bytes:
    """Encode one uint8 [height, width] grey picture as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def page_picture(cells: Array, rng: np.random.Generator) -> Array:
    """Lay 60 digits, uint8 [60, 8, 8], out as one page, uint8 [48, 80], with scanner noise drawn from `rng`."""
    grid = cells.reshape(ROWS, COLUMNS, CELL_PX, CELL_PX).transpose(0, 2, 1, 3)
    page = grid.reshape(ROWS * CELL_PX, COLUMNS * CELL_PX)
    noisy: Array = np.rint(page + rng.normal(0.0, NOISE_LEVELS, page.shape)).clip(0, 255).astype(np.uint8)
    return noisy


def pages(count: int, seed: int) -> list[Page]:
    """Make `count` pages of held-out digits; the same `seed` gives the same pages."""
    rng = np.random.default_rng(seed)
    digits = heldout()
    layouts = [rng.choice(len(digits.labels), CELLS, replace=False) for _ in range(count)]
    return [Page(digit_png(page_picture(digits.images[cells], rng)), digits.labels[cells]) for cells in layouts]


@dataclass(frozen=True)
class DemoCase:
    """One request: a PNG picture for `model`, and the correct `labels` int64 [digits]."""

    model: str
    png: bytes
    labels: Array


def demo_cases(digits: int, page_count: int) -> list[DemoCase]:
    """The first `digits` held-out digits and `page_count` pages, mixed; the same numbers give the same list."""
    held = heldout()
    singles = [
        DemoCase(DIGITS, digit_png(image), label[None])
        for image, label in zip(held.images[:digits], held.labels[:digits], strict=True)
    ]
    mixed = [*singles, *(DemoCase(PAGES, page.png, page.labels) for page in pages(page_count, _SEED))]
    return [mixed[index] for index in np.random.default_rng(_SEED).permutation(len(mixed))]
