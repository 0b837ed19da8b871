"""The TFLite runtime: a pool of interpreters for one model, and the model's coverage by an accelerator."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.placement import AcceleratorFailed, AcceleratorNotUsable, Coverage
from upwell.edge.runtimes.runtime_options import LITERT_NPU, AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.tflite.interpreter import (
    INTERPRETER_ERRORS,
    OpenModel,
    ShapesRefused,
    describe,
    one_line,
    open_model,
    open_nodes,
    read_file,
)
from upwell.edge.runtimes.tflite.tflite_package import find_package
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.tensors import Array


class InterpreterPool:
    """Hands out interpreters for exclusive use; None for one that has to be reopened.

    The last one returned goes out first, since its memory is still cached.
    """

    def __init__(self, name: str, models: Iterable[OpenModel]) -> None:
        self._name = name
        self._free: list[OpenModel | None] = list(models)
        self._closed = False
        self._waiting = 0
        self._change = threading.Condition(threading.Lock())

    def take(self) -> OpenModel | None:
        """Take a free interpreter, waiting if all are in use. Raises `ModelFailed` once closed."""
        try:
            return self._free.pop()
        except IndexError:
            return self._await_free()

    def _await_free(self) -> OpenModel | None:
        with self._change:
            self._waiting += 1  # before it looks, so that whoever returns one afterwards sees it
            try:
                while not self._closed:
                    with suppress(IndexError):
                        return self._free.pop()
                    self._change.wait()
            finally:
                self._waiting -= 1
        raise ModelFailed(f"{self._name} is closed")

    def give(self, model: OpenModel | None) -> None:
        """Return an interpreter, or None for one that must not be used again."""
        self._free.append(model)
        if self._waiting or self._closed:
            with self._change:
                if self._closed:
                    self._free.clear()
                self._change.notify()

    def close(self) -> None:
        """Free every interpreter; those in use when they are returned."""
        with self._change:
            self._closed = True
            self._free.clear()
            self._change.notify_all()


class TfliteRuntime:
    """A model in a pool of TFLite interpreters. `run` may be called from any thread; see `instances`.

    Inputs and outputs have the names of the model's signature if it has exactly one, else its tensors' names. A fixed
    dimension stays fixed: a leading 1 means one row per run. `quantization` gives scale and zero point of each
    quantized input and output by name (real = scale * (stored - zero point)).

    `accelerator` is an external delegate (`library`), or `xnnpack`, which both packages include and also use for nodes
    that no delegate takes; naming it gives the evidence.

    Raises `ConfigError` if no TFLite package is installed, the file is missing or broken, or the package lacks an
    operator or datatype of the model; and `AcceleratorNotUsable` if the delegate cannot be loaded, refuses the model or
    takes no node of the main graph, or not every node with `require: must`. The evidence is taken at loading; a new
    input shape is not judged again.

    A delegate that fails later raises `AcceleratorFailed`. The interpreters share only the content of the model
    file.
    """

    name: str = "tflite"

    def __init__(
        self, path: Path, options: RuntimeOptions | None = None, accelerator: AcceleratorOptions | None = None
    ) -> None:
        self._options = options or RuntimeOptions()
        self._package = find_package(self._options.package)
        self._file = read_file(self._package, path)
        self.version = self._package.version
        self._accelerator = accelerator
        self.instances = self._options.instance_count if accelerator is None else self._options.instances or 1
        first, *others = [self._open() for _ in range(self.instances)]
        self._pool = InterpreterPool(path.name, [first, *others])
        self.placement: Placement = first.placement
        self.inputs = tuple(port.spec for port in first.inputs)
        self.outputs = tuple(port.spec for port in first.outputs)
        ports = (*first.inputs, *first.outputs)
        self.quantization = {port.spec.name: port.quantization for port in ports if port.quantization is not None}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        model, is_usable = self._pool.take(), False
        try:
            model = model or self._open_again()
            answer = model.run(inputs)
            is_usable = True
        except InvalidRequest:
            is_usable = True
            raise
        except INTERPRETER_ERRORS as error:
            raise self._explained(error, inputs) from None
        finally:
            # Some interpreters crash the process when used after a failure.
            self._pool.give(model if is_usable else None)
        return answer

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        self._pool.close()

    def _open(self) -> OpenModel:
        return open_model(self._package, self._file, self._options, self._accelerator)

    def _open_again(self) -> OpenModel:
        """Open the model after a failure."""
        try:
            return self._open()
        except AcceleratorNotUsable as error:
            raise AcceleratorFailed(str(error)) from None
        except ConfigError as error:
            raise ModelFailed(f"the model cannot be reopened after a failure: {error}") from None

    def _explained(self, error: Exception, inputs: Mapping[str, Array]) -> InvalidRequest | ModelFailed:
        if self.placement.nodes_on_accelerator:
            return AcceleratorFailed(one_line(error), is_of_shapes=isinstance(error, ShapesRefused))
        if isinstance(error, ShapesRefused):
            shapes = ", ".join(f"{name!r} {list(array.shape)}" for name, array in inputs.items())
            return InvalidRequest(f"the model does not accept these shapes together: {shapes} ({one_line(error)})")
        return ModelFailed(f"{self._file.path.name}: {one_line(error)}")


def coverage_of(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    """Open the model with the delegate of `accelerator`, or compile it, and find the nodes of the main graph that it
    took.

    `accelerator.require` is ignored. For `litert_npu` the source is `compiled model` if the whole model compiled, else
    `partition plan`: the nodes that the vendor's plugin would take; unless it takes all, the model runs on the CPU.
    Raises `ConfigError` as `TfliteRuntime` does, and `AcceleratorNotUsable` if the accelerator cannot be loaded, or
    refuses a model although it would take every node.
    """
    if accelerator.provider == LITERT_NPU:
        return _compiled(path, options, accelerator)
    package = find_package(options.package)
    _, nodes = open_nodes(package, read_file(package, path), options, accelerator)
    return Coverage(accelerator.provider, package.version, "delegate walk", nodes)


def _compiled(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    from upwell.edge.runtimes.tflite.npu_runtime import Incomplete, compile_for_npu, litert, planned, runs_on_npu

    package = litert(options)
    _, _, nodes = describe(package, path)
    try:
        model = compile_for_npu(path, accelerator)
    except Incomplete as refusal:
        plan = planned(path, options, accelerator)
        if all(node.partition is not None for node in plan):
            raise AcceleratorNotUsable(str(refusal)) from None
        return Coverage(accelerator.provider, package.version, "partition plan", plan)
    if not runs_on_npu(model):
        raise AcceleratorNotUsable(f"{accelerator.provider}: LiteRT compiled the model and runs it on the CPU")
    whole = [replace(node, partition=0) for node in nodes]
    return Coverage(accelerator.provider, package.version, "compiled model", whole)
