"""JAX: a StableHLO program written by jax.export, with weights from a safetensors file, and no torch anywhere.

`model.jax` is the serialized form of a function `(weights, inputs) -> outputs` of three dictionaries from names to
arrays; its names, dtypes and shapes are the model's. `upwell model export-jax` makes one from a torch module, and
`jax.export.export(jax.jit(f))(weights, inputs).serialize()` from any function like that. Its weights are in
`model.safetensors` beside it. A symbolic first dimension of the inputs is the rows; all other sizes are fixed, since
XLA compiles each shape separately.

Such a file can run code, so only files whose digest the operator has listed are loaded (see `trusted`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import flatbuffers  # noqa: F401  jax.export reads its files with it, and JAX does not bring it
import jax
import numpy as np
from jax import export

from upwell.cloud.engines.batch_checks_and_buckets import buckets_for, check_batch, zeros
from upwell.cloud.engines.device_loss import run_error
from upwell.cloud.engines.error_text import reason_of
from upwell.cloud.engines.model_settings import AUTOMATIC, ModelSettings
from upwell.cloud.engines.safetensors_weights import misfits, open_weights, refuse_misfits
from upwell.cloud.engines.trusted_files import read_trusted
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec, oip_datatype


@dataclass(frozen=True)
class JaxSignature:
    """The tensors of a program `(weights, inputs) -> outputs`; -1 in a shape means the rows, other sizes are fixed."""

    weights: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    by_rows: bool
    """Whether there are rows, which every input and output then has."""

    @classmethod
    def of(cls, program: Any) -> JaxSignature:
        """Read it from a `jax.export.Exported`. Raises `ModelFailed` with the reason for a program that cannot be
        served."""
        if program.nr_devices != 1:
            raise ModelFailed(f"it was exported for {program.nr_devices} devices; expected 1")
        arguments = program.in_tree.unflatten(program.in_avals)
        if len(arguments) != 2 or arguments[1] or len(arguments[0]) != 2:
            raise ModelFailed("its function must take exactly two dictionaries, (weights, inputs)")
        weights, inputs = (_named(what, tree) for what, tree in zip(("weights", "inputs"), arguments[0], strict=True))
        outputs = _named("outputs", program.out_tree.unflatten(program.out_avals))
        if not inputs or not outputs:
            raise ModelFailed("its function must have at least one input and one output")
        rows = _symbol(inputs)
        signature = cls(
            tuple(_spec(f"weight {name!r}", name, aval, None) for name, aval in weights.items()),
            tuple(_spec(f"input {name!r}", name, aval, rows) for name, aval in inputs.items()),
            tuple(_spec(f"output {name!r}", name, aval, rows) for name, aval in outputs.items()),
            rows is not None,
        )
        for spec in (*signature.inputs, *signature.outputs) if rows is not None else ():
            if spec.shape[:1] != (-1,):  # batches are padded, and only results with rows can drop the padding
                raise ModelFailed(f"{spec.name!r} has shape {list(spec.shape)}; all inputs and outputs need rows")
        return signature


def _named(what: str, tree: object) -> Mapping[str, Any]:
    if isinstance(tree, dict) and all(hasattr(aval, "shape") for aval in tree.values()):
        return tree
    raise ModelFailed(f"the {what} of its function must be a dictionary of arrays by name")


def _symbol(inputs: Mapping[str, Any]) -> str | None:
    """The name of the symbolic first dimension, the rows, if there is one."""
    symbols = {str(aval.shape[0]) for aval in inputs.values() if aval.shape and not isinstance(aval.shape[0], int)}
    if len(symbols) > 1 or not all(symbol.isidentifier() for symbol in symbols):
        raise ModelFailed(f"its inputs have rows {', '.join(sorted(symbols))}; all must have the same, such as 'rows'")
    return next(iter(symbols), None)


def _spec(what: str, name: str, aval: Any, rows: str | None) -> TensorSpec:
    sizes = [
        -1 if place == 0 and str(size) == rows else size if isinstance(size, int) else None
        for place, size in enumerate(aval.shape)
    ]
    shape = tuple(size for size in sizes if size is not None)
    if len(shape) < len(sizes):
        raise ModelFailed(
            f"{what} has shape [{', '.join(map(str, aval.shape))}]; only the first size, the rows, may vary, "
            "since each shape is compiled separately"
        )
    try:
        return TensorSpec(name, oip_datatype(np.dtype(aval.dtype)), shape)
    except (InvalidRequest, TypeError):
        raise ModelFailed(f"{what} is {aval.dtype}, which requests cannot carry") from None


_DTYPES: Mapping[str, str] = {
    "BOOL": "BOOL", "UINT8": "U8", "UINT16": "U16", "UINT32": "U32", "UINT64": "U64", "INT8": "I8", "INT16": "I16",
    "INT32": "I32", "INT64": "I64", "FP16": "F16", "BF16": "BF16", "FP32": "F32", "FP64": "F64",
}  # fmt: skip
"""Datatypes in safetensors' spelling. It has others that NumPy lacks."""


def read_weights(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Read the tensors named in `specs` from the file at `path`, after comparing names, shapes and dtypes.

    Other tensors are ignored, since a part of a network may use the file of the whole. Without `specs` no file is
    needed. Raises `ModelFailed` for a missing or mismatched file.
    """
    if not specs:
        return {}
    if not path.exists():
        raise ModelFailed(f"there is no {path.name} beside it; the program names {len(specs)} weights")
    with open_weights(path, "numpy") as file:
        names = set(file.keys())
        slices = {spec.name: file.get_slice(spec.name) for spec in specs if spec.name in names}
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        dtypes = {name: one.get_dtype() for name, one in slices.items()}
        wrong = [*misfits("program", {spec.name: spec.shape for spec in specs}, shapes)]
        wrong += [
            f"{spec.name} is {dtypes[spec.name]}, but the program takes {_DTYPES.get(spec.datatype, spec.datatype)}"
            for spec in specs
            if spec.name in dtypes and dtypes[spec.name] != _DTYPES.get(spec.datatype)
        ]
        refuse_misfits(path, "the program", wrong)
        return {spec.name: file.get_tensor(spec.name) for spec in specs}


WEIGHTS_FILE = "model.safetensors"

_KINDS: Mapping[str, str] = {"gpu": "cuda"}
"""Names of devices in JAX that differ from those of the other engines, with which they are shared."""

_FIXED = 0
"""The key of the only program of a model without rows."""

_log = logging.getLogger(__name__)
# It logs every kind of device that is missing.
logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)

# Without this JAX would truncate INT64 and FP64 inputs to 32 bits.
jax.config.update("jax_enable_x64", True)


class JaxEngine:
    """One exported program on one device, compiled for each bucket during warm-up.

    `run` never compiles and takes only batches of a bucket's size. Padding with zeros assumes that rows do not depend
    on each other, as in inference of networks.
    """

    file_name: ClassVar[str] = "model.jax"
    platform: ClassVar[str] = "jax_export"

    def __init__(
        self, program: export.Exported, weights: Mapping[str, Any], device: Any, settings: ModelSettings
    ) -> None:
        signature = JaxSignature.of(program)
        self.version = f"jax {jax.__version__}"
        self.inputs: tuple[TensorSpec, ...] = signature.inputs
        self.outputs: tuple[TensorSpec, ...] = signature.outputs
        self.buckets = buckets_for(settings.buckets, settings.max_batch) if signature.by_rows else ()
        self._call = jax.jit(program.call)
        self._weights: Mapping[str, Any] | None = jax.device_put(weights, device)
        self._place = jax.sharding.SingleDeviceSharding(device)
        kind = _KINDS.get(device.platform, device.platform)
        self.device = kind if kind == "cpu" else f"{kind}:{device.id}"
        self._compiled: dict[int, Any] = {}

    @classmethod
    def load(cls, name: str, path: Path, settings: ModelSettings) -> JaxEngine:
        """Load `path` and the weights beside it. Raises `ModelFailed`; nothing untrusted is deserialized."""
        data = read_trusted(path, settings.trusted)
        try:
            program = export.deserialize(bytearray(data))
        except Exception as error:  # FlatBuffers and JAX raise many kinds of errors for a wrong file
            raise ModelFailed(
                f"{path.name} is not a program that JAX {jax.__version__} reads: {reason_of(error)}"
            ) from error
        device = _device(name, settings.device, program.platforms)
        weights = read_weights(path.with_name(WEIGHTS_FILE), JaxSignature.of(program).weights)
        return cls(program, weights, device, settings)

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run the compiled program; see `Engine.run`. Raises `ModelFailed` also before `warm_up`."""
        check_batch(batch, self.inputs, self.buckets)
        return self._run(batch)

    def _run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the program compiled for this number of rows, as new arrays."""
        weights, program = self._weights, self._compiled.get(self._bucket_of(batch))
        if weights is None or program is None:
            raise ModelFailed("the model is closed" if weights is None else "it is not compiled; call warm_up first")
        try:
            results = program(weights, dict(batch))
            return {name: np.array(result) for name, result in results.items()}
        except Exception as error:  # JAX and XLA raise many kinds
            raise run_error(f"JAX failed: {reason_of(error)}", error, self.device) from error

    def _bucket_of(self, batch: Mapping[str, Array]) -> int:
        return len(next(iter(batch.values()))) if self.buckets else _FIXED

    def warm_up(self, rows: int) -> None:
        """Compile for `rows` rows if needed, and run zeros once; see `Engine.warm_up`."""
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
    """The configured device, such as `cpu` or `tpu:1`, if the program was exported for its kind."""
    if text == AUTOMATIC:
        return _automatic(name, platforms)
    kind, _, number = text.partition(":")
    if kind not in platforms:
        raise ModelFailed(
            f"it was exported for {', '.join(platforms)}, but `device` is {text!r}; export it for that too"
        )
    try:
        devices = jax.devices(kind)
    except RuntimeError as error:
        raise ModelFailed(f"device {text!r} is not usable: {reason_of(error)}") from error
    if int(number or 0) >= len(devices):
        raise ModelFailed(f"there is no device {text!r}; JAX finds {', '.join(map(str, devices))}")
    return devices[int(number or 0)]


def _automatic(name: str, platforms: tuple[str, ...]) -> Any:
    """The accelerator that JAX finds if the program was exported for it, else the CPU; logged."""
    for kind in sorted(platforms, key="cpu".__eq__):
        try:
            device = jax.devices(kind)[0]
        except RuntimeError:
            continue
        _log.info("model %s runs on %s", name, device)
        return device
    raise ModelFailed(f"it was exported for {', '.join(platforms)}, but JAX finds none of these here")
