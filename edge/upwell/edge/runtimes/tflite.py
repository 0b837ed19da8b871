"""TFLite on the device, through ai_edge_litert or tflite_runtime."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable, judge, lost, open_without, unused
from upwell.edge.runtimes.tflite_interpreter import INTERPRETER_ERRORS, OpenModel, ShapesRefused, one_line, open_model
from upwell.edge.runtimes.tflite_package import find_package
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array


class TfliteRuntime:
    """A model in a TFLite interpreter. `run` may be called from any thread; calls wait for each other.

    Inputs and outputs carry the names of the model's signature where it has exactly one, else its tensors' names.
    A dimension that the model fixes stays fixed: a leading 1 means one row per run. `quantization` gives scale and
    zero point of each quantized input and output by name (real = scale * (stored - zero point)).

    Raises `ConfigError` where no TFLite package is installed, the file is missing or broken, the model needs
    operators or datatypes that the package does not have, and where an accelerator that is a must does not take
    every node of the main graph. The evidence is that of loading; a new input shape is not judged again.

    `must` is kept when the model is loaded. A delegate that fails later never costs an answer: the model goes on
    on the CPU and `placement.reason` says so.
    """

    name: str = "tflite"

    def __init__(self, path: Path, options: RuntimeOptions | None = None) -> None:
        self._path = path
        self._options = options or RuntimeOptions()
        self._package = find_package(self._options.package)
        self.version = self._package.version
        self._lock = threading.Lock()
        self._closed = False
        self._accelerator = self._options.wanted_accelerator
        self._model: OpenModel | None
        self._model, self.placement = self._open_first()
        self.inputs = tuple(port.spec for port in self._model.inputs)
        self.outputs = tuple(port.spec for port in self._model.outputs)
        ports = (*self._model.inputs, *self._model.outputs)
        self.quantization = {port.spec.name: port.quantization for port in ports if port.quantization is not None}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        with self._lock:
            if self._closed:
                raise ModelFailed(f"{self._path.name} is closed")
            model = self._model or self._open_again()
            self._model = None
            try:
                answer = model.run(inputs)
            except InvalidRequest:
                self._model = model
                raise
            except INTERPRETER_ERRORS as error:
                # The interpreter is given up: some crash the process when they are used after a failure.
                if model.placement.nodes_on_accelerator:
                    return self._run_without_accelerator(inputs, error)
                raise self._explained(error, inputs) from None
            self._model = model
            return answer

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        with self._lock:
            self._closed = True
            self._model = None

    def _open_first(self) -> tuple[OpenModel, Placement]:
        wanted = self._accelerator
        if wanted is None:
            model = self._open(None)
            return model, model.placement
        if wanted.library is None:
            raise ConfigError.at(
                self._path, f"accelerator {wanted.provider!r} needs `library`, the path of a TFLite external delegate"
            )
        try:
            accelerated = self._open(wanted)
            placement = accelerated.placement
        except AcceleratorNotUsable as reason:
            placement = unused(wanted, str(reason))
        judge(self._path, wanted, placement)
        if placement.nodes_on_accelerator:
            return accelerated, placement
        self._accelerator = None
        model = open_without(self._path, placement, lambda: self._open(None))
        return model, unused(wanted, placement.reason, model.placement.nodes)

    def _open(self, accelerator: AcceleratorOptions | None) -> OpenModel:
        return open_model(self._package, self._path, self._options, accelerator)

    def _open_again(self) -> OpenModel:
        """Open the model after a failure, with the delegate unless it has been left or cannot be loaded any more."""
        if self._accelerator is not None:
            try:
                model = self._open(self._accelerator)
            except AcceleratorNotUsable as error:
                self._leave_accelerator(error)
            else:
                self.placement = model.placement
                return model
        return self._open_on_cpu_again()

    def _open_on_cpu_again(self) -> OpenModel:
        try:
            return self._open(None)
        except ConfigError as error:
            raise ModelFailed(f"the model cannot be opened again after a failure: {error}") from None

    def _run_without_accelerator(self, inputs: Mapping[str, Array], failure: Exception) -> dict[str, Array]:
        """Answer on the CPU. Where that works the delegate was at fault and is left; else the request was."""
        model = self._open_on_cpu_again()
        try:
            answer = model.run(inputs)
        except INTERPRETER_ERRORS as error:
            raise self._explained(error, inputs) from None
        self._model = model
        self._leave_accelerator(failure)
        return answer

    def _leave_accelerator(self, failure: Exception) -> None:
        self._accelerator = None
        self.placement = lost(self.placement, one_line(failure))

    def _explained(self, error: Exception, inputs: Mapping[str, Array]) -> InvalidRequest | ModelFailed:
        if isinstance(error, ShapesRefused):
            shapes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in inputs.items())
            return InvalidRequest(f"the model does not take these shapes together: {shapes} ({one_line(error)})")
        return ModelFailed(f"{self._path.name}: {one_line(error)}")
