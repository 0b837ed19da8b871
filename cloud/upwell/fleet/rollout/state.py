"""A roll-out as an immutable value: what it is, what has come of it, what happens to it, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from upwell.fleet.rollout.gate import (
    DEFAULT_GATE,
    NO_COUNTS,
    SHARES,
    Bound,
    Bounds,
    Breach,
    Counts,
    GateSettings,
    judge_starts,
)
from upwell.fleet.rollout.plan import RolloutWindow, Wave


class RolloutPhase(str, Enum):
    """Where a roll-out as a whole stands. Finished and halted are for good."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    HALTED = "halted"


class Stage(str, Enum):
    """Where a device stands in it. Each comes after the ones above it, and a device never goes up again."""

    WAITING = "waiting"
    OFFERED = "offered"
    STARTED = "started"
    PASSED = "passed"
    FAILED = "failed"
    RETURNED = "returned"
    LEFT = "left"


ON_NEW = (Stage.OFFERED, Stage.STARTED, Stage.PASSED)
"""Those whose devices are to run the new release."""


@dataclass(frozen=True, slots=True)
class Member:
    """A device in a roll-out. `former` is the release that it ran before, None where it had none.

    `before` are its counts under that one, `served` those under the new one, in so many `reports`. `taken_unix_s` is
    when it is known to have heard of the offer, `reported_unix_s` when it was last heard of. `told_before` is what it
    had to say against a release before it was offered this one. `problem` says why it failed, `is_back` whether it has
    been seen on its former release since that was offered again.
    """

    wave: int
    zone: str = "UTC"
    former: int | None = None
    stage: Stage = Stage.WAITING
    before: Counts = NO_COUNTS
    served: Counts = NO_COUNTS
    reports: int = 0
    offered_unix_s: float | None = None
    taken_unix_s: float | None = None
    reported_unix_s: float | None = None
    told_before: str = ""
    problem: str = ""
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What does not change: the release (its sequence), the waves, the gate, and the hours, if any."""

    id: str
    release: int
    waves: tuple[Wave, ...]
    gate: GateSettings = DEFAULT_GATE
    window: RolloutWindow | None = None


@dataclass(frozen=True, slots=True)
class WaveState:
    """What is known of a wave: when it began, its bounds, and what devices of later waves have counted since then, the
    control group."""

    began_unix_s: float
    bounds: Bounds = field(default_factory=lambda: {signal: Bound.start(signal) for signal in SHARES})
    control: Counts = NO_COUNTS


@dataclass(frozen=True, slots=True)
class Rollout:
    """A roll-out. `waves` are those that have begun; the last one is the wave that it is in.

    `pooled` is what all devices counted under the release before. `halted_by` says who or what halted it.
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
        """The index of the wave that it is in."""
        return len(self.waves) - 1

    @property
    def is_over(self) -> bool:
        """Whether it is finished or halted."""
        return self.phase in (RolloutPhase.FINISHED, RolloutPhase.HALTED)

    @property
    def failed(self) -> Bound:
        """The bound of devices that fail on the release, over all waves."""
        offered = [
            one for one in self.members.values() if one.offered_unix_s is not None and one.stage is not Stage.LEFT
        ]
        failed = sum(one.stage is Stage.FAILED for one in offered)
        return judge_starts(self.plan.gate, len(offered) - failed, failed)

    def target(self, device: str) -> int | None:
        """The release that the device is to run by this roll-out; None where it has no say."""
        member = self.members.get(device)
        if member is None:
            return None
        if member.stage in ON_NEW:
            return self.plan.release
        return member.former if member.stage in (Stage.FAILED, Stage.RETURNED) else None


@dataclass(frozen=True, slots=True)
class Reported:
    """A device was heard of at `at_unix_s`: it runs `release`, under which it has served `delta` since its report
    before; None where it does not say.

    `refused` says why it does not run the release of this roll-out: it could not be fetched or verified, did not
    start, or was rolled back on its trial; empty where nothing of the kind is known.
    """

    device: str
    at_unix_s: float
    release: int | None
    delta: Counts = NO_COUNTS
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """Nothing happened but time."""


@dataclass(frozen=True, slots=True)
class Paused:
    """An operator wants no more offers for now."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """An operator wants them again."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An operator halts it, and every device is to have its former release back."""

    by: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A device has come to the group, and belongs to that wave."""

    device: str
    member: Member


@dataclass(frozen=True, slots=True)
class Left:
    """A device has gone from the group, or its certificate was revoked."""

    device: str


Event: TypeAlias = Reported | Reached | Paused | Resumed | TakenBack | Joined | Left


@dataclass(frozen=True, slots=True)
class OfferRelease:
    """Offer the device the new release."""

    device: str
    release: int


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Offer the device its former release again; None where it had none."""

    device: str
    former: int | None


@dataclass(frozen=True, slots=True)
class NextWave:
    """The gate opened: wave `wave` begins."""

    wave: int


@dataclass(frozen=True, slots=True)
class Halt:
    """It is over: nobody is offered the release any more. `reason` is a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """It is over: the release is what all devices are to run, also those that come later."""

    release: int


Action: TypeAlias = OfferRelease | TakeBack | NextWave | Halt | Finish
