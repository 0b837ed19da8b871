"""LiteRT's NPU path (`CompiledModel`) behind the `Runtime` interface."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.input_check import InputCheck, blank
from upwell.edge.runtimes.placement import AcceleratorFailed, AcceleratorNotUsable, from_nodes
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.interpreter import INTERPRETER_ERRORS, describe, one_line
from upwell.edge.runtimes.tflite.npu_options import litert, litert_module, npu_options, unloadable
from upwell.edge.runtimes.tflite.npu_plan import explained
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

_SOURCE_LINE = re.compile(r"(└ )?ERROR: \[[^\]]*\]\s*(└ )?")
_HOST_MEMORY = 1  # LiteRtTensorBufferType: the type that the CPU's kernels use


class Incomplete(Exception):
    """LiteRT did not compile the whole model for the NPU; the text is LiteRT's."""


@dataclass(frozen=True)
class _Bound:
    """One input or output with its buffer and its layout."""

    spec: TensorSpec
    buffer: Any
    dtype: np.dtype[Any]
    elements: int


class CompiledRuntime:
    """A model compiled by LiteRT for an NPU (`provider: litert_npu`, options as in `npu_options`).

    It is all or nothing: LiteRT compiles for the NPU alone, so a node that the vendor's plugin does not take makes
    compilation fail, and `prefer` and `must` are the same. The evidence is that it compiled and that the vendor's
    dispatcher owns its inputs and outputs (`runs_on_npu`).

    Calls run one at a time (`instances` is 1), and LiteRT holds Python's GIL while it runs, so no other thread of the
    process makes progress meanwhile. Shapes are the compiled ones: for an open dimension of the model, `inputs` and
    `outputs` give its fixed size.

    Raises `ConfigError` for a file that is not a LiteRT model and `AcceleratorNotUsable` if it cannot run on the NPU,
    naming the nodes left on the CPU if LiteRT's partitioning tool is available. An NPU that fails later raises
    `AcceleratorFailed`.
    """

    name: str = "tflite"
    instances: int = 1

    def __init__(self, path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> None:
        package = litert(options)
        self.version = package.version
        self._path = path
        inputs, outputs, nodes = describe(package, path)
        try:
            self._model = compile_for_npu(path, accelerator)
        except Incomplete as error:
            raise AcceleratorNotUsable(f"{error}{explained(path, options, accelerator)}") from None
        if not runs_on_npu(self._model):
            raise AcceleratorNotUsable(f"{accelerator.provider}: LiteRT compiled the model and runs it on the CPU")
        self.placement: Placement = from_nodes(accelerator, len(nodes), ())
        try:
            self._given, self._gives = self._bind([port.spec for port in inputs], [port.spec for port in outputs])
            self.inputs = tuple(bound.spec for bound in self._given)
            self.outputs = tuple(bound.spec for bound in self._gives)
            self._run_now({spec.name: blank(spec.datatype, spec.shape) for spec in self.inputs})
        except INTERPRETER_ERRORS as error:
            raise AcceleratorNotUsable(f"{accelerator.provider} cannot run the model: {one_line(error)}") from None
        _check_batch(accelerator, options.batch, self.inputs)
        self._check = InputCheck(self.inputs)
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        self._check(inputs)
        if any(inputs[spec.name].shape != spec.shape for spec in self.inputs):
            raise InvalidRequest(self._check.mismatch(inputs))
        with self._lock:
            if self._model is None:
                raise ModelFailed(f"{self._path.name} is closed")
            try:
                return self._run_now(inputs)
            except INTERPRETER_ERRORS as error:
                raise AcceleratorFailed(one_line(error)) from None

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        with self._lock:
            self._model = None
            self._given, self._gives = [], []
            self._given_buffers = self._gives_buffers = ()

    def _run_now(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for bound in self._given:
            bound.buffer.write(inputs[bound.spec.name])
        self._model.run_by_index(0, self._given_buffers, self._gives_buffers)
        return {
            bound.spec.name: bound.buffer.read(bound.elements, bound.dtype).reshape(bound.spec.shape)
            for bound in self._gives
        }

    def _bind(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[list[_Bound], list[_Bound]]:
        signature, names = next(iter(self._model.get_signature_list().items()))
        self._given_buffers = self._model.create_input_buffers(0)
        self._gives_buffers = self._model.create_output_buffers(0)
        return (
            _bound(inputs, names["inputs"], self._model.get_input_tensor_details(signature), self._given_buffers),
            _bound(outputs, names["outputs"], self._model.get_output_tensor_details(signature), self._gives_buffers),
        )


def compile_for_npu(path: Path, accelerator: AcceleratorOptions) -> Any:
    """LiteRT's model, compiled for the NPU alone.

    Raises `Incomplete`, and `AcceleratorNotUsable` for a wrong option.
    """
    options, environment = npu_options(accelerator)
    compiled_model = litert_module("compiled_model").CompiledModel
    try:
        return compiled_model.from_file(str(path), options=options, environment=environment)
    except INTERPRETER_ERRORS as error:
        why = unloadable(environment) or _said(error)
        raise Incomplete(f"{accelerator.provider} did not compile the model: {why}") from None


def _said(error: Exception) -> str:
    """LiteRT's error without source lines and without its advice to allow the CPU, which would hide the failure."""
    text = _SOURCE_LINE.sub("", one_line(error)).partition(" Add kLiteRt")[0]
    return f"{text or 'no reason given'} (LiteRT writes the cause to standard error)"


def runs_on_npu(model: Any) -> bool:
    """Whether a compiled model runs on the NPU: fully accelerated, with buffers that are not just host memory.

    The first alone is no evidence: LiteRT also reports it for models on the CPU. But there inputs and outputs accept
    only host memory, while a dispatcher adds the memory types that its device shares.
    """
    given, gives = (len(model.get_signature_by_index(0)[side]) for side in ("inputs", "outputs"))
    requirements = [model.get_input_buffer_requirements(index) for index in range(given)]
    requirements += [model.get_output_buffer_requirements(index) for index in range(gives)]
    return bool(model.is_fully_accelerated()) and all(one["supported_types"] != [_HOST_MEMORY] for one in requirements)


def _bound(
    specs: Sequence[TensorSpec], names: Sequence[str], details: Mapping[str, Any], buffers: Sequence[Any]
) -> list[_Bound]:
    """Each specification with its buffer: by name if the compiled model has the same names, else by position."""
    if len(names) != len(specs):
        raise ValueError(f"the compiled model has {len(names)} tensors for {len(specs)}")
    by_name = {spec.name for spec in specs} == set(names)
    bound = []
    for position, spec in enumerate(specs):
        index = names.index(spec.name) if by_name else position
        shape = tuple(int(size) for size in details[names[index]]["shape"])
        fixed = replace(spec, shape=shape)
        bound.append(_Bound(fixed, buffers[index], numpy_dtype(spec.datatype), math.prod(shape)))
    return bound


def _check_batch(accelerator: AcceleratorOptions, batch: int | None, inputs: Sequence[TensorSpec]) -> None:
    """Refuse another batch: LiteRT compiles open dimensions only for the example sizes in the file."""
    leading = sorted({spec.shape[0] for spec in inputs if spec.shape})
    if batch is not None and batch not in leading:
        sizes = " and ".join(map(str, leading)) or "no"
        raise AcceleratorNotUsable(f"{accelerator.provider} compiles this model for {sizes} rows, not `batch: {batch}`")
