"""Programs for engine jax, made on the spot by jax.export; and two devices of the CPU to choose from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

# Read when JAX first looks for devices, so before any test imports it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"

from tests.jax.programs import warmed, write
from upwell.cloud.engines.base import Engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """The model of the contract suite: y = 2 x with x FP32 [-1, 2]."""
    pytest.importorskip("jax")
    weights = {"factor": np.array([2.0], np.float32)}
    write(tmp_path, lambda w, inputs: {"y": inputs["x"] * w["factor"]}, {"x": ("rows", 2)}, weights)
    engine = warmed(tmp_path, buckets=(1, 2, 3, 33))
    yield engine
    engine.close()
