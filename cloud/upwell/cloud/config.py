"""`cloud.yaml`: where the service listens, which models it serves and how each is run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.repository.repository import Versions
from upwell.shared.oip.security import ServerSecurity, TlsFiles
from upwell.shared.oip.server import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.units import Bytes, Seconds
from upwell.shared.yaml import RelativePath

Count = Annotated[int, Field(ge=1, le=4096)]
QueueBound = Annotated[int, Field(ge=0, le=4096)]
Version = Annotated[int, Field(ge=0)]
Device = Annotated[str, Field(pattern=r"^[a-z]+(:[0-9]+)?$")]

_LEAST_WATCH_S = 0.05

_DEVICE = "Where it runs: `cpu`, or for engine torch a device torch knows, such as `cuda:0`."
_INSTANCES = "Runs of one model at a time. Default: cores / `threads` on the CPU, 1 on another device."
_THREADS = "CPU threads of one run; with engine onnx the instances of a model share them."
_MAX_BATCH = (
    "Most rows in one run. Above 1, waiting requests are run together, as soon as an instance is free; a longer "
    "request runs in pieces. 1: each request runs alone and whole. Batches seldom pay on a CPU."
)
_MAX_QUEUE = "Requests of one model that may wait; more are refused."
_VERSIONS = "Which versions are served: `latest` (the highest number)"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tls(_Section):
    """Certificate and key of the service (PEM); watched, new files take over without a restart."""

    cert: RelativePath = Field(description="Certificate chain.")
    key: RelativePath = Field(description="Its private key.")
    client_ca: RelativePath | None = Field(None, description="Issuers of client certificates; clients must show one.")


class Repository(_Section):
    """Whether what is served may change while the service runs. Without these keys it may not."""

    control: bool = Field(
        False, description="Let callers load and unload models (RepositoryModelLoad, RepositoryModelUnload)."
    )
    watch: Seconds | None = Field(
        None, description="Look at the model folders this often, and take over what has changed and settled."
    )

    @field_validator("watch")
    @classmethod
    def _not_all_the_time(cls, watch: float | None) -> float | None:
        if watch is not None and watch < _LEAST_WATCH_S:
            raise ValueError(f"expected at least {1e3 * _LEAST_WATCH_S:.0f}ms, such as 1s, or no `watch` at all")
        return watch

    @property
    def may_change(self) -> bool:
        """Whether models may come and go."""
        return self.control or self.watch is not None


class Serve(_Section):
    """The service itself."""

    listen: tuple[str, ...] = Field(min_length=1, description="Addresses: HOST:PORT (port 0: any free) or unix:PATH.")
    listen_http: tuple[str, ...] = Field((), description="The same over HTTP/1.1; needs the extra `http`.")
    models: RelativePath = Field(description="The model repository: <name>/<version>/model.onnx and so on.")
    repository: Repository = Field(Repository(), description="Whether what is served may change meanwhile.")
    tls: Tls | None = Field(None, description="TLS.")
    tokens: RelativePath | None = Field(None, description="File of known bearer tokens; callers must send one.")
    insecure: bool = Field(False, description="Allow addresses off loopback without TLS and authentication.")
    max_message: Bytes = Field(DEFAULT_MAX_MESSAGE_BYTES, gt=0, description="Largest message in and out.")
    drain: Seconds = Field(30.0, description="After SIGTERM, how long accepted requests may take to finish.")

    @property
    def security(self) -> ServerSecurity:
        """The same as the server takes it."""
        tls = TlsFiles(self.tls.cert, self.tls.key, self.tls.client_ca) if self.tls else None
        return ServerSecurity(tls, self.tokens, self.insecure)


class Defaults(_Section):
    """What holds for every model that does not say otherwise."""

    engine: Literal["onnx", "torch"] = Field("onnx", description="What runs the model.")
    device: Device = Field("cpu", description=_DEVICE)
    instances: Count | None = Field(None, description=_INSTANCES)
    threads: Count = Field(1, description=_THREADS)
    max_batch: Count = Field(1, description=_MAX_BATCH)
    max_queue: QueueBound = Field(64, description=_MAX_QUEUE)
    versions: Literal["latest", "all"] = Field("all", description=f"{_VERSIONS} or `all`.")


class _Model(_Section):
    device: Device | None = Field(None, description=_DEVICE)
    instances: Count | None = Field(None, description=_INSTANCES)
    threads: Count | None = Field(None, description=_THREADS)
    max_batch: Count | None = Field(None, description=_MAX_BATCH)
    max_queue: QueueBound | None = Field(None, description=_MAX_QUEUE)
    versions: Literal["latest", "all"] | Annotated[tuple[Version, ...], Field(min_length=1)] | None = Field(
        None, description=f"{_VERSIONS}, `all`, or those listed, such as `[1, 3]`."
    )


class OnnxModel(_Model):
    """A model that ONNX Runtime runs, from `model.onnx`. What is not written is as in `defaults`."""

    engine: Literal["onnx"] = Field(description="ONNX Runtime.")


class TorchModel(_Model):
    """A model that torch runs, from `model.safetensors`. What is not written is as in `defaults`."""

    engine: Literal["torch"] = Field(description="PyTorch.")
    torch_class: str = Field(
        "",
        alias="class",
        pattern=r"^([A-Za-z_]\w*\.)+[A-Za-z_]\w*$|^$",
        description="Its class, `package.module.Class`. Default: the entry point of the model's name in the "
        "group `upwell.torch_models`.",
    )
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="Keyword arguments of the class.")


class CloudConfig(_Section):
    """The whole file."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    serve: Serve = Field(description="The service itself.")
    defaults: Defaults = Field(Defaults(), description="What holds for every model that does not say otherwise.")
    models: dict[str, Annotated[OnnxModel | TorchModel, Field(discriminator="engine")]] = Field(
        default_factory=dict, description="Settings of single models, by name. All models of the repository are served."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_engine(cls, data: Any) -> Any:
        """A model that names no engine has the default one, which decides which keys it may have."""
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
        """How the model `name` is to be run: its own keys over the defaults."""
        own = self.models.get(name)
        values = self.defaults.model_dump(exclude={"versions"})
        if own is not None:
            values |= own.model_dump(exclude_none=True, exclude={"versions"})
        if values["instances"] is None:
            values["instances"] = max(1, _cores() // values["threads"]) if values["device"] == "cpu" else 1
        return ModelSettings(**values)

    def versions_of(self, name: str) -> Versions:
        """Which versions of the model `name` are to be served."""
        own = self.models.get(name)
        return self.defaults.versions if own is None or own.versions is None else own.versions

    def listening_on(self, listen: Sequence[str]) -> CloudConfig:
        """The same configuration on other addresses."""
        return self.model_copy(update={"serve": self.serve.model_copy(update={"listen": tuple(listen)})})


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
