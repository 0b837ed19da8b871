"""Cuts a series of samples into windows, on an even grid with gaps marked, and fits them into the tensor of a model.

Reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from upwell.shared.tensors import Array

_EXACT = 1e-6
"""Distance in periods within which a sample counts as on a grid point."""


@dataclass(frozen=True)
class WindowShape:
    """How a series is cut: into windows of `size` points on a grid of `rate_hz`, one every `step` points.

    Between two samples more than `gap_s` apart there is a gap.
    """

    rate_hz: float
    size: int
    step: int
    gap_s: float


@dataclass(frozen=True, eq=False)
class SampleWindow:
    """A window. `values` are float64 [size, fields], NaN in a gap; `missing` counts the points in gaps.

    `end_s` is the time of its last point.
    """

    values: Array
    end_s: float
    missing: int


class Windows:
    """Resamples a series and cuts it. Times are seconds of whatever clock stamped the samples.

    Let t_0 be the time of the first sample and T = 1 / rate. Point k of the grid lies at g_k = t_0 + k·T. With the
    samples a and b before and after it, t_a < g_k ≤ t_b,

        x(g_k) = x_a + (x_b - x_a)·(g_k - t_a) / (t_b - t_a)    where t_b - t_a ≤ gap, or g_k = t_b,

    otherwise the point is missing. Window n is the points n·step to n·step + size - 1. It is complete with the first
    sample at or after its last point. A window whose points are all missing is skipped: hours of silence cost
    nothing.

    Interpolation is linear, without a filter: a sensor that is faster than the grid must be band-limited by itself.

    A sample that is not later than the one before is dropped as a duplicate. If it is earlier by more than a window,
    the clock was set: the grid restarts with it, and incomplete windows are dropped.
    """

    def __init__(self, shape: WindowShape) -> None:
        self._shape = shape
        self._start_s: float | None = None
        self._last: tuple[float, Array] = (0.0, np.zeros(0))
        # Points `_first` to `_next - 1` of the grid; `_window` is the first point of the next window.
        self._points: list[Array] = []
        self._first = self._next = self._window = 0

    def take(self, time_s: float, values: Sequence[float]) -> list[SampleWindow]:
        """The windows that this sample completes. `values` are finite, one for each field."""
        sample = np.asarray(values, np.float64)
        last_s, _ = self._last
        if self._start_s is not None and time_s < last_s - self._shape.size / self._shape.rate_hz:
            self._start_s = None
        if self._start_s is None:
            self._start_s, self._points = time_s, []
            self._first = self._next = self._window = 0
            self._add([sample])
        elif time_s <= last_s:
            return []
        else:
            windows = list(self._resampled(self._start_s, time_s, sample))
            self._last = (time_s, sample)
            return windows
        self._last = (time_s, sample)
        return list(self._complete())

    def _resampled(self, start_s: float, time_s: float, sample: Array) -> Iterator[SampleWindow]:
        """Add the points between the sample before and this one; return the windows that are then complete."""
        rate_hz, (last_s, last) = self._shape.rate_hz, self._last
        position = (time_s - start_s) * rate_hz
        # Seconds since 1970 have a limited resolution in float64, which is a noticeable part of a short period.
        error_s = 2 * math.ulp(time_s)
        near = min(0.25, _EXACT + error_s * rate_hz)
        is_on_grid = abs(position - round(position)) <= near and round(position) >= self._next
        end = round(position) if is_on_grid else max(self._next, math.floor(position) + 1)
        if time_s - last_s > self._shape.gap_s * (1 + 1e-9) + error_s:
            yield from self._pass_over(end, np.full_like(sample, np.nan))
        else:
            at_s = np.arange(self._next, end) / rate_hz - (last_s - start_s)
            weights = np.clip(at_s / (time_s - last_s), 0.0, 1.0)[:, None]
            self._add(list(last + (sample - last) * weights))
        if is_on_grid:
            self._add([sample])
        yield from self._complete()

    def _pass_over(self, end: int, missing: Array) -> Iterator[SampleWindow]:
        """Add a gap up to the point `end`. Only the points needed by windows with samples are kept."""
        size, step = self._shape.size, self._shape.step
        if end - self._next > size:
            self._add([missing] * size)
            yield from self._complete()
            # All windows from here on that end within the gap have no sample.
            self._window = max(self._window, -(-(end - size + 1) // step) * step)
            first = min(self._window, end)
            del self._points[: first - self._first]
            self._first, self._next = first, max(self._next, first)
        self._add([missing] * (end - self._next))

    def _add(self, points: list[Array]) -> None:
        self._points += points
        self._next += len(points)

    def _complete(self) -> Iterator[SampleWindow]:
        size = self._shape.size
        while self._window + size <= self._next:
            begin = self._window - self._first
            values = np.stack(self._points[begin : begin + size])
            missing = int(np.isnan(values[:, 0]).sum())
            if missing < size:
                end_s = (self._start_s or 0.0) + (self._window + size - 1) / self._shape.rate_hz
                yield SampleWindow(values, end_s, missing)
            self._window += self._shape.step
        unneeded = min(self._window, self._next) - self._first
        if unneeded > 0:
            del self._points[:unneeded]
            self._first += unneeded


def laid_out(window: Array, shape: Sequence[int]) -> Array:
    """The window [size, fields] as a tensor of this shape without its batch dimension, in which -1 takes any number.

    Unchanged, or with the fields first, or flattened point by point; dimensions of 1 may stand anywhere. Raises
    `ValueError` if none of these fits.
    """
    for turned in (window, window.T, window.reshape(-1)):
        wanted = _filled(shape, turned.shape)
        if wanted is not None:
            return turned.reshape(wanted)
    size, fields = window.shape
    raise ValueError(
        f"takes {_written(shape)}, but a window is {_written((size, fields))}; expected that, "
        f"{_written((fields, size))} or {_written((math.prod(window.shape),))}"
    )


def _filled(shape: Sequence[int], given: Sequence[int]) -> tuple[int, ...] | None:
    """The shape with a number for each -1; None if the window does not fit."""
    if len(shape) == len(given):
        return tuple(given) if all(one in (-1, size) for one, size in zip(shape, given, strict=True)) else None
    sizes = [size for size in given if size != 1]
    left = iter(sizes)
    filled = tuple(one if one == 1 else next(left, 1) for one in shape)
    return (
        filled if all(one in (-1, size) for one, size in zip(shape, filled, strict=True)) and not list(left) else None
    )


def _written(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
