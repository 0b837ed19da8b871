"""The configuration of a model's runtime: which one, how many threads, which accelerator."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from upwell.shared.config.yaml import FilePart, resolve
from upwell.shared.platform.cpu_cores import usable_cores

LITERT_NPU = "litert_npu"
"""The provider name for LiteRT's own NPU path (`CompiledModel`)."""

XNNPACK = "xnnpack"
"""The provider name of the delegate that both TFLite packages include; it needs no library."""

MAX_DEFAULT_THREADS = 4
MAX_BATCH = 65536
_SYSTEM_FOLDERS = ("/usr/local/lib", "/lib", "/usr/lib", f"/lib/{platform.machine()}-linux-gnu",
                   f"/usr/lib/{platform.machine()}-linux-gnu")  # fmt: skip


def _library(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, (str, Path)):
        raise ValueError(f"expected a path, got {value!r}")
    if value and Path(value).name == str(value):
        return Path(value)
    return resolve(value, (info.context or {}).get("base_dir", Path()))


def _one_or_more(value: object) -> object:
    return value if isinstance(value, (list, tuple)) else [value]


class AcceleratorOptions(FilePart):
    """Accelerators, tried in order before the CPU; with a `must` among them, loading fails in place of the CPU."""

    provider: str = Field(
        min_length=1,
        description="ONNX Runtime: an execution provider (`qnn`, `openvino`, `cuda`). TFLite: a name for the "
        "delegate in `library`, or `litert_npu` without one.",
    )
    require: Literal["must", "prefer", "cpu"] = Field(
        "prefer", description="must: all nodes, or it is not used; prefer: the CPU runs the rest; cpu: do not use it."
    )
    library: Annotated[Path, BeforeValidator(_library)] | None = Field(
        None,
        description="The provider's plugin library, or TFLite's external delegate; the system looks up a bare name.",
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Options of the provider or delegate."
    )

    def option_texts(self) -> dict[str, str]:
        """The options as text, the form that every provider and delegate takes."""
        return {key: str(value) for key, value in self.options.items()}


class RuntimeOptions(FilePart):
    """How a model file runs on the device."""

    runtime: Literal["onnx", "tflite"] | None = Field(None, description="Default: by the file's suffix.")
    threads: int | None = Field(
        None,
        strict=True,
        ge=1,
        le=1024,
        description=f"Threads per run. Default: cores / models on the device, at most {MAX_DEFAULT_THREADS}.",
    )
    instances: int | None = Field(
        None,
        strict=True,
        ge=1,
        le=256,
        description="Concurrent runs. Default: cores / `threads` if that is set, else 1; on an accelerator 1.",
    )
    batch: int | None = Field(
        None,
        strict=True,
        ge=1,
        le=MAX_BATCH,
        description="Fixes the open first dimension of every input; rows run this many at a time, the last padded.",
    )
    accelerator: Annotated[tuple[AcceleratorOptions, ...], BeforeValidator(_one_or_more)] = ()
    package: Literal["ai_edge_litert", "tflite_runtime"] | None = Field(
        None, description="TFLite package. Default: ai_edge_litert if installed."
    )

    @model_validator(mode="after")
    def _package_is_for_tflite(self) -> RuntimeOptions:
        if self.package is not None and self.runtime == "onnx":
            raise ValueError("`package` chooses a TFLite package and does not apply to `runtime: onnx`")
        return self

    @property
    def thread_count(self) -> int:
        """Threads to use: the configured number, or one per core that this process may use, at most 4."""
        return self.threads or min(MAX_DEFAULT_THREADS, usable_cores())

    @property
    def instance_count(self) -> int:
        """Concurrent runs on the CPU: the configured number, or, if `threads` is set, as many as the cores allow."""
        if self.instances is not None:
            return self.instances
        return 1 if self.threads is None else max(1, usable_cores() // self.threads)

    @property
    def wanted_accelerators(self) -> tuple[AcceleratorOptions, ...]:
        """The accelerators to try, in order."""
        return tuple(one for one in self.accelerator if one.require != "cpu")


def located(library: Path | None) -> Path | None:
    """The library's file; for a bare name, where the system's loader most likely finds it."""
    if library is None:
        return None
    if library.name != str(library):
        return library.resolve() if library.is_file() else None
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_SYSTEM_FOLDERS]
    found = (Path(folder) / library for folder in folders)
    return next((path.resolve() for path in found if path.is_file()), None)
