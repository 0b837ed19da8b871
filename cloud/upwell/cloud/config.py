"""`cloud.yaml`: the configuration of the cloud service, with the formats of its values and their error messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from upwell.cloud.engines.model_settings import ModelSettings, Precision
from upwell.cloud.repository.model_folders import Versions
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.oip.server_keys import ServerKeys
from upwell.shared.platform.cpu_cores import usable_cores
from upwell.shared.units import Seconds


def _spelled(pattern: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"expected {expected}, got {text!r}")
        return text

    return AfterValidator(check)


Sha256: TypeAlias = Annotated[
    str,
    _spelled("[0-9a-f]{64}", "the SHA-256 of a file, 64 hex digits in lower case as `sha256sum FILE` prints them"),
]
Device: TypeAlias = Annotated[
    str, _spelled("[a-z]+(:[0-9]+)?", "a device in lower case, such as cpu, cuda, cuda:0, xpu or auto")
]
Provider: TypeAlias = Annotated[
    str, _spelled("[A-Za-z]{1,50}", "an execution provider of ONNX Runtime, such as cuda or CUDAExecutionProvider")
]
ClassName: TypeAlias = Annotated[
    str, _spelled(r"(([A-Za-z_]\w*\.)+[A-Za-z_]\w*)?", "a class with its module, such as mypackage.LargeNet")
]


_MOST_ROWS = 4096
Rows = Annotated[int, Field(strict=True, ge=1, le=_MOST_ROWS)]
Buckets = Annotated[tuple[Rows, ...], Field(min_length=1, max_length=32)]
Threads = Annotated[int, Field(strict=True, ge=1, le=512)]
Instances = Annotated[int, Field(strict=True, ge=1, le=256)]
QueueBound = Annotated[int, Field(strict=True, ge=0, le=4096)]
Workers = Annotated[int, Field(strict=True, ge=1, le=256)]
Version = Annotated[int, Field(strict=True, ge=0)]

_LONGEST_S = 480 * 3600.0  # gRPC counts milliseconds in 32 bits
_AGE_S = 300.0
"""Default lifetime of a connection when several workers share a port."""

_DEVICE = "`cpu`, a device such as `cuda:0`, `xpu`, `mps` or `npu`, or `auto`: an accelerator if there is one."
_PRECISION = "The precision of torch's computation; inputs and outputs stay as declared. Default: that of the class."
_COMPILE = "torch.compile for each of `buckets`."
_GRAPHS = "CUDA graphs for each of `buckets`."
_PROVIDERS = (
    "Execution providers of ONNX Runtime, all of which must work, such as `[tensorrt, cuda]`; "
    "`[auto]`: the first that works. Default: by `device`."
)
_INSTANCES = "Concurrent runs of a model per worker. Default: cores / `threads` / `workers`; on an accelerator 1."
_THREADS = "CPU threads per run; onnx: shared by a model's instances."
_MAX_BATCH = "Most rows in one run; above 1, waiting requests run together and longer ones in pieces."
_BUCKETS = (
    "Numbers of rows, such as `[1, 4, 16]`: every run has one of these, padded with zeros, for "
    "engines that compile per shape."
)
_MAX_QUEUE = "Requests that may wait per model; more are refused."
_VERSIONS = "Versions served: `latest` (the highest), `all` or, for a single model, a list such as `[1, 3]`."


def _lasting(least_s: float, instead: str = "", *, or_never: bool = False) -> AfterValidator:
    def check(time_s: float) -> float:
        if time_s < least_s and (time_s or not or_never):
            raise ValueError(f"expected at least {1e3 * least_s:.0f}ms, such as {instead}")
        if time_s > _LONGEST_S:
            raise ValueError(f"expected at most {_LONGEST_S / 3600:.0f}h")
        return time_s

    return AfterValidator(check)


class _Batches(FilePart):
    """`buckets` and `max_batch`; one of them is enough."""

    buckets: Buckets | None = Field(None, description=_BUCKETS)
    max_batch: Rows | None = Field(None, description=_MAX_BATCH)

    @model_validator(mode="before")
    @classmethod
    def _largest(cls, data: Any) -> Any:
        buckets = data.get("buckets") if isinstance(data, dict) else None
        largest = buckets[-1] if isinstance(buckets, (list, tuple)) and buckets else None
        # A wrong number is reported once, for `buckets`, which is written, and not for `max_batch` too.
        if type(largest) is int and 1 <= largest <= _MOST_ROWS:
            return {"max_batch": largest, **data}
        return data

    @field_validator("buckets")
    @classmethod
    def _check_buckets(cls, buckets: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if buckets is not None and any(before >= after for before, after in pairwise(buckets)):
            raise ValueError(f"expected ascending numbers of rows, such as [1, 4, 16], got {list(buckets)}")
        return buckets

    @model_validator(mode="after")
    def _agree(self) -> _Batches:
        if self.buckets is not None and self.max_batch != self.buckets[-1]:
            raise ValueError(
                f"`max_batch` is {self.max_batch}, the largest of `buckets` {self.buckets[-1]}; write `buckets` alone"
            )
        return self


class RepositorySection(FilePart):
    """How models may change while the service runs."""

    control: bool = Field(
        False, description="Let callers load and unload models (RepositoryModelLoad, RepositoryModelUnload)."
    )
    watch: Annotated[Seconds, _lasting(0.05, "1s, or no `watch` at all")] | None = Field(
        None, description="How often to check the model folders."
    )

    @property
    def may_change(self) -> bool:
        """Whether models may be loaded and unloaded while running."""
        return self.control or self.watch is not None


class Serve(ServerKeys):
    """The service itself."""

    models: RelativePath = Field(description="The model repository: <name>/<version>/model.onnx.")
    repository: RepositorySection = RepositorySection()
    trusted: tuple[Sha256, ...] = Field(
        (), description="SHA-256 (hex) of each `model.jax` that may be loaded, which can run code."
    )
    drain: Annotated[Seconds, _lasting(0.0)] = Field(
        30.0, description="How long accepted requests may take to finish after SIGTERM."
    )
    access_log: bool = Field(False, description="A log line for each inference request (logger `upwell.access`).")
    fast_path: Literal["auto", "off"] = Field(
        "auto",
        description="Speeds up small requests with private parts of gRPC, where they are known to work.",
    )
    workers: Workers | Literal["auto"] = Field(
        1,
        description="Processes that share the ports (Linux), each with all models. auto: by a trial at start.",
    )
    max_connection_age: Annotated[Seconds, _lasting(0.1, "5m, or 0 for never", or_never=True)] | None = Field(
        None,
        description="Time after which clients reconnect; 0: never. Default: 5m with several workers, else never.",
    )

    @property
    def processes(self) -> int:
        """The number of workers; 1 until `auto` is resolved."""
        return 1 if self.workers == "auto" else self.workers

    @property
    def connection_age_s(self) -> float | None:
        """Seconds after which clients must reconnect; None for never."""
        age_s = (_AGE_S if self.processes > 1 else 0.0) if self.max_connection_age is None else self.max_connection_age
        return age_s or None


class Defaults(_Batches):
    """What holds for models that do not say otherwise."""

    engine: Literal["onnx", "torch", "jax"] = Field("onnx", description="The engine that runs the model.")
    device: Device = Field("cpu", description=_DEVICE)
    instances: Instances | None = Field(None, description=_INSTANCES)
    threads: Threads = Field(1, description=_THREADS)
    max_batch: Rows = Field(1, description=_MAX_BATCH)
    max_queue: QueueBound = Field(64, description=_MAX_QUEUE)
    versions: Literal["latest", "all"] = Field("all", description=_VERSIONS)
    precision: Precision | None = Field(None, description=_PRECISION)
    compile: bool = Field(False, description=_COMPILE)
    graphs: bool = Field(False, description=_GRAPHS)
    providers: tuple[Provider, ...] = Field((), description=_PROVIDERS)


class _Model(_Batches):
    device: Device | None = Field(None, description=_DEVICE)
    instances: Instances | None = Field(None, description=_INSTANCES)
    threads: Threads | None = Field(None, description=_THREADS)
    max_queue: QueueBound | None = Field(None, description=_MAX_QUEUE)
    versions: Literal["latest", "all"] | Annotated[tuple[Version, ...], Field(min_length=1)] | None = Field(
        None, description=_VERSIONS
    )


class OnnxModel(_Model):
    """ONNX Runtime runs `model.onnx`."""

    engine: Literal["onnx"] = Field(description="ONNX Runtime runs `model.onnx`.")
    providers: tuple[Provider, ...] | None = Field(None, description=_PROVIDERS)


class TorchModel(_Model):
    """PyTorch runs `model.safetensors`."""

    engine: Literal["torch"] = Field(description="PyTorch runs `model.safetensors`.")
    torch_class: ClassName = Field(
        "",
        alias="class",
        description="`package.module.Class`. Default: the entry point of the model's name in `upwell.torch_models`, or "
        "the file's program.",
    )
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="Keyword arguments of the class.")
    precision: Precision | None = Field(None, description=_PRECISION)
    compile: bool | None = Field(None, description=_COMPILE)
    graphs: bool | None = Field(None, description=_GRAPHS)


class JaxModel(_Model):
    """JAX runs `model.jax` with `model.safetensors`."""

    engine: Literal["jax"] = Field(description="JAX runs `model.jax` with `model.safetensors`.")


class CloudConfig(FilePart):
    """The whole file."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    serve: Serve
    defaults: Defaults = Defaults()
    models: dict[str, Annotated[OnnxModel | TorchModel | JaxModel, Field(discriminator="engine")]] = Field(
        default_factory=dict, description="Settings of single models; all in the repository are served."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_engine(cls, data: Any) -> Any:
        """Give a model without `engine` the default one, which decides its permitted keys."""
        if not isinstance(data, dict) or not isinstance(data.get("models"), dict):
            return data
        defaults = data.get("defaults")
        engine = defaults.get("engine", "onnx") if isinstance(defaults, dict) else "onnx"
        models = {
            name: {"engine": engine, **model} if isinstance(model, dict) else model
            for name, model in data["models"].items()
        }
        return {**data, "models": models}

    def settings(self, name: str) -> ModelSettings:
        """The settings of the model `name`: its own keys over the defaults."""
        own = self.models.get(name)
        values = self.defaults.model_dump(exclude={"versions"})
        if own is not None:
            values |= own.model_dump(exclude_none=True, exclude={"versions"})
        if own is not None and own.max_batch is not None:  # setting one of the two sets both
            values["buckets"] = own.buckets
        values["buckets"] = values["buckets"] or ()
        instances = values.pop("instances")
        settings = ModelSettings(**values, trusted=frozenset(self.serve.trusted), instances=instances or 1)
        if instances is not None:
            return settings
        on_cpu = max(1, usable_cores() // settings.threads // self.serve.processes)
        return replace(settings, instances=on_cpu if settings.is_on_cpu else 1, cpu_instances=on_cpu)

    def versions_of(self, name: str) -> Versions:
        """The versions of the model `name` to serve."""
        own = self.models.get(name)
        return self.defaults.versions if own is None or own.versions is None else own.versions

    def as_written(self) -> dict[str, Any]:
        """The configuration with all defaults, as plain values that read back the same."""
        written = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, model in self.models.items():
            if isinstance(model, TorchModel):
                written["models"][name]["arguments"] = model.arguments  # where a null is meaningful
        return written

    def listening_on(self, listen: Sequence[str]) -> CloudConfig:
        """The configuration with other addresses."""
        return self.model_copy(update={"serve": self.serve.model_copy(update={"listen": tuple(listen)})})
