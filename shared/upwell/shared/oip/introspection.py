"""What a server reports beside metadata: Triton's model configuration and statistics, resizes, and its extensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from pydantic import ValidationError

from upwell.shared.errors import NotAllowed, NotOffered
from upwell.shared.signature.model_yaml import Resize
from upwell.shared.signature.processor import versions
from upwell.shared.signature.uplink_pictures import NO_RESIZES, Resizes
from upwell.shared.tensors import TensorSpec
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:
    from upwell.shared.oip.model_statistics import ModelStatistics

EXTENSIONS = ("classification", "model_configuration", "statistics", "schedule_policy", "parameters")
"""The extensions of a server with an `Introspection`. `schedule_policy`: the parameters `priority` and `timeout`
apply."""

MAX_ROWS = 1024
"""The `max_batch_size` reported for a model with any number of rows, limited only by the message size."""

Placement = Literal["KIND_CPU", "KIND_GPU", "KIND_MODEL"]
"""Triton's kinds of instances; KIND_MODEL leaves the placement to the model's runtime."""


@value_class
class ModelConfig:
    """How a model is served. Shapes are those of its metadata; -1 is a variable dimension.

    `max_batch`: most rows run together, if requests are merged; 0 for a model without rows. `buckets`: the numbers of
    rows that a run may have.
    `parameters`: further facts from the server.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    instances: int = 1
    placement: Placement = "KIND_CPU"
    max_batch: int = 1
    buckets: tuple[int, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def max_rows(self) -> int:
        """Triton's `max_batch_size`: the most rows run together; `MAX_ROWS` if requests are not merged and may have any
        number of rows, 0 if the first dimension is not a number of rows."""
        shapes = [spec.shape for spec in (*self.inputs, *self.outputs)]
        if not self.max_batch or not shapes or any(shape[:1] != (-1,) for shape in shapes):
            return 0
        return self.max_batch if self.max_batch > 1 else MAX_ROWS


@value_class
class ServerSettings:
    """The settings reported by Triton's trace and logging extensions; callers cannot change them."""

    trace: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"trace_level": ("OFF",)})
    log: Mapping[str, bool | int | str] = field(
        default_factory=lambda: {
            "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
            "log_format": "default",
        }
    )  # fmt: skip


class Introspection(Protocol):
    """What a server knows of its models. Thread-safe; failures are `UpwellError`s."""

    def config(self, model: str, version: str = "") -> ModelConfig:
        """How a model is served. Raises `ModelNotFound`, and `Unavailable` if that version is not ready."""
        ...

    def statistics(self, model: str = "", version: str = "") -> Sequence[ModelStatistics]:
        """The counts of each version that is ready, or of those of one model. Raises as `config` does."""
        ...

    def settings(self) -> ServerSettings:
        """How the server logs and traces."""
        ...


def refuse_changes(names: Iterable[str]) -> None:
    """Raise `NotAllowed` if a caller wants to change settings."""
    for name in names:
        raise NotAllowed(
            f"callers may not change the setting {name!r}: traces and logs are set in the server's configuration file"
        )


def refuse_shared_memory() -> NoReturn:
    """Raise `NotOffered`."""
    raise NotOffered(
        "shared memory is not supported: send tensors as raw contents; on the same machine a unix socket "
        '(`listen: ["unix:/PATH"]`) is fastest'
    )


def refuse_repository() -> NoReturn:
    """Raise `NotOffered`: the models of this server are those of its configuration."""
    raise NotOffered(
        "callers cannot list, load or unload models here: this server has the `models` of its configuration file; "
        "ModelReady and ModelStatistics tell which they are"
    )


def config_document(config: ModelConfig) -> dict[str, object]:
    """The configuration as Triton's JSON, which protobuf parses as a `ModelConfig` message."""
    without_rows = config.max_rows > 0
    inputs, outputs = (
        [
            {
                "name": spec.name,
                "data_type": "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}",
                "dims": list(spec.shape[1:] if without_rows else spec.shape),
            }
            for spec in specs
        ]
        for specs in (config.inputs, config.outputs)
    )
    document: dict[str, object] = {
        "name": config.name,
        "platform": config.platform,
        "backend": config.backend,
        "version_policy": {"specific": {"versions": [int(version) for version in config.versions]}},
        "max_batch_size": config.max_rows,
        "input": inputs,
        "output": outputs,
        "instance_group": [{"name": f"{config.name}_0", "kind": config.placement, "count": config.instances}],
    }
    if config.max_batch > 1:
        document["dynamic_batching"] = {"preferred_batch_size": list(config.buckets) or [config.max_batch]}
    if config.parameters:
        document["parameters"] = {name: {"string_value": value} for name, value in config.parameters.items()}
    return document


def statistics_document(statistics: Iterable[ModelStatistics]) -> dict[str, object]:
    """The statistics as Triton's JSON, which protobuf parses as a `ModelStatisticsResponse` message."""
    return {"model_stats": [_statistics(one) for one in statistics]}


def _statistics(one: ModelStatistics) -> dict[str, object]:
    parts = {
        "success": one.success,
        "fail": one.failure,
        "queue": one.queue,
        "compute_input": one.pre,
        "compute_infer": one.compute,
        "compute_output": one.post,
    }
    return {
        "name": one.model,
        "version": one.version,
        "last_inference": one.last_unix_ms,
        "inference_count": one.rows,
        "execution_count": one.runs,
        "inference_stats": {name: _duration(part.count, part.total_s) for name, part in parts.items()},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(batch.runs, batch.pre_s),
                "compute_infer": _duration(batch.runs, batch.compute_s),
                "compute_output": _duration(batch.runs, batch.post_s),
            }
            for rows, batch in one.batches.items()
        ],
    }


def _duration(count: int, total_s: float) -> dict[str, int]:
    return {"count": count, "ns": round(1e9 * total_s)}


_DIGEST, _RESIZE = "upwell.digest", "upwell.resize."


@value_class
class Seen:
    """The sizes to which the model of that digest resizes pictures, by input; digest "" if the server does not say."""

    digest: str = ""
    resizes: Resizes = field(default_factory=lambda: NO_RESIZES)


def write_seen(digest: str, resizes: Resizes) -> dict[str, str]:
    """The parameters for these sizes; empty for a model that resizes nothing."""
    if not resizes:
        return {}
    written = {_RESIZE + name: one.model_dump_json(include={"to", "fit", "filter"}) for name, one in resizes.items()}
    return {_DIGEST: digest, **written}


def read_seen(parameters: Mapping[str, str]) -> Seen:
    """Parse parameters. A size that cannot be read, for instance from a later version, is ignored."""
    resizes = {}
    for name, text in parameters.items():
        if name.startswith(_RESIZE):
            try:
                resizes[name.removeprefix(_RESIZE)] = Resize.model_validate_json(text)
            except ValidationError:
                continue
    return Seen(parameters.get(_DIGEST, ""), resizes)


def extensions() -> tuple[str, ...]:
    """`upwell/MAJOR.MINOR`, and the versions of the libraries that process pictures on both sides."""
    minor = ".".join(version("upwell").split(".")[:2])
    return (f"upwell/{minor}", *versions())
