"""Interpreters of one model that take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable, lost
from upwell.edge.runtimes.tflite.interpreter import INTERPRETER_ERRORS, OpenModel, ShapesRefused, one_line, open_model
from upwell.edge.runtimes.tflite.package import find_package
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array


class Slot:
    """A place for one interpreter; None where it has to be opened anew. Who took it has it alone."""

    def __init__(self, model: OpenModel | None) -> None:
        self.model = model


class InterpreterPool:
    """Hands out slots. The one given back last goes out first, since its memory is still in the caches."""

    def __init__(self, models: Iterable[OpenModel]) -> None:
        self._free = [Slot(model) for model in models]
        self._closed = False
        self._change = threading.Condition(threading.Lock())

    def take(self) -> Slot | None:
        """A free slot, after waiting for one where all are in use; None once the pool is closed."""
        with self._change:
            while not self._free and not self._closed:
                self._change.wait()
            return None if self._closed else self._free.pop()

    def give(self, slot: Slot) -> None:
        """Give a slot back."""
        with self._change:
            if not self._closed:
                self._free.append(slot)
                self._change.notify()

    def drop(self) -> None:
        """Forget the interpreters of all free slots, so that they are opened anew."""
        with self._change:
            for slot in self._free:
                slot.model = None

    def close(self) -> None:
        """Free every interpreter: those in use when they are given back."""
        with self._change:
            self._closed = True
            self._free.clear()
            self._change.notify_all()


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
        self._pool = InterpreterPool([first, *others])
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
