"""The demo's inputs: handwritten digits that no demo model was trained on, singly, on pages and on cards in a video.

Their order is fixed and the truth is known; in the video cards cross a line and enter a zone.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
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


HEIGHT, WIDTH, FPS = 480, 640, 10
FRAME_PX, INSIDE_PX = 52, 40
LINE = ((0.5, 0.0), (0.5, 1.0))
"""The line, crossed from left to right by cards that move to the right."""
ZONE = ((0.7, 0.0), (1.0, 0.0), (1.0, 0.5), (0.7, 0.5))
GREEN = (0, 200, 0)
BACKGROUND, NOISE = 60.0, 10.0


@dataclass(frozen=True)
class Card:
    """One card: `ink` uint8 [8, 8] of the digit `label`; its centre moves at `speed` pixels a second along `y`."""

    ink: Array
    label: int
    y: float
    start_s: float
    speed: float

    def centre(self, at_s: float) -> tuple[float, float]:
        """The position of its centre in pixels; outside the picture before and after."""
        return -FRAME_PX + (at_s - self.start_s) * self.speed, self.y

    @property
    def crosses_s(self) -> float:
        """When its centre is on the line."""
        return self.start_s + (LINE[0][0] * WIDTH + FRAME_PX) / self.speed

    @property
    def enters(self) -> bool:
        """Whether its lower edge, which a zone tests, enters the zone."""
        return self.y + INSIDE_PX / 2 < ZONE[2][1] * HEIGHT


def cards(count: int, seed: int = 0) -> tuple[Card, ...]:
    """Cards in three lanes, of which the upper one leads through the zone; cards of one lane keep their distance."""
    rng = np.random.default_rng(seed)
    digits = heldout()
    chosen = rng.choice(len(digits.labels), count, replace=False)
    lanes = (110.0, 300.0, 400.0)
    return tuple(
        Card(
            digits.images[index], int(digits.labels[index]), lanes[number % 3] + float(rng.uniform(-8, 8)),
            number * 0.9 + float(rng.uniform(0, 0.3)), 130.0,
        )
        for number, index in enumerate(chosen)
    )  # fmt: skip


def length_s(shown: Sequence[Card]) -> float:
    """The time until the last card has left, in seconds."""
    return max(card.start_s + (WIDTH + 3 * FRAME_PX) / card.speed for card in shown)


def video(shown: Sequence[Card], seed: int = 0) -> Iterator[Array]:
    """The frames, uint8 [height, width, 3] RGB, at `FPS` per second."""
    rng = np.random.default_rng(seed)
    for number in range(int(length_s(shown) * FPS)):
        yield _drawn(shown, number / FPS, rng)


def _drawn(shown: Sequence[Card], at_s: float, rng: np.random.Generator) -> Array:
    noise = rng.normal(BACKGROUND, NOISE, (HEIGHT, WIDTH, 1)).clip(0, 255).astype(np.uint8)
    frame = np.repeat(noise, 3, axis=2)
    for card in shown:
        x, y = card.centre(at_s)
        _paint(frame, x, y, FRAME_PX, np.array([[GREEN]], np.uint8))
        inside = np.kron(card.ink, np.ones((INSIDE_PX // 8, INSIDE_PX // 8), np.uint8))
        _paint(frame, x, y, INSIDE_PX, np.repeat(inside[:, :, None], 3, axis=2))
    return frame


def _paint(frame: Array, x: float, y: float, side: int, colours: Array) -> None:
    """Paint a square of `side` pixels, or one colour, with its centre at x, y; parts outside the frame are clipped."""
    patch = np.broadcast_to(colours, (side, side, 3))
    left, top = round(x - side / 2), round(y - side / 2)
    x1, y1, x2, y2 = max(left, 0), max(top, 0), min(left + side, WIDTH), min(top + side, HEIGHT)
    if x1 < x2 and y1 < y2:
        frame[y1:y2, x1:x2] = patch[y1 - top : y2 - top, x1 - left : x2 - left]
