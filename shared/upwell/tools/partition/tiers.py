"""The tiers to measure a model on: the device, in its runtimes, and the service, in its engine.

Programs of torch.export and their parts run as torch modules at the service, and converted on devices.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from upwell.cloud.engines.base import Engine, engine_type
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.edge.runtimes.base import Placement, Runtime
from upwell.edge.runtimes.device_lock import DeviceLock
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.probe_process import ProbeSubject, enter, survived
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.partition.split.model_halves import ModelHalf
from upwell.shared.partition.tier_profile import RuntimeFacts
from upwell.shared.partition.torch_graph import TorchModelFile, read_torch
from upwell.shared.tensors import Array
from upwell.tools.partition.part_bench import Runner, TierOptions
from upwell.tools.terminal import quiet

SUFFIXES = (".pt2", ".safetensors")
"""The suffixes of programs written by torch.export and by `upwell partition split`."""

DeviceFormat = Literal["onnx", "tflite"]


def as_safetensors(path: Path, folder: Path) -> Path:
    """The file that engine torch loads: `path`, or for a `.pt2` file a new one in `folder`. Raises `ConfigError`."""
    if path.suffix != ".pt2":
        return path
    return TorchModelFile.read(path).whole(read_torch(path)).write(folder)


def for_device(half: ModelHalf, kind: DeviceFormat) -> ModelHalf:
    """A part, or a whole program, as the device runs it. Raises `UpwellError` if it cannot be exported."""
    with tempfile.TemporaryDirectory(prefix="upwell-") as folder:
        data = exported_program(half.write(Path(folder)), kind)
    return replace(half, files={f"model.{kind}": data})


def exported_program(path: Path, kind: DeviceFormat) -> bytes:
    """The program in a file of either suffix, as ONNX or TFLite. Raises `UpwellError`."""
    with ExtraMissing.on_import("export", "a torch.export program needs PACKAGE"):
        from upwell.cloud.engines.torch.networks import ProgramModule, declared_specs
        from upwell.tools.export.torch_to_device import TorchNetwork, exported

        with tempfile.TemporaryDirectory(prefix="upwell-") as folder:
            module = ProgramModule.open(as_safetensors(path, Path(folder)))
        if module is None:
            raise ConfigError.at(path, "it has weights but no program")
        specs = (declared_specs(module, attribute) for attribute in ("inputs", "outputs"))
        return exported(TorchNetwork(module.eval(), *specs), f".{kind}")


class EdgeTier:
    """The edge runtimes.

    Nodes that the accelerator does not run are run on the CPU, and the transfers in between count. A part of which it
    runs nothing runs on the CPU as a whole, as in the agent, and its `placement` says why.
    """

    formats: ClassVar[tuple[str, ...]] = ("onnx", "tflite", "torch")

    def __init__(self, options: TierOptions) -> None:
        self._options = RuntimeOptions(threads=options.threads, instances=1)
        self._rows = options.rows
        self._wanted = _accelerator(options)

    def open(self, path: Path) -> Runner:
        """Load a model file; see `PartitionTier.open`. A library is first tried in a process of its own.

        A program of torch.export runs as ONNX.
        """
        if path.suffix not in SUFFIXES:
            return self._opened(path)
        with tempfile.TemporaryDirectory(prefix="upwell-") as folder:
            file = Path(folder) / "model.onnx"
            file.write_bytes(exported_program(path, "onnx"))
            return self._opened(file)

    def _opened(self, path: Path) -> Runner:
        wanted = self._wanted
        if wanted is None:
            return _EdgeRunner(load_runtime(path, self._options), self._options, "")
        with quiet():  # vendors' libraries print, even to standard output
            try:
                return self._open_on(path, wanted)
            except AcceleratorNotUsable as error:
                runtime = load_runtime(path, self._options)
                return _EdgeRunner(runtime, self._options, wanted.provider, left=f"nothing: {error}")

    def _open_on(self, path: Path, wanted: AcceleratorOptions) -> Runner:
        options = self._options.model_copy(update={"batch": self._rows if self._is_open(path) else None})
        if wanted.library is None:
            return _EdgeRunner(load_runtime(path, options, wanted), options, wanted.provider)
        subject = ProbeSubject(path, options, wanted, version="")
        lock = enter(subject, None)
        try:
            runtime = load_runtime(path, options, wanted)
        except BaseException:
            lock.release()
            raise
        finally:
            survived(subject, None)
        return _EdgeRunner(runtime, options, wanted.provider, lock)

    def _is_open(self, path: Path) -> bool:
        """Whether the model's batch size is open, which many accelerators reject."""
        runtime = load_runtime(path, self._options)
        with contextlib.closing(runtime):
            return any(spec.shape[:1] == (-1,) for spec in runtime.inputs)


class _EdgeRunner:
    """A `Runner` around one of the edge's runtimes."""

    def __init__(
        self, runtime: Runtime, options: RuntimeOptions, provider: str, lock: DeviceLock | None = None, left: str = ""
    ) -> None:
        self.inputs = runtime.inputs
        self.outputs = runtime.outputs
        self.runtime = RuntimeFacts(
            name=runtime.name, version=runtime.version, accelerator=provider, threads=options.thread_count
        )
        self._runtime = runtime
        self._lock = lock
        self._left = left

    @property
    def placement(self) -> str:
        """See `Runner.placement`; an accelerator that failed in a run is no longer used."""
        return self._left or _evidence(self._runtime.placement)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run it once."""
        return self._runtime.run(inputs)

    def close(self) -> None:
        """Close the model and release the device."""
        self._runtime.close()
        if self._lock is not None:
            self._lock.release()


def _accelerator(options: TierOptions) -> AcceleratorOptions | None:
    if not options.accelerator:
        return None
    library = None if options.library is None else str(options.library)
    return AcceleratorOptions.model_validate(
        {"provider": options.accelerator, "library": library, "options": dict(options.options)}
    )


def _evidence(placement: Placement) -> str:
    """For example `53 of 55 nodes`; why the accelerator is not used, or not for all inputs; empty on the CPU."""
    if not placement.accelerator:
        return ""
    if placement.reason:
        return f"nothing: {placement.reason}"
    return f"{placement.nodes_on_accelerator} of {placement.nodes} nodes"


class CloudTier:
    """The service's engine, on the CPU, with as many threads per run as a model gets there: one by default."""

    formats: ClassVar[tuple[str, ...]] = ("onnx", "torch")

    def __init__(self, options: TierOptions) -> None:
        if options.accelerator:
            raise ConfigError.at(None, "applies only to the device; tails are measured on the CPU", "--accelerator")
        self._threads = options.threads or ModelSettings.threads

    def open(self, path: Path) -> Runner:
        """Load a model file; see `PartitionTier.open`."""
        settings = ModelSettings(engine="torch" if path.suffix in SUFFIXES else "onnx", threads=self._threads)
        engine = engine_type(settings.engine)
        with tempfile.TemporaryDirectory(prefix="upwell-") as folder:
            return _CloudRunner(engine.load(path.stem, as_safetensors(path, Path(folder)), settings), settings)


class _CloudRunner:
    """A `Runner` around an engine."""

    placement: str = ""

    def __init__(self, engine: Engine, settings: ModelSettings) -> None:
        self.inputs = engine.inputs
        self.outputs = engine.outputs
        self.runtime = RuntimeFacts(name=settings.engine, version=engine.version, threads=settings.threads)
        self._engine = engine

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run it once."""
        return self._engine.run(inputs)

    def close(self) -> None:
        """Free it."""
        self._engine.close()
