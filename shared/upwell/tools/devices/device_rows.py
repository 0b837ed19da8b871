"""The findings about one accelerator in one runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Status = Literal["executed", "offered, not executed", "not usable", "not installed", "found, not probed"]
"""`executed` only if the runtime's own node assignment shows nodes there and the answers are right."""


@dataclass(frozen=True)
class DeviceCheck:
    """The result of one sample model: how many of its nodes the accelerator ran, and whether it computes correctly.

    `agrees` is None if it did not run; `reason` says why, or what was wrong.
    """

    model: str
    nodes: int = 0
    on_accelerator: int = 0
    agrees: bool | None = None
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One accelerator as one runtime package offers it here.

    `accelerator` and `options` are what `accelerator:` of agent.yaml takes (`CPU` and `XNNPACK` need none); `devices`
    are those that the runtime lists for it; `reason` says why it is not usable, how to install it, or what to watch
    out for.
    """

    runtime: str
    accelerator: str
    status: Status
    checks: Sequence[DeviceCheck] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    reason: str = ""


@dataclass(frozen=True)
class DeviceAttempt:
    """Something to try: its name, and the function that tries it."""

    name: str
    run: Callable[[], Row]


CPU = "CPU"


def judged(runtime: str, accelerator: str, checks: Sequence[DeviceCheck]) -> Row:
    """The row for these checks: executed if nodes of some model ran there and no answer was wrong.

    For the CPU, right answers suffice: nothing else could have given them.
    """
    wrong = [check for check in checks if check.agrees is False]
    executed = not wrong and any(check.agrees and (check.on_accelerator or accelerator == CPU) for check in checks)
    reason = "" if executed else next((check.reason for check in wrong or checks if check.reason), "")
    return Row(runtime, accelerator, "executed" if executed else "not usable", checks, reason=reason)


def with_options(row: Row, options: Mapping[str, str], devices: Sequence[str] = ()) -> Row:
    """The row of an accelerator with these options. One that ran on the processor says so, whatever its name."""
    on_processor = CPU in options.values() or (devices and all(device.startswith(CPU) for device in devices))
    minded = row.status == "executed" and on_processor
    reason = "in software on this processor: not a measure of an NPU's speed" if minded else row.reason
    return replace(row, options=options, devices=devices, reason=reason)
