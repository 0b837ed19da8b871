"""The record of loading a model: what was tried, why it failed, and how the result was checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from upwell.edge.runtimes.base import Placement

State = Literal["ready", "compiling", "fallback"]
"""`ready`: it runs where it should; `compiling`: it runs on the CPU until the accelerator is ready; `fallback`: a
configured accelerator is not used, or was lost while running."""

CheckedBy = Literal["golden vectors", "the CPU's answers", "nothing"]


@dataclass(frozen=True)
class RuntimeAttempt:
    """One way to run the model that failed, such as `onnx on qnn`, and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class LoadReport:
    """The result of loading. `memory_bytes` is the growth of the process; 0 if unknown.

    `attempts` are the failed ones before the one in use, in order; while `state` is `compiling` the accelerator is not
    among them yet.
    """

    state: State = "ready"
    checked_by: CheckedBy = "nothing"
    attempts: Sequence[RuntimeAttempt] = ()
    load_s: float = 0.0
    warm_up_s: float = 0.0
    memory_bytes: int = 0
    remarks: Sequence[str] = ()
    """Problems with the model's answers that do not keep it from being served."""


@dataclass(frozen=True)
class ModelHealth:
    """One model as it is served now, for health, metrics and `upwell agent`'s log.

    `accelerator` is empty on the CPU. It is never set without node-assignment evidence and a check of its answers.
    """

    model: str
    state: State
    runtime: str
    accelerator: str
    placement: Placement
    report: LoadReport
    version: int = 0
    """Of the bundle; 0 without one."""
    reason: str = ""
    """Why it is not `ready`."""
    uncalibrated: str = ""
    """Why no calibration fits the policy's targets; empty if one does, or none is needed."""
