"""The device as a tier to measure on: models are opened as by the agent, in its runtimes, on its accelerator."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from upwell.edge.runtimes.base import Placement, Runtime
from upwell.edge.runtimes.device_lock import DeviceLock
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.probe import ProbeSubject, enter, survived
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.partition.part_bench import Runner, TierOptions
from upwell.shared.partition.tier_profile import RuntimeFacts
from upwell.shared.tensors import Array
from upwell.tools.partition.torch_programs import SUFFIXES, exported_program
from upwell.tools.terminal import quiet


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
    """For example `53 of 55 nodes`; the reason if the accelerator is no longer used; empty on the CPU."""
    if not placement.accelerator:
        return ""
    if placement.reason and not placement.nodes_on_accelerator:
        return f"nothing: {placement.reason}"
    return f"{placement.nodes_on_accelerator} of {placement.nodes} nodes"
