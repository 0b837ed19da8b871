"""The demo's video: cards with handwritten digits cross a line and enter a zone. The ground truth is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import heldout

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
