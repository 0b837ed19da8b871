"""The service as a tier to measure on: models run in the engine that serves them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from upwell.cloud.engines.base import Engine, ModelSettings, engine_type
from upwell.shared.errors import ConfigError
from upwell.shared.partition.part_bench import Runner, TierOptions
from upwell.shared.partition.tier_profile import RuntimeFacts
from upwell.shared.tensors import Array
from upwell.tools.partition.torch_programs import SUFFIXES, as_safetensors


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
