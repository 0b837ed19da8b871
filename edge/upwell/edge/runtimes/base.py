"""The interface of runtimes on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from upwell.shared.tensors import Array, TensorSpec
from upwell.shared.value_classes import value_class

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of the inputs of a run, in the order of the model's inputs."""


@value_class
class Placement:
    """Where the nodes of a model run, by evidence.

    `accelerator` is the configured provider or delegate, empty for the CPU. It is reported as used only if
    `nodes_on_accelerator` > 0, and that number comes from the runtime's own node assignment, never from a list of
    loaded providers. `reason` says why a configured accelerator is not used; `left_on_cpu` names the nodes left on the
    CPU. `refused` are the shapes of inputs that it refused, so that all nodes ran on the CPU.
    """

    accelerator: str = ""
    nodes: int = 0
    nodes_on_accelerator: int = 0
    left_on_cpu: tuple[str, ...] = ()
    reason: str = ""
    refused: frozenset[Shapes] = frozenset()


class Runtime(Protocol):
    """A loaded model that runs on the device.

    `run` may be called from any thread; up to `instances` calls run at once, further ones wait.
    """

    name: str
    """`onnx`, `tflite` or `fake`."""
    version: str
    """The runtime package and its version, such as `onnxruntime 1.31.1`."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    placement: Placement
    instances: int
    """The number of concurrent runs."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once.

        `inputs` has an array of matching dtype and shape for each of `self.inputs`; the result has a new array (never a
        view into the runtime's memory) for each of `self.outputs`. Raises `InvalidRequest` for a wrong shape or dtype
        and `ModelFailed` if the runtime fails; the runtime stays usable after either.
        """
        ...

    def close(self) -> None:
        """Free the model. Calling it twice is harmless; `run` raises `ModelFailed` afterwards."""
        ...


def runtime_name(runtime: Runtime) -> str:
    """The name of a runtime in logs, with the accelerator if that really runs nodes (`onnx`, `onnx+qnn`)."""
    placement = runtime.placement
    return f"{runtime.name}+{placement.accelerator}" if placement.nodes_on_accelerator else runtime.name
