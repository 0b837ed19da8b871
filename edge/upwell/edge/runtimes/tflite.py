"""TFLite on the device, through ai_edge_litert or tflite_runtime."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable, lost
from upwell.edge.runtimes.tflite_interpreter import INTERPRETER_ERRORS, OpenModel, ShapesRefused, one_line, open_model
from upwell.edge.runtimes.tflite_package import find_package
from upwell.edge.runtimes.tflite_pool import Pool, Slot
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array


class TfliteRuntime:
    """A model in a pool of TFLite interpreters. `run` may be called from any thread; see `instances`.

    Inputs and outputs carry the names of the model's signature where it has exactly one, else its tensors' names.
    A dimension that the model fixes stays fixed: a leading 1 means one row per run. `quantization` gives scale and
    zero point of each quantized input and output by name (real = scale * (stored - zero point)).

    `accelerator` is an external delegate (`library`), or `xnnpack`, which both packages carry and also use for what
    no delegate takes; asking for it by name gives the evidence.

    Raises `ConfigError` where no TFLite package is installed, the file is missing or broken, or the model needs
    operators or datatypes that the package does not have, and `AcceleratorNotUsable` where the delegate cannot be
    loaded, refuses the model or takes no node of the main graph, or for a `must` not every node. The evidence is that
    of loading; a new input shape is not judged again.

    A delegate that fails later never costs an answer: the model goes on on the CPU and `placement.reason` says so.
    The interpreters share the model file, which each of them maps into memory, and nothing else.
    """

    name: str = "tflite"

    def __init__(
        self, path: Path, options: RuntimeOptions | None = None, accelerator: AcceleratorOptions | None = None
    ) -> None:
        self._path = path
        self._options = options or RuntimeOptions()
        self._package = find_package(self._options.package)
        self.version = self._package.version
        self._recovery = threading.Lock()
        self._accelerator = accelerator
        self.instances = self._options.instance_count if accelerator is None else self._options.instances or 1
        first, *others = [self._open(accelerator) for _ in range(self.instances)]
        self._pool = Pool([first, *others])
        self.placement: Placement = first.placement
        self.inputs = tuple(port.spec for port in first.inputs)
        self.outputs = tuple(port.spec for port in first.outputs)
        ports = (*first.inputs, *first.outputs)
        self.quantization = {port.spec.name: port.quantization for port in ports if port.quantization is not None}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        slot = self._pool.take()
        if slot is None:
            raise ModelFailed(f"{self._path.name} is closed")
        try:
            return self._run_in(slot, inputs)
        finally:
            self._pool.give(slot)

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        self._pool.close()

    def _run_in(self, slot: Slot, inputs: Mapping[str, Array]) -> dict[str, Array]:
        model = slot.model
        if model is None or (model.accelerated and self._accelerator is None):
            model = self._open_again()
        slot.model = None
        try:
            answer = model.run(inputs)
        except InvalidRequest:
            slot.model = model
            raise
        except INTERPRETER_ERRORS as error:
            # The interpreter is given up: some crash the process when they are used after a failure.
            if model.accelerated:
                return self._run_without_accelerator(slot, inputs, error)
            raise self._explained(error, inputs) from None
        slot.model = model
        return answer

    def _open(self, accelerator: AcceleratorOptions | None) -> OpenModel:
        return open_model(self._package, self._path, self._options, accelerator)

    def _open_again(self) -> OpenModel:
        """Open the model after a failure, with the delegate unless it has been left or cannot be loaded any more."""
        accelerator = self._accelerator
        if accelerator is not None:
            try:
                model = self._open(accelerator)
            except AcceleratorNotUsable as error:
                self._leave_accelerator(error)
            except ConfigError as error:
                raise self._vanished(error) from None
            else:
                return model
        return self._open_on_cpu_again()

    def _open_on_cpu_again(self) -> OpenModel:
        try:
            return self._open(None)
        except ConfigError as error:
            raise self._vanished(error) from None

    def _run_without_accelerator(self, slot: Slot, inputs: Mapping[str, Array], failure: Exception) -> dict[str, Array]:
        """Answer on the CPU. Where that works the delegate was at fault and is left; else the request was."""
        model = self._open_on_cpu_again()
        try:
            answer = model.run(inputs)
        except INTERPRETER_ERRORS as error:
            raise self._explained(error, inputs) from None
        slot.model = model
        self._leave_accelerator(failure)
        return answer

    def _leave_accelerator(self, failure: Exception) -> None:
        """Use the delegate no more, in no interpreter. The first failure is the one that is told."""
        with self._recovery:
            if self._accelerator is None:
                return
            self._accelerator = None
            self.placement = lost(self._path, self.placement, one_line(failure))
        self._pool.drop()

    def _vanished(self, error: ConfigError) -> ModelFailed:
        return ModelFailed(f"the model cannot be opened again after a failure: {error}")

    def _explained(self, error: Exception, inputs: Mapping[str, Array]) -> InvalidRequest | ModelFailed:
        if isinstance(error, ShapesRefused):
            shapes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in inputs.items())
            return InvalidRequest(f"the model does not take these shapes together: {shapes} ({one_line(error)})")
        return ModelFailed(f"{self._path.name}: {one_line(error)}")
