"""PyTorch: a module whose class the operator names, with weights from a safetensors file, or the file's program.

The class declares its tensors, since a safetensors file has only weights: `inputs` and `outputs` are tuples of (name,
OIP datatype, shape), with -1 for a dynamic dimension. `forward` takes tensors in the order of `inputs` and returns a
tensor, or a tuple in the order of `outputs`. Devices are built-in, or added by importing a vendor's package.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

# A failing plugin of another accelerator would break `import torch` itself.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import numpy as np
import torch

from upwell.cloud.engines.batch_checks_and_buckets import (
    buckets_for,
    check_batch,
    only_rows_vary,
    shape_fits,
    zero_batch,
)
from upwell.cloud.engines.device_loss import run_error
from upwell.cloud.engines.error_text import reason_of, tellable
from upwell.cloud.engines.model_settings import AUTOMATIC, ModelSettings
from upwell.cloud.engines.torch.network_calls import (
    PRECISIONS,
    Forward,
    GraphCall,
    NetworkCall,
    check_compiler,
    check_graphs,
    compiled,
    eager,
    failure_of,
    forward_of,
    record_on,
)
from upwell.cloud.engines.torch.networks import ProgramModule, build, declared_specs, find_class
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import DTYPES, Array, numpy_dtype

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DevicePackage:
    """A package that adds a kind of device to torch: the module to import, and how to install it."""

    module: str
    install: str


PACKAGES: Mapping[str, DevicePackage] = {
    "hpu": DevicePackage("habana_frameworks.torch.core", "use Intel Gaudi's PyTorch image, which includes it"),
    "neuron": DevicePackage("torch_neuronx", "install torch-neuronx of torch's version from AWS Neuron's index"),
    "npu": DevicePackage("torch_npu", "pip install torch-npu, of torch's version, beside Huawei's CANN"),
    "tpu": DevicePackage("torch_tpu", "pip install torch-tpu"),
}
"""Packages by device name. Each is imported only for a model on that device, since a broken one would break all of
torch."""

_BUILDS: Mapping[str, str] = {
    "cuda": "it needs a torch built for CUDA or ROCm, its driver and a device",
    "xpu": "it needs torch's build for Intel GPUs, its driver and a device",
    "mps": "it needs torch on a Mac with Apple silicon",
}

_UNITS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("amx_bf16", "bf16", "sve_bf16"),
    "fp16": ("amx_fp16", "avx512_fp16", "fp16_arith"),
}
"""CPU features for half-precision multiplication, on x86-64 and ARM. On an x86-64 CPU with only AVX2 a ResNet-18 took
6.6 times as long in bf16 as in fp32."""


def open_device(text: str) -> torch.device:
    """Open the device named `text` (`cpu`, `cuda:1`, `npu`, ...; `auto`: the accelerator if there is one, else the
    CPU).

    Raises `ModelFailed` with the remedy if its package is missing or this torch cannot use it.
    """
    if text == AUTOMATIC:
        return _automatic()
    kind, _, number = text.partition(":")
    if kind == "cpu" and number not in ("", "0"):
        raise ModelFailed(f"there is no device {text!r}: torch has one CPU; write `cpu`")
    if kind in PACKAGES:
        _import(text, PACKAGES[kind])
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except Exception as error:  # a missing backend raises AssertionError, RuntimeError and others
        hint = f"; {_BUILDS[kind]}" if kind in _BUILDS else ""
        raise ModelFailed(f"device {text!r} is not usable: {reason_of(error)}{hint}") from error
    return device


def warn_of_slow_precision(name: str, precision: str | None, device: torch.device) -> None:
    """Warn if half precision makes a model slower, on a CPU without support for it."""
    abilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if device.type == "cpu" and precision is not None and lacks_unit(precision, abilities):
        _log.warning("model %s: on this CPU, which does not support it, %s is slower than fp32", name, precision)


def lacks_unit(precision: str, abilities: Mapping[str, object]) -> bool:
    """Whether a CPU with these `abilities` (from `torch.cpu.get_capabilities`) must emulate `precision`."""
    return bool(abilities) and precision in _UNITS and not any(abilities.get(unit) for unit in _UNITS[precision])


def _import(text: str, package: DevicePackage) -> None:
    try:
        importlib.import_module(package.module)
    except ModuleNotFoundError as error:
        if error.name is None or not package.module.startswith(error.name):
            raise ModelFailed(f"device {text!r}: importing {package.module} failed: {reason_of(error)}") from error
        raise ModelFailed(
            f"device {text!r} needs the package {package.module}, which is not installed: {package.install}"
        ) from None
    except Exception as error:  # a device's package may raise any error, such as for a missing driver
        raise ModelFailed(f"device {text!r}: importing {package.module} failed: {reason_of(error)}") from error


def _automatic() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        names = ", ".join(PACKAGES)
        _log.info("device auto: torch finds no accelerator and runs on the CPU (%s must be named explicitly)", names)
        return torch.device("cpu")
    _log.info("device auto: torch runs on %s", found)
    return found


_BF16 = numpy_dtype("BF16")


class TorchEngine:
    """One module in evaluation mode on one device, shared by all instances of a model.

    With `compile` or `graphs` it is prepared for each of the `buckets` during warm-up, and takes batches of only these
    sizes, so that nothing is compiled while serving.
    """

    file_name: ClassVar[str] = "model.safetensors"
    platform: ClassVar[str] = "pytorch_safetensors"

    def __init__(self, module: torch.nn.Module, device: torch.device, settings: ModelSettings) -> None:
        self.version = f"torch {torch.__version__}"
        self.device = str(device)
        self.inputs = declared_specs(module, "inputs")
        self.outputs = declared_specs(module, "outputs")
        self._forward: Forward | None = forward_of(module, settings.precision, self.outputs)
        self._device = device
        self._settings = settings
        self._kinds = {spec.name: _torch_dtype(spec.datatype) for spec in self.inputs}
        self._network_calls: dict[tuple[torch.Size, ...], NetworkCall] = {}
        self._preparing = threading.Lock()
        self._is_prepared = settings.compile or settings.graphs
        self.buckets = self._needed_buckets(settings) if self._is_prepared else ()

    @classmethod
    def load(cls, name: str, path: Path, settings: ModelSettings) -> TorchEngine:
        """Build the class named by the operator with the weights at `path`; without a class, use the file's program.

        Raises `ModelFailed`.
        """
        device = open_device(settings.device)
        if settings.compile:
            check_compiler(device)
        if settings.graphs:
            check_graphs(device)
        module: torch.nn.Module | None = None if settings.torch_class else ProgramModule.open(path)
        if module is None:
            module = build(find_class(name, settings.torch_class), path, settings.arguments)
        warn_of_slow_precision(name, settings.precision, device)
        try:
            dtype = PRECISIONS[settings.precision] if settings.precision is not None else None
            return cls(module.eval().to(device=device, dtype=dtype), device, settings)
        except RuntimeError as error:
            raise ModelFailed(f"device {settings.device!r}: {reason_of(error)}") from error

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run the module. See `Engine.run`."""
        check_batch(batch, self.inputs, self.buckets)
        try:
            return self._run(batch)
        except ModelFailed as error:  # from the operator's class, which may name its own files
            raise type(error)(tellable(str(error))) from error

    def _run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        if torch.get_num_threads() != self._settings.threads:  # per calling thread, and any thread may call
            torch.set_num_threads(self._settings.threads)
        forward = self._forward
        if forward is None:
            raise ModelFailed("the model is closed")
        is_pinned = self._device.type == "cuda"  # which avoids another copy before the transfer
        try:
            tensors = [_to_torch(batch[name], kind, is_pinned) for name, kind in self._kinds.items()]
            with torch.inference_mode():
                results = self._network_call(forward, tensors)(tensors)
                arrays = [_to_numpy(result) for result in results if isinstance(result, torch.Tensor)]
        except Exception as error:  # the operator's own class may raise anything
            raise run_error(f"the network {failure_of(error)}", error, self.device) from error
        if len(arrays) != len(results):
            raise ModelFailed(f"the network returned {_kinds(results)}; expected tensors in the order of its `outputs`")
        return self._checked(arrays)

    def _network_call(self, forward: Forward, tensors: Sequence[torch.Tensor]) -> NetworkCall:
        """The call for tensors of these shapes, created the first time."""
        key = tuple(one.shape for one in tensors) if self._is_prepared else ()
        call = self._network_calls.get(key)
        if call is None:
            with self._preparing:
                call = self._network_calls.get(key) or self._new_call(forward, tensors)
                self._network_calls[key] = call
        return call

    def _new_call(self, forward: Forward, tensors: Sequence[torch.Tensor]) -> NetworkCall:
        if self._settings.compile:
            forward = compiled(forward, self._device)
        if self._settings.graphs:
            return GraphCall(forward, [one.to(self._device) for one in tensors], record_on(self._device))
        return eager(forward, self._device)

    def _needed_buckets(self, settings: ModelSettings) -> tuple[int, ...]:
        """The numbers of rows to prepare, none for a model of fixed shapes. Raises `ModelFailed` for open shapes."""
        specs = (*self.inputs, *self.outputs)
        if only_rows_vary(specs):
            return buckets_for(settings.buckets, settings.max_batch)
        if any(-1 in spec.shape for spec in self.inputs):
            word = "compile" if settings.compile else "graphs"
            raise ModelFailed(
                f"`{word}: true` needs fixed shapes except for the rows, the first dimension of every input "
                f"and output; here {', '.join(f'{one.name} is {list(one.shape)}' for one in specs)}"
            )
        return ()

    def _checked(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """The results by name, checked against the class's declaration."""
        if len(arrays) != len(self.outputs):
            raise ModelFailed(f"the network returned {len(arrays)} outputs, but its class declares {len(self.outputs)}")
        for spec, array in zip(self.outputs, arrays, strict=True):
            if array.dtype != DTYPES[spec.datatype] or not shape_fits(array.shape, spec.shape):
                raise ModelFailed(
                    f"output {spec.name!r} is {array.dtype} {list(array.shape)}, but "
                    f"its class declares {spec.datatype} {list(spec.shape)}"
                )
        return {spec.name: array for spec, array in zip(self.outputs, arrays, strict=True)}

    def warm_up(self, rows: int) -> None:
        """Run zeros once, so that memory is allocated and kernels are chosen or compiled. See `Engine.warm_up`."""
        batch = zero_batch(self.inputs, rows)
        if batch is not None:
            check_batch(batch, self.inputs, self.buckets)
            self._run(batch)

    def close(self) -> None:
        """Free the module."""
        self._forward = None
        self._network_calls.clear()


def _kinds(results: Sequence[object]) -> str:
    return " and ".join(type(one).__name__ for one in results)


def _torch_dtype(datatype: str) -> torch.dtype:
    return torch.bfloat16 if datatype == "BF16" else torch.from_numpy(np.empty(0, DTYPES[datatype])).dtype


def _to_torch(array: Array, kind: torch.dtype, is_pinned: bool) -> torch.Tensor:
    """A tensor on the host with its own memory, since the network may write to it and a request's may be read-only."""
    own = torch.empty(array.shape, dtype=kind, pin_memory=is_pinned)
    if kind is torch.bfloat16:
        own.view(torch.int16).numpy()[...] = array.view(np.int16)
    else:
        own.numpy()[...] = array
    return own


def _to_numpy(tensor: torch.Tensor) -> Array:
    """A new array, even if the network returned its input or one of its weights."""
    host = tensor.detach().cpu()
    array = host.view(torch.int16).numpy().view(_BF16) if host.dtype is torch.bfloat16 else host.numpy()
    return np.array(array) if tensor.is_cpu else array  # from a device it is new already
