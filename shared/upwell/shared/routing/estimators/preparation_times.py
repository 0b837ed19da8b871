"""The time that the device takes to decode and resize encoded pictures before a run, by their format and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from upwell.shared.routing.estimators.run_and_answer_times import FRESH_S, LatencyWindow
from upwell.shared.value_classes import value_class

LEAST_PIXELS = 1 << 18
"""Requests with fewer pixels are not estimated apart: their preparation is short, and counts as part of the run."""

BELIEVED_S = 10.0
"""For so long per sample the fastest one is believed."""


@value_class
class EncodedPictures:
    """The encoded pictures of a request: their format (several are joined by `+`) and pixels, by their headers."""

    form: str
    pixels: int


@value_class
class PreparationTimes:
    """Durations of preparation by format and size class (pixels, a power of two), each scaled to its class.

    The time is linear in the pixels, except that a large JPEG is decoded at a reduced scale, where a pixel costs a
    tenth. So the estimate is a lower bound, which refuses nobody wrongly: the class's own samples, else those of the
    next larger class scaled down, or of the next smaller one unchanged. Of recent samples their median counts, after a
    silence of `FRESH_S` the fastest; it is believed for `BELIEVED_S` per sample, since one may be a bad moment and many
    are not. Then the estimate is 0: the unknown is tried.
    """

    windows: Mapping[tuple[str, int], LatencyWindow] = field(default_factory=dict)

    def add(self, pictures: EncodedPictures, duration_s: float, now_s: float) -> PreparationTimes:
        """With one more preparation."""
        size = _class(pictures.pixels)
        window = self.windows.get((pictures.form, size)) or LatencyWindow()
        scaled_s = duration_s * size / pictures.pixels
        return PreparationTimes({**self.windows, (pictures.form, size): window.add_all([(scaled_s, now_s)])})

    def expect_s(self, pictures: EncodedPictures, now_s: float) -> float:
        """The time that the preparation takes, in seconds; 0 if unknown."""
        own, pixels = _class(pictures.pixels), pictures.pixels
        known = {
            size: estimate_s
            for (form, size), window in self.windows.items()
            if form == pictures.form and (estimate_s := _believed_s(window, now_s)) > 0.0
        }
        if own in known:
            return known[own] * pixels / own
        larger = min((size for size in known if size > own), default=None)
        smaller = max((size for size in known if size < own), default=None)
        return max(
            0.0 if larger is None else known[larger] * pixels / larger, 0.0 if smaller is None else known[smaller]
        )


NO_PREPARATIONS = PreparationTimes()


def _class(pixels: int) -> int:
    """The power of two at or above `pixels`."""
    return 1 << max(0, pixels - 1).bit_length()


def _believed_s(window: LatencyWindow, now_s: float) -> float:
    silence_s = now_s - window.last_at_s
    if silence_s <= FRESH_S:
        return window.lately_s
    return window.fastest_s if silence_s <= BELIEVED_S * len(window.samples_s) else 0.0
