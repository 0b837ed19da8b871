"""A device's report in one poll."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ConfigurationStatus:
    """The status of the remote configuration with that hash: `applied`, `applying`, `failed` or `unset`."""

    config_hash: str
    status: str
    error: str


@dataclass(frozen=True)
class DeviceCounts:
    """A device's counts since an instant (Unix seconds) under one release (None: without one), and by model the
    demand and curves by which budgets are shared.
    """

    release: int | None
    since_unix_s: float
    counts: Mapping[str, Any]
    demand: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explained:
    """A device's answer to the question with that id."""

    question_id: str
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class Shadowed:
    """The report of a shadow release: lines of a request log, and why it does not run, if it does not."""

    release: int
    lines: Sequence[str]
    problem: str


@dataclass(frozen=True)
class Report:
    """One poll. `instance_uid` is 32 hexadecimal digits; `started_unix_ns` is 0 if unknown."""

    instance_uid: str
    sequence_num: int
    capabilities: int
    attributes: Mapping[str, str] | None = None
    health: Mapping[str, Any] | None = None
    started_unix_ns: int = 0
    configuration: Mapping[str, str] | None = None
    configuration_status: ConfigurationStatus | None = None
    packages: Mapping[str, Any] | None = None
    release: int | None = None
    custom_capabilities: Sequence[str] | None = None
    counted: DeviceCounts | None = None
    drift: Mapping[str, Any] | None = None
    explained: Explained | None = None
    shadowed: Shadowed | None = None
    is_leaving: bool = False
