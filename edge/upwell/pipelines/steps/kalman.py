"""Kalman filter of boxes in seconds: where a box is, how fast it moves, and how sure that is.

A box is (cx, cy, aspect, height): its centre, its width by its height, and its height, as SORT and ByteTrack have it.
Each of the four is a filter of its own, since none of the noise couples them. A state is float64 [n, 4, 5]: for each
of the four the value x and its rate v per second, then their covariance: var(x), cov(x, v), var(v).

Motion: x moves by v·dt; v and x are also pushed at random, v with the density a² per second (white acceleration) and x
with p² per second. Over dt seconds that adds to the covariance

    var(x): p²·dt + a²·dt³/3      cov(x, v): a²·dt²/2      var(v): a²·dt

which is exact for any dt: one long step is the same as several short ones. ByteTrack (arXiv 2110.06864) counts frames
instead, with the noise per frame in shares of the height: h/20 of position, h/160 of speed. Here are those figures at
30 frames a second, so that a source of 5 frames a second, or one of which frames are left out, is followed as well.
"""

from __future__ import annotations

import numpy as np

from upwell.shared.tensors import Array

_FPS = 30.0
"""The rate for which ByteTrack's figures are meant."""

_OF_HEIGHT = np.array([1.0, 1.0, 0.0, 1.0])
_OF_ASPECT = np.array([0.0, 0.0, 1.0, 0.0])

_MIN_HEIGHT, _MIN_ASPECT = 1e-6, 1e-3


def _std(height: Array, of_height: float, of_aspect: float) -> Array:
    """Standard deviation [n, 4]: a share of the height, but a figure of its own for the aspect."""
    return height[:, None] * (of_height * _OF_HEIGHT) + of_aspect * _OF_ASPECT


def as_measured(boxes: Array) -> Array:
    """Boxes x1, y1, x2, y2 as cx, cy, aspect, height; both float64 [n, 4]."""
    size = boxes[:, 2:] - boxes[:, :2]
    centre = boxes[:, :2] + size / 2
    return np.column_stack((centre, size[:, 0] / size[:, 1], size[:, 1]))


def as_boxes(states: Array) -> Array:
    """The boxes x1, y1, x2, y2 of states, float64 [n, 4]."""
    centre, height = states[:, :2, 0], states[:, 3, 0]
    half = np.column_stack((states[:, 2, 0] * height, height)) / 2
    return np.hstack((centre - half, centre + half))


def begin(measured: Array) -> Array:
    """The states of boxes that are seen for the first time, which may move at any speed."""
    height = measured[:, 3]
    states = np.zeros((*measured.shape, 5))
    states[:, :, 0] = measured
    states[:, :, 2] = _std(height, 2 / 20, 1e-2) ** 2
    states[:, :, 4] = _std(height, 10 / 160 * _FPS, 1e-5 * _FPS) ** 2
    return states


def predict(states: Array, dt_s: float) -> Array:
    """The states `dt_s` seconds later."""
    x, v, xx, xv, vv = np.moveaxis(states, 2, 0)
    height = x[:, 3]
    push = _std(height, _FPS**0.5 / 20, _FPS**0.5 * 1e-2) ** 2  # p²
    acceleration = _std(height, _FPS**1.5 / 160, _FPS**1.5 * 1e-5) ** 2  # a²
    x = x + v * dt_s
    # A box that shrinks for as long as it is hidden must not turn inside out.
    x[:, 2], x[:, 3] = np.maximum(x[:, 2], _MIN_ASPECT), np.maximum(x[:, 3], _MIN_HEIGHT)
    return np.stack(
        (
            x,
            v,
            xx + 2 * dt_s * xv + dt_s**2 * vv + push * dt_s + acceleration * dt_s**3 / 3,
            xv + dt_s * vv + acceleration * dt_s**2 / 2,
            vv + acceleration * dt_s,
        ),
        axis=2,
    )


def correct(states: Array, measured: Array) -> Array:
    """The states once they have been measured [n, 4], with ByteTrack's noise of measuring: h/20, and 0.1 of aspect.

    Gain k = cov(·, x) / (var(x) + r); what remains of the covariance is what the measurement does not explain.
    """
    x, v, xx, xv, vv = np.moveaxis(states, 2, 0)
    total = xx + _std(x[:, 3], 1 / 20, 1e-1) ** 2
    gain_x, gain_v, off = xx / total, xv / total, measured - x
    after = np.stack((x + gain_x * off, v + gain_v * off, xx - gain_x * xx, xv - gain_x * xv, vv - gain_v * xv), axis=2)
    after[:, 2, 0] = np.maximum(after[:, 2, 0], _MIN_ASPECT)
    after[:, 3, 0] = np.maximum(after[:, 3, 0], _MIN_HEIGHT)
    return after
