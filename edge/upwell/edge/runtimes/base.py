"""What runs a model on the device, whatever runtime is behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from upwell.shared.tensors import Array, TensorSpec


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a model run, and how we know.

    `accelerator` is what was asked for (a provider or delegate), empty for the CPU. It is reported as
    used only where `nodes_on_accelerator` > 0, and that number comes from the runtime's own node
    assignment, never from a list of providers that are merely loaded. `reason` says why an accelerator
    that was asked for is not used; `left_on_cpu` names the nodes that stayed behind.
    """

    accelerator: str = ""
    nodes: int = 0
    nodes_on_accelerator: int = 0
    left_on_cpu: tuple[str, ...] = ()
    reason: str = ""


class Runtime(Protocol):
    """A loaded model that runs on the device.

    `run` may be called from any thread; up to `instances` calls run at one time, and more wait for each other.
    """

    name: str
    """`onnx`, `tflite` or `fake`."""
    version: str
    """The runtime package and its version, such as `onnxruntime 1.31.1`."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    placement: Placement
    instances: int
    """How many runs it does at one time."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once.

        `inputs` holds an array for each of `self.inputs`, of its dtype and of a shape that fits it; the
        result holds a fresh array (never a view into the runtime's memory) for each of `self.outputs`.
        Raises `InvalidRequest` where a shape or dtype does not fit and `ModelFailed` where the runtime
        itself fails; the runtime stays usable after either.
        """
        ...

    def close(self) -> None:
        """Free the model. Calling it twice is harmless; `run` after it raises `ModelFailed`."""
        ...


def runtime_name(runtime: Runtime) -> str:
    """What a log calls a runtime: its name, and the accelerator if that really runs nodes (`onnx`, `onnx+qnn`)."""
    placement = runtime.placement
    return f"{runtime.name}+{placement.accelerator}" if placement.nodes_on_accelerator else runtime.name
