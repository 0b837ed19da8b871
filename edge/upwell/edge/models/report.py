"""How a model came to run where it runs: what was tried, why it was left, and how it was checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from upwell.edge.runtimes.base import Placement

State = Literal["ready", "compiling", "fallback"]
"""`ready`: it runs where it should; `compiling`: on the CPU until the accelerator is; `fallback`: an accelerator that
was asked for is not used, or was lost while running."""

CheckedBy = Literal["golden vectors", "the CPU's answers", "nothing"]


@dataclass(frozen=True)
class RuntimeAttempt:
    """One way to run the model that was tried and left, such as `onnx on qnn`, and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class LoadReport:
    """What loading came to. `memory_bytes` is what the process grew by; 0 where that cannot be told.

    `attempts` are those before the one that is used, in order; while `state` is `compiling` the accelerator that is
    being made ready is no attempt yet.
    """

    state: State = "ready"
    checked_by: CheckedBy = "nothing"
    attempts: Sequence[RuntimeAttempt] = ()
    load_s: float = 0.0
    warm_up_s: float = 0.0
    memory_bytes: int = 0
    remarks: Sequence[str] = ()
    """What is odd about the model's answers, though it is served."""


@dataclass(frozen=True)
class ModelHealth:
    """One model as the agent serves it now, for health, metrics and `upwell agent`'s log.

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
    """Why no calibration fits what the policy asks of it; empty where one does, or none is needed."""
