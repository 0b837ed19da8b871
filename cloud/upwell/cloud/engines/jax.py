"""JAX: a StableHLO program written by jax.export, with weights from a safetensors file, and no torch anywhere.

`model.jax` is the serialized form of a function `(weights, inputs) -> outputs` of three dictionaries from names to
arrays; its names, dtypes and shapes are the model's. `upwell model export-jax` makes one from a torch module, and
`jax.export.export(jax.jit(f))(weights, inputs).serialize()` from any function like that. The weights that it names are
in `model.safetensors` beside it. A first dimension of the inputs that is symbolic is the rows; every other size is
fixed, since XLA compiles each shape anew.

Such a file can run code, so only those are opened whose digest the operator has listed (see `trusted`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

# Another engine may want memory of the same accelerator; by default JAX takes three quarters of it at once.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import flatbuffers  # noqa: F401  jax.export reads its files with it, and JAX does not bring it
import jax
import numpy as np
from jax import export

from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.engines.buckets import buckets_for
from upwell.cloud.engines.checks import check_batch, reason_of, zeros
from upwell.cloud.engines.jax_signature import Signature
from upwell.cloud.engines.jax_weights import read_weights
from upwell.cloud.engines.trusted import read_trusted
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import Array, TensorSpec

AUTOMATIC = "auto"
"""The word of `device` for the accelerator that JAX finds, and the CPU where it finds none."""
WEIGHTS_FILE = "model.safetensors"

_FIXED = 0
"""What stands for the rows of a model that has none: its one program takes what its specifications say."""

_log = logging.getLogger(__name__)
# It tells of every kind of device that is not there.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)

# A program's dtypes are its own. Without this JAX would cut INT64 and FP64 inputs to 32 bits on their way in.
jax.config.update("jax_enable_x64", True)


class JaxEngine:
    """One exported program on one device, compiled for each of the buckets when it is warmed up.

    Nothing is ever compiled by `run`, which takes batches of exactly a bucket's rows. Whoever fills them up with zeros
    relies on it that rows do not depend on each other, which holds for networks in inference.
    """

    file_name: ClassVar[str] = "model.jax"
    platform: ClassVar[str] = "jax_export"

    def __init__(
        self, program: export.Exported, weights: Mapping[str, Any], device: Any, settings: ModelSettings
    ) -> None:
        signature = Signature.of(program)
        self.version = f"jax {jax.__version__}"
        self.inputs: tuple[TensorSpec, ...] = signature.inputs
        self.outputs: tuple[TensorSpec, ...] = signature.outputs
        self.buckets = buckets_for(settings.buckets, settings.max_batch) if signature.by_rows else ()
        self._call = jax.jit(program.call)
        self._weights: Mapping[str, Any] | None = jax.device_put(weights, device)
        self._place = jax.sharding.SingleDeviceSharding(device)
        self._compiled: dict[int, Any] = {}

    @classmethod
    def load(cls, name: str, path: Path, settings: ModelSettings) -> JaxEngine:
        """Load `path` and the weights beside it. Raises `ModelFailed`; nothing is deserialized before it is trusted."""
        data = read_trusted(path, settings.trusted)
        try:
            program = export.deserialize(bytearray(data))
        except Exception as error:  # FlatBuffers and JAX raise whatever a wrong file leads to
            raise ModelFailed(
                f"{path.name} is no program that JAX {jax.__version__} reads: {reason_of(error)}"
            ) from error
        device = _device(name, settings.device, program.platforms)
        weights = read_weights(path.with_name(WEIGHTS_FILE), Signature.of(program).weights)
        return cls(program, weights, device, settings)

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run what has been compiled. See `Engine.run`; `ModelFailed` also before `warm_up`."""
        check_batch(batch, self.inputs, self.buckets)
        return self._run(batch)

    def _run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the program compiled for just these rows, as arrays of their own."""
        weights, program = self._weights, self._compiled.get(self._bucket_of(batch))
        if weights is None or program is None:
            raise ModelFailed("the model is closed" if weights is None else "it is not compiled; warm_up comes first")
        try:
            results = program(weights, dict(batch))
            return {name: np.array(result) for name, result in results.items()}
        except Exception as error:  # JAX and XLA raise many kinds
            raise ModelFailed(f"JAX failed: {reason_of(error)}") from error

    def _bucket_of(self, batch: Mapping[str, Array]) -> int:
        return len(next(iter(batch.values()))) if self.buckets else _FIXED

    def warm_up(self, rows: int) -> None:
        """Compile for `rows` rows, unless it is done, and run zeros once. See `Engine.warm_up`."""
        bucket = rows if self.buckets else _FIXED
        if bucket not in self._compiled and self._weights is not None:
            self._prepare(bucket)

    def _prepare(self, bucket: int) -> None:
        batch = {spec.name: zeros(spec, bucket) for spec in self.inputs}
        shapes = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self._place) for name, array in batch.items()
        }
        try:
            self._compiled[bucket] = self._call.lower(self._weights, shapes).compile()
        except Exception as error:  # JAX and XLA raise many kinds
            raise ModelFailed(f"JAX cannot compile it for {bucket or 'its'} rows: {reason_of(error)}") from error
        self._run(batch)

    def close(self) -> None:
        """Free the weights and the programs."""
        self._weights = None
        self._compiled = {}


def _device(name: str, text: str, platforms: tuple[str, ...]) -> Any:
    """The device named in the settings, such as `cpu` or `tpu:1`, if the program was exported for its kind."""
    if text == AUTOMATIC:
        return _automatic(name, platforms)
    kind, _, number = text.partition(":")
    if kind not in platforms:
        raise ModelFailed(
            f"it was exported for {', '.join(platforms)}, and `device` is {text!r}; export it for that too"
        )
    try:
        devices = jax.devices(kind)
    except RuntimeError as error:
        raise ModelFailed(f"device {text!r} is not usable: {reason_of(error)}") from error
    if int(number or 0) >= len(devices):
        raise ModelFailed(f"device {text!r} is not there; JAX finds {', '.join(map(str, devices))}")
    return devices[int(number or 0)]


def _automatic(name: str, platforms: tuple[str, ...]) -> Any:
    """The accelerator that JAX finds and the program was exported for, else the CPU; the log says which."""
    for kind in sorted(platforms, key="cpu".__eq__):
        try:
            device = jax.devices(kind)[0]
        except RuntimeError:
            continue
        _log.info("model %s runs on %s", name, device)
        return device
    raise ModelFailed(f"it was exported for {', '.join(platforms)}, of which JAX finds none here")
