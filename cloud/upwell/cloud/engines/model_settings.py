"""The settings for running one model: engine, device, threads, batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

AUTOMATIC = "auto"
"""The value of `device`, or of `providers`, for the accelerator that the engine finds, or the CPU if there is none."""

Precision: TypeAlias = Literal["fp32", "fp16", "bf16"]
"""The precision in which a torch network computes."""


@dataclass(frozen=True)
class ModelSettings:
    """The settings for running one model; the keys of `cloud.yaml` with defaults filled in."""

    engine: str = "onnx"
    device: str = "cpu"
    instances: int = 1
    cpu_instances: int = 0
    """The instances if `auto` finds no accelerator; 0: `instances`."""
    threads: int = 1
    max_batch: int = 1
    max_queue: int = 64
    buckets: tuple[int, ...] = ()
    torch_class: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    precision: Precision | None = None
    compile: bool = False
    graphs: bool = False
    providers: tuple[str, ...] = ()
    trusted: frozenset[str] = frozenset()

    @property
    def is_on_cpu(self) -> bool:
        """Whether nothing but the CPU is asked for."""
        return self._provider_names == {"cpu"} if self._provider_names else self.device == "cpu"

    @property
    def _provider_names(self) -> frozenset[str]:
        if self.engine != "onnx":  # those of `defaults` are not for it
            return frozenset()
        return frozenset(one.lower().removesuffix("executionprovider") for one in self.providers)
