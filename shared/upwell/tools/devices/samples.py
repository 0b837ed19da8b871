"""The small models that accelerators are tried with, and the answers that they must give.

`int8` is the demo's digit reader, `float` three nodes of float32, each as ONNX and TFLite; `ASSETS` is written by
`tests/accelerators/make_samples.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from upwell.shared.tensors import Array

ASSETS = Path(__file__).parent / "assets"
_DEMO_DIGITS = Path(__file__).parents[1] / "demo" / "assets" / "edge" / "digits"
_TOLERANCE = 0.02
"""Of the largest expected value: float16 and bfloat16 arithmetic stays within it, garbage does not."""


@dataclass(frozen=True)
class SampleModel:
    """A model, the rows to send it one by one, and what must come back; FP32 [n, ...] both."""

    name: str
    path: Path
    inputs: Array
    expected: Array

    def agrees(self, answers: Array) -> bool:
        """Whether the answers are right: the same digits read (`int8`), values within 2 % of the largest (`float`)."""
        if answers.shape != self.expected.shape or not np.isfinite(answers).all():
            return False
        if self.name == "int8":
            return bool((answers.argmax(axis=1) == self.expected.argmax(axis=1)).all())
        return bool(np.abs(answers - self.expected).max() <= _TOLERANCE * np.abs(self.expected).max())


def samples(suffix: str) -> tuple[SampleModel, ...]:
    """Both models in the format of `suffix`, `.onnx` or `.tflite`."""
    with np.load(ASSETS / "answers.npz", allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files}
    int8 = ASSETS / "int8.onnx" if suffix == ".onnx" else _DEMO_DIGITS / "model.tflite"
    paths = {"int8": int8, "float": ASSETS / f"float{suffix}"}
    return tuple(SampleModel(name, path, arrays[f"{name}_in"], arrays[f"{name}_out"]) for name, path in paths.items())
