"""Ways to call a torch network: directly, compiled for one shape, or captured as a device graph.

A `NetworkCall` takes tensors on the host and returns the outputs on the device. Compiled calls and graphs work for one
shape each, so an engine has one for every prepared number of rows.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

import torch

from upwell.cloud.engines.error_text import reason_of
from upwell.cloud.engines.model_settings import Precision
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import TensorSpec

Tensors: TypeAlias = "tuple[torch.Tensor, ...]"
Forward: TypeAlias = Callable[..., Tensors]
"""The network: maps tensors on its device, in the order of the class's `inputs`, to those of its `outputs`."""
NetworkCall: TypeAlias = Callable[[Sequence[torch.Tensor]], Tensors]
Record: TypeAlias = Callable[[Callable[[], Tensors]], "tuple[Callable[[], None], Tensors]"]
"""Captures a call: returns the function that replays it, and the tensors that every replay writes to."""

PRECISIONS: Mapping[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_FLOATS: Mapping[str, torch.dtype] = {
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
_BACKENDS: Mapping[str, str] = {"hpu": "hpu_backend", "neuron": "neuron"}
"""Compiler backends of devices that torch's default does not support, as named by their packages."""
_RUNS_BEFORE_CAPTURE = 3
"""Number of runs before a capture: the first runs choose kernels and allocate memory, which a capture must not."""
_ERROR_MODE: Final = "thread_local"
"""Capture mode that tolerates other models running on the device, which by default break the capture."""


def forward_of(module: torch.nn.Module, precision: Precision | None, outputs: Sequence[TensorSpec]) -> Forward:
    """The network as a function that computes in `precision` (None: that of its class).

    Floating-point inputs are cast to it, and floating-point outputs to the declared datatypes.
    """
    dtype = PRECISIONS[precision] if precision is not None else None
    declared = tuple(_FLOATS.get(spec.datatype) for spec in outputs)

    def forward(*tensors: torch.Tensor) -> Tensors:
        if dtype is not None:
            tensors = tuple(one.to(dtype) if one.is_floating_point() else one for one in tensors)
        answer = module(*tensors)
        results = tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)
        if dtype is None or len(results) != len(declared) or not all(isinstance(one, torch.Tensor) for one in results):
            return results
        return tuple(
            one if kind is None or not one.is_floating_point() else one.to(kind)
            for one, kind in zip(results, declared, strict=True)
        )

    return forward


def eager(forward: Forward, device: torch.device) -> NetworkCall:
    """The network without compilation, for any shape."""
    return lambda tensors: forward(*(one.to(device, non_blocking=True) for one in tensors))


def compiled(forward: Forward, device: torch.device) -> Forward:
    """The network compiled as a whole by `torch.compile` at its first call, only for the shapes of that call."""
    # torch caches compilations per code object and gives up after eight shapes; reloads would add to these.
    own = types.FunctionType(
        forward.__code__.replace(), forward.__globals__, forward.__name__, closure=forward.__closure__
    )
    made: Any = torch.compile(own, dynamic=False, fullgraph=True, backend=_BACKENDS.get(device.type, "inductor"))
    return made  # type: ignore[no-any-return]  # untyped there


def check_compiler(device: torch.device) -> None:
    """Raise `ModelFailed` if `torch.compile` has no C++ compiler for the CPU."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise ModelFailed(
            f"`compile: true` on the CPU needs a C++ compiler, but there is no {compiler}; install it (Debian: g++), "
            "name another one in CXX, or leave `compile` out"
        )


def failure_of(error: BaseException) -> str:
    """The failure of a network or its compilation, short enough for a status: `failed: division by zero`."""
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return f"cannot be compiled as a whole: {reason_of(getattr(error, 'inner_exception', error))}"
    return f"failed: {reason_of(error)}"


def check_graphs(device: torch.device) -> None:
    """Raise `ModelFailed` if the device has no graphs, or this torch cannot capture them."""
    if device.type == "cpu":
        raise ModelFailed("`graphs: true` needs a device with graphs, such as cuda; a CPU has none")
    if device.type != "cuda" and not hasattr(torch.accelerator, "Graph"):
        raise ModelFailed(
            f"`graphs: true` on {device.type} needs torch.accelerator.Graph, available from torch 2.12; "
            f"this is torch {torch.__version__}"
        )


class GraphCall:
    """A network captured once and replayed: the same kernels on the same memory, without Python in between.

    `examples` are tensors on the device with its one shape. Calls run one at a time, since they share inputs and
    outputs; each returns a copy.
    """

    def __init__(self, forward: Forward, examples: Sequence[torch.Tensor], record: Record) -> None:
        self._lock = threading.Lock()
        self._forward = forward  # a compiled one owns constants that replays read
        self._inputs = [one.clone() for one in examples]
        self._replay, self._outputs = record(lambda: forward(*self._inputs))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Run the graph on `tensors`, which may still be on the host."""
        with self._lock:
            for own, given in zip(self._inputs, tensors, strict=True):
                own.copy_(given, non_blocking=True)
            self._replay()
            return tuple(one.clone() for one in self._outputs)


def record_on(device: torch.device) -> Record:
    """Captures on an accelerator, on a separate stream. Not yet run on hardware."""
    new_capture = _capture_on_cuda if device.type == "cuda" else _capture_elsewhere

    def record(call: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        graph, stream, capture = new_capture(device)
        torch.accelerator.synchronize(device)
        with stream:
            for _ in range(_RUNS_BEFORE_CAPTURE):
                call()
        with stream, capture:
            outputs = call()
        torch.accelerator.synchronize(device)
        return graph.replay, outputs

    return record


_Capture: TypeAlias = "tuple[Any, AbstractContextManager[object], AbstractContextManager[object]]"
"""A graph, the context that makes its stream current, and the context that captures on it."""


def _capture_on_cuda(device: torch.device) -> _Capture:
    """The interface of CUDA and ROCm, which every supported torch has."""
    cuda: Any = torch.cuda  # untyped there
    stream, graph = cuda.Stream(device), cuda.CUDAGraph()
    return graph, cuda.stream(stream), cuda.graph(graph, stream=stream, capture_error_mode=_ERROR_MODE)


def _capture_elsewhere(device: torch.device) -> _Capture:
    graph: Any = torch.accelerator.Graph(capture_error_mode=_ERROR_MODE)
    return graph, torch.Stream(device), graph
