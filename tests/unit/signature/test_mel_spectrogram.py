"""Mel spectrograms are librosa's, and what makes none is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.models.make_described import FOLDER, SPECTROGRAMS
from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import Mel
from upwell.shared.signature.preprocess import mel_step
from upwell.shared.signature.step_values import ValueType
from upwell.shared.tensors import Array

KEYS = {"sr": "sample_rate", "n_fft": "n_fft", "hop_length": "hop", "n_mels": "mels", "fmin": "low", "fmax": "high"}


def mel(sound: Array, samples: int = -1, **keys: Any) -> Array:
    step = mel_step(Mel.model_validate(keys), "x", ValueType("FP32", (-1, samples)))
    (made,) = step.run([sound], None)
    assert isinstance(made, np.ndarray)
    (kind,) = step.writes.values()
    assert all(told in (-1, size) for told, size in zip(kind.shape, made.shape, strict=True))
    return made


@pytest.mark.parametrize("name", SPECTROGRAMS)
def test_spectrograms_are_librosas(name: str) -> None:
    expected = np.load(FOLDER / "librosa.npz")
    theirs = SPECTROGRAMS[name]
    keys: dict[str, Any] = {KEYS[key]: value for key, value in theirs.items() if key in KEYS}
    keys |= {"scale": "htk", "pad": "reflect"} if theirs.get("htk") else {}
    sound = expected["sound"].astype(np.float32)[None]
    made = mel(sound, sound.shape[1], log="none", **keys)
    assert made.shape == (1, *expected[name].shape)
    np.testing.assert_allclose(made[0], expected[name], rtol=1e-3, atol=1e-5 * expected[name].max())
    np.testing.assert_allclose(
        mel(sound, log="db", **keys), 10 * np.log10(np.maximum(made, 1e-10)), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(mel(sound, log="ln", **keys), np.log(np.maximum(made, 1e-10)), rtol=1e-4, atol=1e-4)


def test_a_tone_is_loudest_in_the_band_that_holds_it() -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)[None].astype(np.float32)
    made = mel(np.concatenate((tone, np.zeros_like(tone))), sample_rate=8000, mels=20, axes="TM", channel=True)
    assert made.shape == (2, 1, 32, 20)
    edges = np.linspace(0, 15 + np.log(4) / (np.log(6.4) / 27), 22)
    assert abs(edges[1 + int(made[0, 0, 16].argmax())] - 15) < edges[1]
    assert (made[1] == -100).all()


@pytest.mark.parametrize(
    ("samples", "keys", "said"),
    [
        (0, {}, "makes 0 frames"),
        (100, {"pad": "none"}, "makes 0 frames"),
        (100, {"pad": "reflect"}, "makes 0 frames"),
        (100_000, {"hop": 1}, "makes 100001 frames"),
    ],
)
def test_sound_that_makes_no_frame_or_too_many_is_refused(samples: int, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        mel(np.zeros((1, samples), np.float32), sample_rate=8000, **keys)


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        (ValueType("INT16", (-1, 9)), {}, "write a normalize step"),
        (ValueType("FP32", (-1, 2, 9)), {}, r"\[rows, samples\]"),
        (ValueType("FP32", (-1, 9)), {"pad": "none"}, "less than one frame"),
        (ValueType("FP32", (-1, -1)), {"low": 5000}, "low < high <= 4000 Hz"),
    ],
)
def test_a_step_that_does_not_fit_says_so(kind: ValueType, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mel_step(Mel.model_validate({"sample_rate": 8000, **keys}), "x", kind)
