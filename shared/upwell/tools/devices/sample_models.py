"""The small models that accelerators are tried with, their expected answers, and the trial itself.

`int8` is the demo's digit reader, `float` three nodes of float32, each as ONNX and TFLite; `ASSETS` is written by
`tests/accelerators/make_samples.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.tensors import Array
from upwell.tools.devices.native_log import logged, reason_in, without_noise
from upwell.tools.devices.runtime_probe import DeviceCheck

ASSETS = Path(__file__).parent / "assets"
_DEMO_DIGITS = Path(__file__).parents[1] / "demo" / "assets" / "edge" / "digits"
_TOLERANCE = 0.02
"""Tolerance relative to the largest expected value: float16 and bfloat16 stay within it, garbage does not."""


@dataclass(frozen=True)
class SampleModel:
    """A model, the rows to send it one by one, and the expected answers; both FP32 [n, ...]."""

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


def try_samples(suffix: str, options: RuntimeOptions, accelerator: AcceleratorOptions | None) -> Sequence[DeviceCheck]:
    """Load each sample of this format as the agent does, on `accelerator` or on the CPU for None, and run it."""
    return [_try(sample, options, accelerator) for sample in samples(suffix)]


def _try(sample: SampleModel, options: RuntimeOptions, accelerator: AcceleratorOptions | None) -> DeviceCheck:
    with logged() as log:
        try:
            runtime = load_runtime(sample.path, options, accelerator)
        except (AcceleratorNotUsable, ConfigError) as error:
            said = reason_in(log)
            return DeviceCheck(sample.name, reason=f"{_message(error)} (log: {said})" if said else _message(error))
        try:
            (taken,), (given,) = runtime.inputs, runtime.outputs
            answers = [runtime.run({taken.name: row[None]})[given.name] for row in sample.inputs]
        except UpwellError as error:
            return DeviceCheck(sample.name, reason=str(error))
        finally:
            runtime.close()
        placement = runtime.placement
    agrees = sample.agrees(np.concatenate(answers))
    there = placement.nodes if accelerator is None else placement.nodes_on_accelerator
    return DeviceCheck(
        sample.name, placement.nodes, there, agrees, placement.reason if agrees else "its answers are wrong"
    )


def _message(error: Exception) -> str:
    """The text without the sample's own path, which means nothing to a reader."""
    problems = [problem.message for problem in error.problems] if isinstance(error, ConfigError) else [str(error)]
    return without_noise("; ".join(problems))
