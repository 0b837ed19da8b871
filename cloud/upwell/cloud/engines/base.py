"""The interface of engines, which run batches of a model on a device, and engines by name.

Engines are entry points of the group `upwell.engines`, imported only when a model needs one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias, cast

from upwell.cloud.engines.model_settings import ModelSettings
from upwell.shared.errors import ConfigError, ExtraMissing, ModelFailed
from upwell.shared.tensors import Array, TensorSpec


class DeviceLost(ModelFailed):
    """A run failed, and so will every later one on its device in this process."""


StoppableRun: TypeAlias = tuple[Callable[[Mapping[str, Array]], dict[str, Array]], Callable[[], None]]
"""`Engine.run` for a single run, and a function that stops it from another thread: the run then raises `ModelFailed`
soon. Before and after the run, that function has no effect on any other.
"""


class Engine(Protocol):
    """A loaded model that runs batches on a device.

    `run` may be called from several threads at once (the batcher limits it to the model's `instances`), so an engine
    keeps no state of a run. `warm_up` comes before the first `run`, `close` after the last; neither overlaps with
    another call. An engine that can stop its runs also has the method `stoppable_run() -> StoppableRun`.
    """

    version: str
    """Its package and version, such as `onnxruntime 1.31.1`."""
    device: str
    """Where it runs, such as `cpu` or `cuda:1`; `cuda` is the first."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    buckets: tuple[int, ...]
    """The numbers of rows it is prepared for, ascending; empty for any number.

    The caller pads batches to one of them, as `Batcher` does.
    """

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once on all rows of `batch`.

        `batch` has an array for each of `self.inputs` and is only read. The result has a new array for each of
        `self.outputs`. Raises `InvalidRequest` for a wrong name, dtype, shape or number of rows and `ModelFailed` if
        the model fails; the engine stays usable after either, unless that is `DeviceLost`.
        """
        ...

    def warm_up(self, rows: int) -> None:
        """Warm up runs of `rows` rows, as far as possible without real data.

        With `buckets`, `rows` is one of them, and is compiled now if needed, which may take minutes. Raises
        `ModelFailed` if the model cannot run at all.
        """
        ...

    def close(self) -> None:
        """Free the model. Calling it twice is harmless; `run` raises `ModelFailed` afterwards."""
        ...


class EngineType(Protocol):
    """The class of an engine, named by an entry point of the group `upwell.engines`."""

    file_name: ClassVar[str]
    """The model's file in its version folder, such as `model.onnx`."""
    platform: ClassVar[str]
    """Its name in the Open Inference Protocol, such as `onnxruntime_onnx`."""

    def load(self, name: str, path: Path, settings: ModelSettings) -> Engine:
        """Load the model `name` from `path`. Raises `ModelFailed` with the problem and the remedy."""
        ...


# A failing accelerator plugin would break any `import torch`, also in a custom engine. The engine torch imports the
# package of a model's device itself.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

_EXTRAS = {"onnx": "cloud", "torch": "torch"}


def engine_type(name: str) -> EngineType:
    """The engine's class. Raises `ExtraMissing` if its framework is not installed, `ConfigError` if it is unknown."""
    entries = {entry.name: entry for entry in entry_points(group="upwell.engines")}
    if name not in entries:
        raise ConfigError.at(None, f"unknown engine {name!r}; installed: {', '.join(sorted(entries)) or 'none'}")
    with ExtraMissing.on_import(_EXTRAS.get(name, name), f"engine {name} needs PACKAGE"):
        return cast(EngineType, entries[name].load())
