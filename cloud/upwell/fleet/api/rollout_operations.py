"""The operations on roll-outs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from upwell.fleet.api.device_and_user_operations import Sequence, Text
from upwell.fleet.api.operation_table import AdmittedCall, Given, Nothing, Operation, Table, Taken
from upwell.fleet.registry import devices, groups
from upwell.fleet.registry.device_presence import SILENT_POLLS
from upwell.fleet.registry.devices import Stored
from upwell.fleet.rollout import rollout_store
from upwell.fleet.rollout.rollout_state import Rollout, RolloutPlan
from upwell.fleet.rollout.wave_gate import DEFAULT_GATE, Bound, GateLimits, GateSettings, Signal, threshold
from upwell.fleet.rollout.wave_plan import MOST_WAVES, RolloutWindow, parse_waves
from upwell.shared.errors import InvalidRequest

Share = Annotated[float, Field(gt=0, le=1)]


class LimitsBody(Taken):
    """The limits of a share: how far it may exceed that of the previous release, and its maximum if there was none."""

    worse_by: Share
    at_most: Share


class GateBody(Taken):
    """What a device must show to pass, and what halts the roll-out."""

    requests: Annotated[int, Field(ge=1, le=10**9)] = DEFAULT_GATE.requests
    audits: Annotated[int, Field(ge=0, le=10**9)] = DEFAULT_GATE.audits
    reports: Annotated[int, Field(ge=1, le=10_000)] = DEFAULT_GATE.reports
    patience_s: Annotated[float, Field(ge=1, le=30 * 86400.0)] = DEFAULT_GATE.patience_s
    late: LimitsBody | None = None
    degraded: LimitsBody | None = None
    disagreed: LimitsBody | None = None
    failed: Annotated[float, Field(gt=0, le=0.5)] = DEFAULT_GATE.failed


class WindowBody(Taken):
    """Hours such as 22:00-06:00 in each device's own time zone (its label `timezone`), and the days on which they
    apply.
    """

    hours: Annotated[str, StringConstraints(max_length=11)]
    days: Annotated[list[str], Field(max_length=7)] = Field(default_factory=list)


class RolloutBody(Taken):
    """A release for the devices of a group, or for those that match a CEL expression, wave by wave."""

    release: Sequence
    group: Text | None = None
    where: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    waves: Annotated[list[Text], Field(min_length=1, max_length=MOST_WAVES)] = Field(
        default_factory=lambda: ["1", "10%", "100%"]
    )
    window: WindowBody | None = None
    gate: GateBody = GateBody()


class BoundEntry(Given):
    """A bound: `bad` of `total`, the previous release's share and the allowed one. It halts the roll-out at
    `threshold`.
    """

    signal: str
    bad: int
    total: int
    reference: float
    allowed: float
    evidence: float
    threshold: float


class WaveEntry(Given):
    """A wave: its text, the number of devices at each stage, and its bounds."""

    text: str
    began_unix_s: float | None
    stages: dict[str, int]
    bounds: list[BoundEntry]


class RolloutEntry(Given):
    """A summary of a roll-out."""

    id: str
    release: int
    group: str | None
    expression: str
    phase: str
    halted_by: str
    wave: int
    created_by: str
    created_unix_s: float
    over_unix_s: float | None


class MemberEntry(Given):
    """A device in a roll-out."""

    device: str
    name: str
    wave: int
    stage: str
    former: int | None
    problem: str
    is_back: bool
    requests: int
    offered_unix_s: float | None
    reported_unix_s: float | None


class RolloutDetails(RolloutEntry):
    """A roll-out with its waves, bounds and devices."""

    failed: BoundEntry
    waves: list[WaveEntry]
    devices: list[MemberEntry]


class Rollouts(Given):
    """Roll-outs, the newest first."""

    rollouts: list[RolloutEntry]


class NewRollout(Given):
    """The id of a started roll-out."""

    id: str


class RolloutsQuery(Taken):
    """The number of entries."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 50


def _begin(call: AdmittedCall[RolloutBody, Nothing]) -> NewRollout:
    body = call.body
    if (body.group is None) == (body.where is None):
        raise InvalidRequest("expected one of `group` and `where`")
    try:
        waves = parse_waves(body.waves)
        window = None if body.window is None else RolloutWindow(body.window.hours, tuple(body.window.days))
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    plan = RolloutPlan("", body.release, waves, _gate(body.gate), window)
    presence = call.state.presence

    def is_reachable(device: Stored) -> bool:
        seen = presence.last_seen(device)
        return seen is not None and call.now_unix_s - seen <= SILENT_POLLS * presence.poll_s

    with call.state.database.writing() as connection:
        expression = body.where or groups.find_group(connection, str(body.group))["expression"]
        target = rollout_store.RolloutTarget(expression, body.group)
        return NewRollout(id=rollout_store.create(connection, call.actor, plan, target, is_reachable))


def _gate(body: GateBody) -> GateSettings:
    def limits(given: LimitsBody | None, default: GateLimits) -> GateLimits:
        return default if given is None else GateLimits(given.worse_by, given.at_most)

    return GateSettings(
        body.requests, body.audits, body.reports, body.patience_s, limits(body.late, DEFAULT_GATE.late),
        limits(body.degraded, DEFAULT_GATE.degraded), limits(body.disagreed, DEFAULT_GATE.disagreed), body.failed,
    )  # fmt: skip


def _list(call: AdmittedCall[Nothing, RolloutsQuery]) -> Rollouts:
    with call.state.database.reading() as connection:
        return Rollouts(rollouts=[_entry(one) for one in rollout_store.all_rollouts(connection, call.query.limit)])


def _entry(row: Any) -> RolloutEntry:
    state = row["state"]
    names = ("id", "release", "group", "expression", "phase", "created_by", "created_unix_s", "over_unix_s")
    return RolloutEntry(
        **{name: row[name] for name in names}, halted_by=state["halted_by"], wave=len(state["waves"]) - 1
    )


def _show(call: AdmittedCall[Nothing, Nothing]) -> RolloutDetails:
    with call.state.database.reading() as connection:
        opened = rollout_store.read(connection, call.path["rollout"])
        names = {one["id"]: one["name"] for one in devices.all_devices(connection)}
    rollout = opened.rollout
    count = len(rollout.plan.waves)
    members = sorted(rollout.members.items(), key=lambda one: (one[1].wave, names.get(one[0], "")))
    return RolloutDetails(
        **_entry(opened.row).model_dump(),
        failed=_bound("failed", rollout.failed, count),
        waves=[_wave(rollout, index) for index in range(count)],
        devices=[
            MemberEntry(
                device=device, name=names.get(device, ""), wave=one.wave, stage=one.stage.value, former=one.former,
                problem=one.problem, is_back=one.is_back, requests=one.served.requests,
                offered_unix_s=one.offered_unix_s, reported_unix_s=one.reported_unix_s,
            )
            for device, one in members
        ],
    )  # fmt: skip


def _wave(rollout: Rollout, index: int) -> WaveEntry:
    stages: dict[str, int] = {}
    for member in rollout.members.values():
        if member.wave == index:
            stages[member.stage.value] = stages.get(member.stage.value, 0) + 1
    has_begun = index <= rollout.wave
    state = rollout.waves[index] if has_begun else None
    bounds = {} if state is None else state.bounds
    return WaveEntry(
        text=rollout.plan.waves[index].text,
        began_unix_s=None if state is None else state.began_unix_s,
        stages=stages,
        bounds=[_bound(signal, bound, len(rollout.plan.waves)) for signal, bound in bounds.items()],
    )


def _bound(signal: Signal, bound: Bound, waves: int) -> BoundEntry:
    return BoundEntry(
        signal=signal, bad=bound.bad, total=bound.total, reference=bound.reference, allowed=bound.allowed,
        evidence=bound.evidence, threshold=threshold(signal, waves),
    )  # fmt: skip


def _pause(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        rollout_store.operate(connection, call.actor, call.path["rollout"], "pause")


def _resume(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        rollout_store.operate(connection, call.actor, call.path["rollout"], "resume")


def _back(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        rollout_store.operate(connection, call.actor, call.path["rollout"], "back")


TABLE: Table = (
    Operation("GET", "/rollouts", "listRollouts", "The roll-outs", "viewer", _list, Rollouts, query=RolloutsQuery),
    Operation("POST", "/rollouts", "beginRollout", "Roll out a release", "operator", _begin, NewRollout,
              body=RolloutBody),
    Operation("GET", "/rollouts/{rollout}", "showRollout", "One roll-out: waves, bounds, devices", "viewer", _show,
              RolloutDetails),
    Operation("POST", "/rollouts/{rollout}/pause", "pauseRollout", "Pause a roll-out", "operator", _pause),
    Operation("POST", "/rollouts/{rollout}/resume", "resumeRollout", "Resume a roll-out", "operator", _resume),
    Operation("POST", "/rollouts/{rollout}/back", "takeRolloutBack", "Halt a roll-out and return to the former release",
              "operator", _back),
)  # fmt: skip
"""The operations of this module."""
