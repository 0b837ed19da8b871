"""What runs a batch of a model on a device, whatever framework is behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeAlias

from upwell.shared.tensors import Array, TensorSpec

Precision: TypeAlias = Literal["fp32", "fp16", "bf16"]
"""What a torch network computes in."""


@dataclass(frozen=True)
class ModelSettings:
    """How one model is to be run; every key of `cloud.yaml` with its default put in."""

    engine: str = "onnx"
    device: str = "cpu"
    instances: int = 1
    threads: int = 1
    max_batch: int = 1
    max_queue: int = 64
    buckets: tuple[int, ...] = ()
    torch_class: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    precision: Precision | None = None
    compile: bool = False
    graphs: bool = False
    providers: tuple[str, ...] = ()
    trusted: frozenset[str] = frozenset()


class Engine(Protocol):
    """A loaded model that runs batches on a device.

    Threads: `run` may be called from any thread and from several at once (the batcher keeps it to the
    model's `instances`), so an engine holds no state of a run. `warm_up` comes before the first `run`,
    `close` after the last; neither overlaps with another call.
    """

    version: str
    """The package behind it and its version, such as `onnxruntime 1.31.1`."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    buckets: tuple[int, ...]
    """The numbers of rows that a run may have, ascending, where it is prepared for these alone; empty: any number.

    Whoever runs it fills batches up to one of them, as `Batcher` does.
    """

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once on all rows of `batch`.

        `batch` holds an array for each of `self.inputs`; it is only read. The result holds a fresh array
        for each of `self.outputs`. Raises `InvalidRequest` where a name, dtype, shape or number of rows does not fit
        and `ModelFailed` where the model itself fails; the engine stays usable after either.
        """
        ...

    def warm_up(self, rows: int) -> None:
        """Make runs of `rows` rows as fast as they will be, where that can be done without real data.

        With `buckets`, `rows` is one of them, and what has to be compiled for it is compiled now, which may take
        minutes. Raises `ModelFailed` if the model cannot run at all.
        """
        ...

    def close(self) -> None:
        """Free the model. Calling it twice is harmless; `run` after it raises `ModelFailed`."""
        ...


class EngineType(Protocol):
    """What an entry point of the group `upwell.engines` names: an engine's class."""

    file_name: ClassVar[str]
    """The model's file in its version folder, such as `model.onnx`."""
    platform: ClassVar[str]
    """The Open Inference Protocol's word for it, such as `onnxruntime_onnx`."""

    def load(self, name: str, path: Path, settings: ModelSettings) -> Engine:
        """Load the model `name` from `path`. Raises `ModelFailed` with what is wrong and what would be right."""
        ...
