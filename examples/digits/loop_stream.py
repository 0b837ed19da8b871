"""The loop's requests: held-out digits, each slightly varied; after a while the camera has slipped and is dirty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from upwell.edge import Agent
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import digit_png, heldout

LOOP_SEED = 11
TURN_DEGREES = 18.0
DIRT_LEVELS, HAZE_LEVELS = 14.0, 30.0
"""Grey levels of 255: noise of the dirt, and how much it lightens the paper."""


@dataclass(frozen=True)
class Asked:
    """An answered request: whether it was right, and which side answered."""

    right: bool
    route: str


class Stream:
    """Draws digits from one half of the originals until the next model is trained, then from the other."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._digits = heldout()
        self._originals = np.arange(0, len(self._digits.labels), 2)
        self.truth: dict[str, int] = {}
        """The label a person would give each request, by its id."""

    def use_other_originals(self) -> None:
        """From now on draw no digit that may have been used for a case."""
        self._originals = np.arange(1, len(self._digits.labels), 2)

    def plain(self, count: int) -> list[tuple[bytes, int]]:
        """Rows before any drift."""
        return [self._draw(drifted=False) for _ in range(count)]

    def ask(self, agent: Agent, *, drifted: bool) -> Asked:
        """Ask for one more digit."""
        png, label = self._draw(drifted=drifted)
        answer = agent.infer("digits", {"image": png})
        self.truth[answer.id] = label
        return Asked(int(answer.outputs["scores"].argmax()) == label, str(answer.route))

    def _draw(self, *, drifted: bool) -> tuple[bytes, int]:
        index = int(self._rng.choice(self._originals))
        turn = self._rng.normal(TURN_DEGREES if drifted else 0.0, 3.0)
        image = turned(self._digits.images[index], turn).astype(np.float64)
        image += self._rng.normal(0, DIRT_LEVELS if drifted else 2.0, image.shape)
        if drifted:
            image = 0.85 * image + HAZE_LEVELS
        return digit_png(np.rint(image).clip(0, 255).astype(np.uint8)), int(self._digits.labels[index])


def turned(image: Array, degrees: float) -> Array:
    """A rotated digit, uint8 [8, 8]."""
    large = Image.fromarray(image).resize((32, 32), Image.Resampling.BICUBIC)
    return np.asarray(large.rotate(degrees, Image.Resampling.BILINEAR).resize((8, 8), Image.Resampling.BOX))
