"""Bundles with golden vectors and delegates for the tests of loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.unit import models_for_tests, tflite_for_tests
from upwell.edge.bundle.golden import record_golden
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.shared.tensors import Array

FEATURES, CLASSES = 64, 64


def requests(rows: int = 100) -> dict[str, Array]:
    """Random rows for `linear`, which name many classes."""
    return {"x": np.random.default_rng(3).standard_normal((rows, FEATURES), np.float32)}


def make(folder: Path, suffix: str, seed: int = 0) -> Path:
    """`linear` as `model.onnx` or `model.tflite`; another seed is another function."""
    maker = models_for_tests.linear if suffix == "onnx" else tflite_for_tests.linear
    folder.mkdir(exist_ok=True)
    made = maker(folder, seed, features=FEATURES, classes=CLASSES)
    return made.rename(folder / f"model.{suffix}")


def record(folder: Path, model: Path) -> Path:
    """Golden vectors of what `model` answers on the CPU."""
    runtime = load_runtime(model)
    path = folder / "golden.npz"
    path.write_bytes(record_golden(runtime.run, requests()))
    runtime.close()
    return path


def bundle(folder: Path, *, golden: bool = True, **seeds: int) -> Path:
    """A bundle with a model of each runtime in `seeds`; the golden vectors are those of seed 0."""
    for suffix, seed in seeds.items():
        make(folder, suffix, seed)
    if golden:
        reference = folder.parent / "reference"
        record(folder, make(reference, "onnx"))
    return folder


def side(source: Path, *accelerators: dict[str, Any], **how: Any) -> EdgeSide:
    """The edge side of a configuration that names a bundle's folder or a file."""
    kind = "file" if source.is_file() else "bundle"
    return EdgeSide.model_validate({kind: str(source), "accelerator": list(accelerators), "threads": 1, **how})


def software(library: Path, require: str = "prefer", **options: str | int) -> dict[str, Any]:
    """The software delegate as an accelerator."""
    return {
        "provider": "software", "require": require, "library": str(library), "options": {"claim": "all"} | options,
    }  # fmt: skip
