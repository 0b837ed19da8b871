"""What the demo's models say, computed without any code of ours: the truth that answers are held against."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS, digit_png, heldout

EDGE_BUNDLE = ASSETS / "edge" / "digits"
CLOUD_MODELS = ASSETS / "cloud"
CLOUD_MODEL = "digits-large"


@cache
def picture(index: int) -> bytes:
    """A held-out digit as PNG."""
    return digit_png(heldout().images[index])


def pictures(indexes: Sequence[int]) -> Array:
    """Held-out digits as the input `image`, one row each."""
    rows = np.empty(len(indexes), dtype=np.object_)
    rows[:] = [picture(index) for index in indexes]
    return rows


def edge_scores(images: Array) -> Array:
    """What the device's model says to encoded pictures: float32 [rows, 10], each row run alone."""
    pixels = _pixels(images, 8)[:, None]
    return np.concatenate([_softmax(_edge().run(["logits"], {"x": row[None]})[0]) for row in pixels])


def cloud_scores(images: Array) -> Array:
    """What the cloud's model says to encoded pictures: float32 [rows, 10]."""
    return _softmax(_cloud().run(["logits"], {"x": _pixels(images, 32)[..., None]})[0])


def margins(scores: Array) -> Array:
    """The best score less the second best, per row."""
    ordered = np.sort(scores, axis=1)
    difference: Array = ordered[:, -1] - ordered[:, -2]
    return difference


def _pixels(images: Array, size_px: int) -> Array:
    grey = (Image.open(io.BytesIO(one)).convert("L") for one in images)
    decoded = [np.asarray(one.resize((size_px, size_px), Image.Resampling.BILINEAR)) for one in grey]
    rows: Array = np.stack(decoded).astype(np.float32) * np.float32(1 / 255)
    return rows


def _softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return scores


@cache
def _edge() -> Any:
    return onnxruntime.InferenceSession(EDGE_BUNDLE / "model.onnx", providers=["CPUExecutionProvider"])


@cache
def _cloud() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        CLOUD_MODELS / CLOUD_MODEL / "1" / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
