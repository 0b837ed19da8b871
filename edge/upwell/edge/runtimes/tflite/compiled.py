"""LiteRT's own way to an NPU, behind the interface of a runtime."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.inputs import InputCheck
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable, from_nodes, lost
from upwell.edge.runtimes.tflite.interpreter import INTERPRETER_ERRORS, describe, one_line
from upwell.edge.runtimes.tflite.npu_graph import CompiledGraph, Incomplete
from upwell.edge.runtimes.tflite.npu_options import litert
from upwell.edge.runtimes.tflite.npu_plan import explained
from upwell.edge.runtimes.tflite.runtime import TfliteRuntime
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec


class CompiledRuntime:
    """A model compiled by LiteRT for an NPU (`provider: litert_npu`, options as in `npu_options`).

    It is all or nothing: LiteRT is asked for the NPU alone, so a node that the vendor's plugin does not take is a
    failure to compile, and `prefer` and `must` come to the same. The evidence is that it compiled so and that the
    vendor's dispatcher owns its inputs and outputs (`runs_on_npu`).

    Calls take turns (`instances` is 1), and LiteRT holds Python's interpreter lock while it runs: no other thread of
    the process does anything meanwhile. Shapes are those that were compiled: where the model leaves a dimension open,
    `inputs` and `outputs` say what it was fixed to.

    Raises `ConfigError` for a file that is no model for LiteRT and `AcceleratorNotUsable` for every reason why it
    cannot on the NPU, naming the nodes that were left where LiteRT's partitioning tool is there to tell. An NPU that
    fails later never costs an answer: the model goes on on the CPU and `placement.reason` says so.
    """

    name: str = "tflite"
    instances: int = 1

    def __init__(self, path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> None:
        package = litert(options)
        self.version = package.version
        self._path = path
        self._options = options.model_copy(update={"package": package.name, "instances": 1})
        inputs, outputs, nodes = describe(package, path)
        self._graph: CompiledGraph | None
        try:
            self._graph = CompiledGraph(
                path, accelerator, (port.spec for port in inputs), (port.spec for port in outputs)
            )
        except Incomplete as error:
            raise AcceleratorNotUsable(f"{error}{explained(path, options, accelerator)}") from None
        self.placement: Placement = from_nodes(accelerator, len(nodes), ())
        _check_batch(accelerator, options.batch, self._graph.inputs)
        self.inputs, self.outputs = self._graph.inputs, self._graph.outputs
        self._check = InputCheck(self.inputs)
        self._shapes = {spec.name: spec.shape for spec in self.inputs}
        self._on_cpu: TfliteRuntime | None = None
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        self._check(inputs)
        if any(inputs[name].shape != shape for name, shape in self._shapes.items()):
            raise InvalidRequest(self._check.mismatch(inputs))
        with self._lock:
            if self._on_cpu is not None:
                return self._on_cpu.run(inputs)
            if self._graph is None:
                raise ModelFailed(f"{self._path.name} is closed")
            try:
                return self._graph.run(inputs)
            except INTERPRETER_ERRORS as error:
                return self._run_without_accelerator(inputs, error)

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        with self._lock:
            self._graph = None
            if self._on_cpu is not None:
                self._on_cpu.close()

    def _run_without_accelerator(self, inputs: Mapping[str, Array], failure: Exception) -> dict[str, Array]:
        try:
            on_cpu = TfliteRuntime(self._path, self._options)
        except ConfigError as error:
            raise ModelFailed(f"the model cannot be opened again after a failure: {error}") from None
        answer = on_cpu.run(inputs)
        self._on_cpu, self._graph = on_cpu, None
        self.placement = lost(self._path, self.placement, one_line(failure))
        return answer


def _check_batch(accelerator: AcceleratorOptions, batch: int | None, inputs: Sequence[TensorSpec]) -> None:
    """LiteRT compiles the sizes that the file gives as examples for open dimensions, and knows no way to others."""
    leading = sorted({spec.shape[0] for spec in inputs if spec.shape})
    if batch is not None and batch not in leading:
        sizes = " and ".join(map(str, leading)) or "no"
        raise AcceleratorNotUsable(f"{accelerator.provider} compiles this model for {sizes} rows, not `batch: {batch}`")
