"""A roll-out as an immutable value: its plan, its state, its events and its actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from upwell.fleet.rollout.wave_gate import (
    DEFAULT_GATE,
    NO_COUNTS,
    SHARES,
    Block,
    Bound,
    Bounds,
    Breach,
    Counts,
    GateSettings,
    judge_starts,
)
from upwell.fleet.rollout.wave_plan import RolloutWindow, Wave


class RolloutPhase(str, Enum):
    """The phase of a roll-out. Finished and halted are final."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    HALTED = "halted"


class Stage(str, Enum):
    """The stage of a device in it. A device only moves down this list."""

    WAITING = "waiting"
    OFFERED = "offered"
    STARTED = "started"
    PASSED = "passed"
    FAILED = "failed"
    RETURNED = "returned"
    LEFT = "left"


ON_NEW = (Stage.OFFERED, Stage.STARTED, Stage.PASSED)
"""The stages in which a device is to run the new release."""


@dataclass(frozen=True, slots=True)
class Member:
    """A device in a roll-out. `former` is the release that it ran before, None without one.

    `before` are its counts under that one, `served` those under the new one, in `reports` reports, the last of them in
    the block of that number. `baseline` is what its present is held against in the control group: its counts before the
    roll-out, or once it has passed, those under the new release until then. `taken_unix_s` is when it is known to have
    received the offer, `reported_unix_s` when it last polled. `told_before` is its complaint about a release from
    before the offer. `problem` says why it failed, `is_back` whether it was seen on its former release since that was
    offered again. `leaving` is the release that it still runs at the start, though it is on its way back to `former`;
    what it serves under that one is not counted. `pooled` is its part of the counts of all devices.
    """

    wave: int
    zone: str = "UTC"
    former: int | None = None
    stage: Stage = Stage.WAITING
    before: Counts = NO_COUNTS
    baseline: Counts = NO_COUNTS
    served: Counts = NO_COUNTS
    reports: int = 0
    block: int = 0
    offered_unix_s: float | None = None
    taken_unix_s: float | None = None
    reported_unix_s: float | None = None
    told_before: str = ""
    problem: str = ""
    is_back: bool = False
    leaving: int | None = None
    pooled: Counts = NO_COUNTS


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The fixed part: the release (its sequence), the waves, the gate, and the hours, if any. `group_release` is what
    the group had before, None without any.
    """

    id: str
    release: int
    waves: tuple[Wave, ...]
    gate: GateSettings = DEFAULT_GATE
    window: RolloutWindow | None = None
    group_release: int | None = None


@dataclass(frozen=True, slots=True)
class WaveState:
    """The state of a wave: when it began, its bounds, and the block of reports that is judged next."""

    began_unix_s: float
    bounds: Bounds = field(default_factory=lambda: {signal: Bound.start(signal) for signal in SHARES})
    block: Block = field(default_factory=Block)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A roll-out. `waves` are those that have begun; the last one is the current wave.

    `pooled` are the counts of all devices under the previous release, each `weighed`. `halted_by` says who or what
    halted it.
    """

    plan: RolloutPlan
    members: Mapping[str, Member]
    waves: tuple[WaveState, ...]
    pooled: Counts = NO_COUNTS
    phase: RolloutPhase = RolloutPhase.RUNNING
    breach: Breach | None = None
    halted_by: str = ""

    @property
    def wave(self) -> int:
        """The index of the current wave."""
        return len(self.waves) - 1

    @property
    def is_over(self) -> bool:
        """Whether it is finished or halted."""
        return self.phase in (RolloutPhase.FINISHED, RolloutPhase.HALTED)

    @property
    def failed(self) -> Bound:
        """The bound on devices that fail on the release, over all waves."""
        offered = [
            one for one in self.members.values() if one.offered_unix_s is not None and one.stage is not Stage.LEFT
        ]
        failed = sum(one.stage is Stage.FAILED for one in offered)
        return judge_starts(self.plan.gate, len(offered) - failed, failed)

    def target(self, device: str) -> int | None:
        """The release that this roll-out wants the device to run; None if it has no say."""
        member = self.members.get(device)
        if member is None:
            return None
        if member.stage in ON_NEW:
            return self.plan.release
        return member.former if member.stage in (Stage.FAILED, Stage.RETURNED) else None


@dataclass(frozen=True, slots=True)
class Reported:
    """A device polled at `at_unix_s`: it runs `release`, under which it has served `delta` since its last report;
    None if it does not say.

    `refused` says why it does not run the release of this roll-out: it could not be downloaded or verified, did not
    start, or was rolled back on its trial; empty if nothing of the kind is known.
    """

    device: str
    at_unix_s: float
    release: int | None
    delta: Counts = NO_COUNTS
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """Only time has passed. Since `listened_from_unix_s` the service has listened without a break: what it did not hear
    before that is not the silence of a device. `said` is why devices have not got the release yet, if they say so.
    """

    listened_from_unix_s: float = 0.0
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Paused:
    """An operator wants no more offers for now."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """An operator wants offers again."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An operator halts it, and every device is to have its former release back."""

    by: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A device has joined the group and belongs to that wave."""

    device: str
    member: Member


@dataclass(frozen=True, slots=True)
class Left:
    """A device has left the group, or its certificate was revoked."""

    device: str


Event: TypeAlias = Reported | Reached | Paused | Resumed | TakenBack | Joined | Left


@dataclass(frozen=True, slots=True)
class OfferRelease:
    """Offer the device the new release."""

    device: str
    release: int


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Offer the device its former release again; None if it had none."""

    device: str
    former: int | None


@dataclass(frozen=True, slots=True)
class NextWave:
    """The gate opened: wave `wave` begins."""

    wave: int


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop: no more devices are offered the release. `reason` is a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Finish: all devices are to run the release, including later ones."""

    release: int


Action: TypeAlias = OfferRelease | TakeBack | NextWave | Halt | Finish
