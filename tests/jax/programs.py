"""Small programs as an operator's own export would write them, and the engine over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from upwell.cloud.engines.model_settings import ModelSettings
from upwell.shared.tensors import Array

if TYPE_CHECKING:
    from upwell.cloud.engines.jax_engine import JaxEngine

BUCKETS = (1, 2, 3, 8)

Function = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
"""A program: weights and inputs, both by name, to outputs by name."""


def write(
    folder: Path,
    function: Function,
    inputs: Mapping[str, Sequence[str | int]],
    weights: Mapping[str, Array] | None = None,
    dtype: Any = np.float32,
    platforms: Sequence[str] = ("cpu",),
) -> str:
    """Write model.jax and, if there are weights, model.safetensors; returns the SHA-256 of the program.

    `inputs` are shapes of `dtype`, in which a name is a symbolic size.
    """
    import jax
    from jax import export
    from safetensors.numpy import save

    scope = export.SymbolicScope()
    shapes = {
        name: jax.ShapeDtypeStruct(export.symbolic_shape(",".join(map(str, shape)), scope=scope), dtype)
        for name, shape in inputs.items()
    }
    data = bytes(export.export(jax.jit(function), platforms=platforms)(dict(weights or {}), shapes).serialize())
    (folder / "model.jax").write_bytes(data)
    if weights is not None:
        (folder / "model.safetensors").write_bytes(save(dict(weights)))
    return hashlib.sha256(data).hexdigest()


def load(folder: Path, device: str = "cpu", buckets: tuple[int, ...] = BUCKETS) -> JaxEngine:
    """The engine over what `write` wrote, trusted; not warmed up."""
    from upwell.cloud.engines.jax_engine import JaxEngine

    path = folder / "model.jax"
    trusted = frozenset({hashlib.sha256(path.read_bytes()).hexdigest()})
    return JaxEngine.load("m", path, ModelSettings("jax", device=device, buckets=buckets, trusted=trusted))


def warmed(folder: Path, device: str = "cpu", buckets: tuple[int, ...] = BUCKETS) -> JaxEngine:
    """The same, ready for all of its buckets."""
    engine = load(folder, device, buckets)
    for rows in engine.buckets or (1,):
        engine.warm_up(rows)
    return engine
