"""The ways to run a configured model, in the order in which they are tried."""

from __future__ import annotations

import importlib.util
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from upwell.edge.bundle.bundle import DESCRIPTION_NAME, Bundle
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.runtimes.input_check import check_file
from upwell.edge.runtimes.runtime_loader import needs_onnxruntime, runtime_of
from upwell.edge.runtimes.runtime_options import LITERT_NPU, XNNPACK, AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.files import Unconfined, plain_file
from upwell.shared.value_classes import value_class

_FILE_NAMES = ("model.onnx", "model.tflite")
_ENTRY_POINTS = {"tflite": b"tflite_plugin_create_delegate", "onnx": b"CreateEpFactories"}
"""Symbols exported by libraries that a runtime can load: an external delegate, a plugin provider."""


@value_class
class ModelFiles:
    """The files of a model, best first, and the path of its description."""

    models: Sequence[Path]
    description: Path
    bundle: Bundle | None


@value_class
class Candidate:
    """One way to run a model: a file in one runtime package, on one accelerator or the CPU."""

    path: Path
    options: RuntimeOptions
    accelerator: AcceleratorOptions | None

    @property
    def runtime(self) -> str:
        """`onnx` or `tflite`. Raises `ConfigError` if unknown."""
        return runtime_of(self.path, self.options)

    def __str__(self) -> str:
        """`onnx on qnn`, `tflite (tflite_runtime) on the CPU`."""
        package = f" ({self.options.package})" if self.options.package else ""
        return f"{self.runtime}{package} on {self.accelerator.provider if self.accelerator else 'the CPU'}"

    def package_version(self) -> str:
        """The runtime package and its version. Raises `ConfigError` if it is not installed."""
        if self.runtime == "tflite":
            from upwell.edge.runtimes.tflite.tflite_package import find_package

            return find_package(self.options.package).version
        with needs_onnxruntime(self.path):
            from upwell.edge.runtimes.onnxruntime_import import onnxruntime
        return f"onnxruntime {onnxruntime.__version__}"


def files_of(side: EdgeSide, bundle: Bundle | None) -> ModelFiles:
    """The files of `bundle`, or, if that is None, of the folder or file in the configuration.

    Raises `ConfigError` if there is no model file with a known runtime.
    """
    if side.file is not None:
        if side.file.is_dir():
            raise ConfigError.at(
                side.file, "this is a folder; write it as `bundle`, or name the model file in it", "file"
            )
        runtime_of(side.file, side)
        check_file(side.file)
        return ModelFiles([side.file], side.file.with_suffix(".yaml"), None)
    if bundle is None:
        assert side.bundle is not None  # noqa: S101  the caller has fetched one where the configuration names none
        bundle = Bundle(side.bundle)
    folder = bundle.folder
    runtime = side.runtime or ("tflite" if side.package else None)
    names = [f"model.{runtime}"] if runtime else _FILE_NAMES
    try:
        found = [folder / name for name in names if is_there(folder, name)]
        problem = f"no {' or '.join(names)} in it" if folder.is_dir() else "no such folder"
    except OSError as error:
        found, problem = [], f"cannot be read: {error.strerror}"
    if not found:
        expected = f"expected a folder with {' or '.join(names)}"
        raise ConfigError.at(folder, f"{problem}; {expected}", "bundle")
    return ModelFiles(found, folder / DESCRIPTION_NAME, bundle)


def is_there(folder: Path, name: str) -> bool:
    """Whether a bundle has a file of that name. Raises `ConfigError` if something else has that name."""
    if not os.path.lexists(folder / name):
        return False
    try:
        plain_file(folder, name)
    except Unconfined as error:
        raise ConfigError.at(folder / name, f"cannot be read: {error}") from None
    return True


def accelerated(side: EdgeSide, models: Sequence[Path]) -> Iterator[Candidate]:
    """Each configured accelerator with each file that suits it."""
    for accelerator in side.wanted_accelerators:
        everywhere = [one for path in models for one in _in_each_package(path, side, accelerator)]
        # If none suits, the runtimes report why.
        yield from [one for one in everywhere if _suits(accelerator, one.runtime)] or everywhere


def on_cpu(side: EdgeSide, models: Sequence[Path]) -> Iterator[Candidate]:
    """Each file, on the CPU."""
    for path in models:
        yield from _in_each_package(path, side, None)


def _in_each_package(path: Path, side: EdgeSide, accelerator: AcceleratorOptions | None) -> Iterator[Candidate]:
    """The file in its runtime; for TFLite in the configured package, else in each installed one."""
    installed: list[str] = []
    if runtime_of(path, side) == "tflite" and side.package is None:
        from upwell.edge.runtimes.tflite.tflite_package import PREFERRED

        installed = [name for name in PREFERRED if importlib.util.find_spec(name)]
    if len(installed) < 2:
        yield Candidate(path, side, accelerator)
        return
    for name in installed:
        yield Candidate(path, side.model_copy(update={"package": name}), accelerator)


def _suits(accelerator: AcceleratorOptions, runtime: str) -> bool:
    """Whether the runtime may support the accelerator, judged by the library's symbols or by its name."""
    if accelerator.library is None:
        known = (LITERT_NPU, XNNPACK)
        return accelerator.provider in known if runtime == "tflite" else accelerator.provider != LITERT_NPU
    try:
        with accelerator.library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            kinds = [name for name, entry in _ENTRY_POINTS.items() if data.find(entry) >= 0]
    except (OSError, ValueError):  # a bare name, or an unreadable file
        kinds = []
    return not kinds or runtime in kinds
