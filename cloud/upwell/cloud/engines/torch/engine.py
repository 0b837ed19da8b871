"""PyTorch: a module whose class the operator names, with weights from a safetensors file, or the file's program.

The class declares its tensors, since a safetensors file has only weights: `inputs` and `outputs` are tuples of (name,
OIP datatype, shape), with -1 for a dynamic dimension. `forward` takes tensors in the order of `inputs` and returns a
tensor, or a tuple in the order of `outputs`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

# A failing plugin of another accelerator would break `import torch` itself.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import numpy as np
import torch

from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.engines.batches import buckets_for, check_batch, only_rows_vary, shape_fits, zero_batch
from upwell.cloud.engines.error_text import reason_of, tellable
from upwell.cloud.engines.torch.devices import open_device, warn_of_slow_precision
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
from upwell.cloud.engines.torch.network_class import build, declared_specs, find_class
from upwell.cloud.engines.torch.program_module import ProgramModule
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import DTYPES, Array, numpy_dtype

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
            raise ModelFailed(tellable(str(error))) from error

    def _run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        if torch.get_num_threads() != self._settings.threads:  # per calling thread, and any thread may call
            torch.set_num_threads(self._settings.threads)
        forward = self._forward
        if forward is None:
            raise ModelFailed("the model is closed")
        is_pinned = self._device.type == "cuda"  # which avoids another copy before the transfer
        tensors = [_to_torch(batch[name], kind, is_pinned) for name, kind in self._kinds.items()]
        try:
            with torch.inference_mode():
                results = self._network_call(forward, tensors)(tensors)
                arrays = [_to_numpy(result) for result in results if isinstance(result, torch.Tensor)]
        except Exception as error:  # the operator's own class may raise anything
            raise ModelFailed(f"the network {failure_of(error)}") from error
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
    if tensor.dtype is torch.bfloat16:
        return np.array(tensor.view(torch.int16).cpu().numpy().view(_BF16))
    return np.array(tensor.detach().cpu().numpy())
