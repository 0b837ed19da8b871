"""Programs of torch.export and their parts: as torch modules, and as what devices run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from upwell.cloud.engines.base import ExtraMissing
from upwell.shared.errors import ConfigError
from upwell.shared.partition.split.model_halves import ModelHalf
from upwell.shared.partition.torch_graph import TorchModelFile, read_torch

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
    try:
        from upwell.cloud.engines.torch.network_class import declared_specs
        from upwell.cloud.engines.torch.program_module import ProgramModule
        from upwell.tools.export.torch_to_device import TorchNetwork, exported

        with tempfile.TemporaryDirectory(prefix="upwell-") as folder:
            module = ProgramModule.open(as_safetensors(path, Path(folder)))
        if module is None:
            raise ConfigError.at(path, "it has weights but no program")
        specs = (declared_specs(module, attribute) for attribute in ("inputs", "outputs"))
        return exported(TorchNetwork(module.eval(), *specs), f".{kind}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("upwell"):
            raise
        if error.name == "litert_torch":
            raise ConfigError.at(
                path, "TFLite needs litert-torch: pip install litert-torch in a separate environment"
            ) from None
        raise ExtraMissing("a torch.export program", error.name, "export") from None
