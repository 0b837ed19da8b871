"""Mel spectrograms of sound windows, computed with numpy alone.

For each frame x of `n_fft` samples, `hop` apart and times a periodic Hann window, the power is |FFT x|², and a mel band
is the sum of powers weighted by its triangle. Band edges are evenly spaced on the mel scale of Slaney's Auditory
Toolbox (1998: linear below 1 kHz, then 27 steps per factor of 6.4), with triangles of area 1, or of HTK (2595 log₁₀(1 +
f/700)), with triangles of height 1. With `pad` frames are centred, and the ends padded with zeros or mirrored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import Mel
from upwell.shared.signature.step_values import Floats, Geometry, Step, Value, ValueType, array_of, require_floats

MAX_WORK = 1 << 23
"""Maximum samples in the frames of one row, counting overlaps repeatedly."""

_LINEAR_HZ, _PER_LINEAR = 1000.0, 3 / 200
_STEP = math.log(6.4) / 27


def mel_step(op: Mel, source: str, value: ValueType) -> Step:
    """The step for sound, FP32 [rows, samples] -> [rows, mels, frames], or as `axes` and `channel` say.

    Raises `ValueError`.
    """
    require_floats(value, source, "normalize")
    if len(value.shape) != 2:
        raise ValueError(f"expected sound, [rows, samples], in {source!r}, got {value}")
    high = op.high or op.sample_rate / 2
    if not op.low < high <= op.sample_rate / 2:
        raise ValueError(f"expected low < high <= {op.sample_rate / 2:g} Hz, got {op.low:g} and {high:g}")
    filters, window = mel_filters(op, high), _hann(op.n_fft)
    frames = _frames(op, value.shape[1]) if value.shape[1] >= 0 else -1
    if value.shape[1] >= 0 and frames < 1:
        raise ValueError(f"{value.shape[1]} samples are less than one frame of {op.n_fft}")
    sizes = (op.mels, frames) if op.axes == "MT" else (frames, op.mels)
    shape = (value.shape[0], *((1,) if op.channel else ()), *sizes)

    def run(values: Sequence[Value], _: Geometry | None) -> tuple[Value]:
        sound = array_of(values[0])
        count = _frames(op, sound.shape[1])
        if count < 1 or count * op.n_fft > MAX_WORK:
            raise InvalidRequest(f"a row of {sound.shape[1]} samples makes {count} frames of {op.n_fft}")
        bands = np.stack([_bands(op, row.astype(np.float64), filters, window) for row in sound])
        turned = bands if op.axes == "MT" else bands.transpose(0, 2, 1)
        return (np.ascontiguousarray(turned[:, None] if op.channel else turned, np.float32),)

    return Step((source,), {op.target or source: ValueType("FP32", shape)}, run)


def mel_filters(op: Mel, high: float) -> Floats:
    """The triangles of the bands, FP64 [mels, 1 + n_fft / 2]."""
    to_mel, to_hz = (_slaney_mel, _slaney_hz) if op.scale == "slaney" else (_htk_mel, _htk_hz)
    edges = to_hz(np.linspace(to_mel(np.float64(op.low)), to_mel(np.float64(high)), op.mels + 2))
    frequencies = np.fft.rfftfreq(op.n_fft, 1 / op.sample_rate)
    rising = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    return filters * (2 / (edges[2:] - edges[:-2]))[:, None] if op.scale == "slaney" else filters


def _bands(op: Mel, sound: Floats, filters: Floats, window: Floats) -> Floats:
    if op.pad != "none":
        sound = np.pad(sound, op.n_fft // 2, "constant" if op.pad == "zeros" else "reflect")
    frames = np.lib.stride_tricks.sliding_window_view(sound, op.n_fft)[:: op.hop] * window
    bands: Floats = filters @ (np.abs(np.fft.rfft(frames)) ** 2).T
    if op.log == "none":
        return bands
    logarithms: Floats = np.log(np.maximum(bands, op.floor))
    return logarithms if op.log == "ln" else logarithms * (10 / math.log(10))


def _frames(op: Mel, samples: int) -> int:
    if op.pad == "reflect" and samples <= op.n_fft // 2:
        return 0  # too short to mirror
    whole = samples + (0 if op.pad == "none" else op.n_fft // 2 * 2)
    return (whole - op.n_fft) // op.hop + 1 if samples and whole >= op.n_fft else 0


def _hann(size: int) -> Floats:
    window: Floats = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return window


def _slaney_mel(hz: Floats) -> Floats:
    linear = hz * _PER_LINEAR
    beyond = _LINEAR_HZ * _PER_LINEAR + np.log(np.maximum(hz, _LINEAR_HZ) / _LINEAR_HZ) / _STEP
    return np.where(hz < _LINEAR_HZ, linear, beyond)


def _slaney_hz(mel: Floats) -> Floats:
    border = _LINEAR_HZ * _PER_LINEAR
    return np.where(mel < border, mel / _PER_LINEAR, _LINEAR_HZ * np.exp(_STEP * (np.maximum(mel, border) - border)))


def _htk_mel(hz: Floats) -> Floats:
    return np.asarray(2595 * np.log10(1 + hz / 700))


def _htk_hz(mel: Floats) -> Floats:
    return np.asarray(700 * (10 ** (mel / 2595) - 1))
