"""What the demo asks: single digits, easy and hard, with a minority of pages among them, in one fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from upwell.shared.tensors import Array
from upwell.tools.demo.data import digit_png, heldout, pages

DIGITS, PAGES = "digits", "pages"
"""The two models by the name that callers use; they are also the two kinds of requests."""

_SEED = 7


@dataclass(frozen=True)
class DemoCase:
    """One request: a PNG picture for `model`, and the `labels` int64 [digits] that are right."""

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
