"""How many pixels are worked on at once in a process: a picture takes a thousand times the memory of its file, or more.

One request is bounded by `max_pixels`; many of them at once are bounded here, together, and wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from upwell.shared.signature.images import header_pixels
from upwell.shared.signature.keys import DEFAULT_MAX_PIXELS
from upwell.shared.tensors import Array

AT_ONCE = 2 * DEFAULT_MAX_PIXELS
"""A pixel takes up to twelve bytes on its way from the file to the model's size: as decoded, copied and scaled."""

_SMALL = 1 << 18
"""Requests of fewer pixels never wait: a thread each, and they are a few megabytes."""


class PixelBudget:
    """Lets work on so many pixels begin as fit into `at_once`; a larger piece is done alone. Any thread may call it."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._held = 0
        self._change = threading.Condition()

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for so many, and take it until the block ends."""
        if pixels < _SMALL:
            yield
            return
        with self._change:
            self._change.wait_for(lambda: self._held == 0 or self._held + pixels <= self._at_once)
            self._held += pixels
        try:
            yield
        finally:
            with self._change:
                self._held -= pixels
                self._change.notify_all()


BUDGET = PixelBudget(AT_ONCE)
"""That of this process."""


def encoded_pixels(inputs: Iterable[Array]) -> int:
    """How many pixels the pictures among these tensors say that they have; elements that are none count as nothing."""
    return sum(
        header_pixels(element)
        for array in inputs
        if array.dtype == np.object_
        for element in array.ravel().tolist()
        if isinstance(element, bytes)
    )
