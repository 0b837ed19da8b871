"""Roll-outs in the database: started, and stepped by the reports of devices, one transaction per step."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, insert, select, update

from upwell.fleet.errors import Conflict
from upwell.fleet.registry.device_events import note_event
from upwell.fleet.registry.devices import Stored, all_devices, labels_of, release_package, variables_of
from upwell.fleet.registry.groups import FRESH_S, AssignedRelease, all_groups, find_group, membership, wanted
from upwell.fleet.rollout.rollout_state import (
    ON_NEW,
    Action,
    Event,
    Finish,
    Halt,
    Joined,
    Left,
    Member,
    OfferRelease,
    Paused,
    Reached,
    Reported,
    Resumed,
    Rollout,
    RolloutPhase,
    RolloutPlan,
    Stage,
    TakeBack,
    TakenBack,
)
from upwell.fleet.rollout.state_machine import NotPossible, begin, since, step
from upwell.fleet.rollout.wave_gate import NO_COUNTS, Counts
from upwell.fleet.rollout.wave_plan import RolloutDevice, deal, is_zone, wave_of_late
from upwell.fleet.storage.database import Row, all_rows, in_batches, the_row
from upwell.fleet.storage.tables import DEVICES, FACTS, GROUPS, ROLLOUT_MEMBERS, ROLLOUTS, STATISTICS
from upwell.fleet.users import Actor, record_audit
from upwell.shared.errors import InvalidRequest

ZONE_LABEL = "timezone"
"""The label that names a device's time zone."""

OWN = 0
"""The release of a device that has none: what its own agent.yaml names."""

FOLLOWED_S = 7 * 86400.0
"""How long a halted roll-out waits for devices to return to their former release."""

GATE = Actor("gate", 0.0)
_ROLLOUT: TypeAdapter[Rollout] = TypeAdapter(Rollout)
_MEMBER: TypeAdapter[Member] = TypeAdapter(Member)


class RolloutTarget(NamedTuple):
    """The devices: those of a group, or those that match an expression."""

    expression: str
    group: str | None = None


@dataclass(frozen=True)
class StoredRollout:
    """A roll-out as read, and what is stored with it."""

    rollout: Rollout
    row: Row
    counted: Mapping[str, Any]


def create(
    connection: Connection,
    actor: Actor,
    plan: RolloutPlan,
    target: RolloutTarget,
    is_reachable: Callable[[Stored], bool],
) -> str:
    """Start a roll-out; return its id. `is_reachable` tells whether a device has polled recently.

    Raises `Conflict` if a device is in another one, `InvalidRequest` if there is no device for it.
    """
    holds = membership(target.expression).holds
    devices = [one for one in _locked(connection) if one["revoked_unix_s"] is None and holds(variables_of(one))]
    taken = [one for one in devices if one["rollout"] is not None]
    if taken:
        more = f" and {len(taken) - 1} more are" if len(taken) > 1 else " is"
        raise Conflict(
            f"device {taken[0]['name']}{more} in roll-out {taken[0]['rollout']}, which has not ended; "
            "wait for its end or take it back"
        )
    rollout_id = secrets.token_hex(4)
    candidates = [RolloutDevice(one["id"], labels_of(one), is_reachable(one)) for one in devices]
    group_release = None if target.group is None else find_group(connection, target.group)["release"]
    try:
        dealt = deal(rollout_id, plan.waves, candidates)
        members = {one["id"]: _member(connection, one, dealt[one["id"]]) for one in devices}
        _check_labels(plan, devices)
        plan = replace(plan, id=rollout_id, group_release=group_release)
        rollout = begin(plan, members, (), actor.now_unix_s)
    except ValueError as error:
        raise InvalidRequest(f"release {plan.release} cannot be rolled out: {error}") from None
    values = {
        "id": rollout_id, "release": plan.release, "group": target.group, "expression": target.expression,
        "phase": rollout.phase.value, "state": _header(rollout), "statistics_id": _newest_statistics(connection),
        "is_followed": True, "created_by": actor.name, "created_unix_s": actor.now_unix_s,
    }  # fmt: skip
    connection.execute(insert(ROLLOUTS).values(**values))
    latest = {one["id"]: one["statistics"] for one in devices}
    _add_members(connection, rollout.plan, rollout.members, latest)
    details = {"release": plan.release, "expression": target.expression, "waves": [one.text for one in plan.waves]}
    record_audit(connection, actor, "begin rollout", rollout_id, details)
    return rollout_id


def _check_labels(plan: RolloutPlan, devices: Sequence[Stored]) -> None:
    """Raise `ValueError` for a wave whose label no device has, which would be skipped, and for hours in an unknown time
    zone, which would be those of UTC.
    """
    for wave in plan.waves:
        if wave.label is not None and not any(wave.label in labels_of(one).items() for one in devices):
            raise ValueError(f"no device has the label of wave {wave.text}")
    for one in devices if plan.window else ():
        if not is_zone(zone := labels_of(one).get(ZONE_LABEL) or "UTC"):
            raise ValueError(f"device {one['name']!r} has an unknown time zone, {ZONE_LABEL}={zone}")


def operate(connection: Connection, actor: Actor, rollout_id: str, what: str) -> None:
    """`pause`, `resume` or take `back`. Raises `NotFound`, and `Conflict` if it is not possible now."""
    events: Mapping[str, Event] = {"pause": Paused(), "resume": Resumed(), "back": TakenBack(actor.name)}
    opened = _open(connection, rollout_id)
    if what == "back":
        _check_latest(connection, opened)
    try:
        after, actions = step(opened.rollout, events[what], actor.now_unix_s)
    except NotPossible as error:
        raise Conflict(f"roll-out {rollout_id}: {error}") from None
    record_audit(connection, actor, f"{what} rollout", rollout_id)
    # A roll-out that ended weeks ago is followed again, but not through all reports since.
    read_until = _newest_statistics(connection) if what == "back" else opened.row["statistics_id"]
    _save(connection, opened, after, actions, read_until, {}, actor.now_unix_s)


def _newest_statistics(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(STATISTICS.c.id))) or 0)


def _check_latest(connection: Connection, opened: StoredRollout) -> None:
    """Raise `Conflict` if a later roll-out, which was not halted, has one of its devices: their former release is what
    that one replaced.
    """
    mine = ROLLOUT_MEMBERS.alias("mine")
    later = (
        select(ROLLOUTS.c.id)
        .join(ROLLOUT_MEMBERS, ROLLOUT_MEMBERS.c.rollout_id == ROLLOUTS.c.id)
        .join(mine, mine.c.device_id == ROLLOUT_MEMBERS.c.device_id)
        .where(mine.c.rollout_id == opened.row["id"])
        .where(ROLLOUTS.c.created_unix_s > opened.row["created_unix_s"])
        .where(ROLLOUTS.c.phase != RolloutPhase.HALTED.value)
    )
    found = connection.scalar(later.order_by(ROLLOUTS.c.created_unix_s.desc()).limit(1))
    if found is not None:
        raise Conflict(f"roll-out {opened.row['id']}: roll-out {found} of some of its devices is later; take that back")


def followed(connection: Connection) -> list[str]:
    """The roll-outs that still need steps."""
    return list(connection.scalars(select(ROLLOUTS.c.id).where(ROLLOUTS.c.is_followed).order_by(ROLLOUTS.c.id)))


def advance(
    connection: Connection,
    rollout_id: str,
    listened_from_unix_s: float,
    now_unix_s: float,
    last_seen: Callable[[Stored], float | None],
) -> None:
    """Step a roll-out by all reports of its devices since the last step, and by the time. Since `listened_from_unix_s`
    the service has listened without a break.
    """
    opened = _open(connection, rollout_id)
    rollout, actions = opened.rollout, list[Action]()
    news = _News.read(connection, opened, last_seen)
    for event in (*news.events, Reached(listened_from_unix_s, news.said)):
        rollout, asked = step(rollout, event, now_unix_s)
        actions += asked
    _save(connection, opened, rollout, actions, news.statistics_id, news.counted, now_unix_s)


def read(connection: Connection, rollout_id: str) -> StoredRollout:
    """A roll-out. Raises `NotFound`."""
    chosen = select(ROLLOUTS).where(ROLLOUTS.c.id == rollout_id)
    return _opened(connection, the_row(connection, chosen, f"roll-out {rollout_id!r}"))


def all_rollouts(connection: Connection, limit: int) -> list[Row]:
    """The rows of all roll-outs, the newest first."""
    return all_rows(connection, select(ROLLOUTS).order_by(ROLLOUTS.c.created_unix_s.desc()).limit(limit))


def _open(connection: Connection, rollout_id: str) -> StoredRollout:
    """A roll-out, locked against any other step until the transaction ends."""
    chosen = select(ROLLOUTS).where(ROLLOUTS.c.id == rollout_id).with_for_update()
    return _opened(connection, the_row(connection, chosen, f"roll-out {rollout_id!r}"))


def _opened(connection: Connection, row: Row) -> StoredRollout:
    found = all_rows(connection, select(ROLLOUT_MEMBERS).where(ROLLOUT_MEMBERS.c.rollout_id == row["id"]))
    members = {one["device_id"]: _MEMBER.validate_python(one["state"]) for one in found}
    rollout = replace(_ROLLOUT.validate_python(row["state"]), members=members)
    return StoredRollout(rollout, row, {one["device_id"]: one["counted"] for one in found})


def _locked(connection: Connection) -> Sequence[Stored]:
    """The devices, while no other replica begins a roll-out and none takes a step."""
    connection.execute(select(FACTS.c.name).order_by(FACTS.c.name).with_for_update())
    connection.execute(select(ROLLOUTS.c.id).where(ROLLOUTS.c.is_followed).with_for_update())
    return all_devices(connection)


def _header(rollout: Rollout) -> Any:
    return _ROLLOUT.dump_python(replace(rollout, members={}), mode="json")


def _member(connection: Connection, device: Stored, wave: int) -> Member:
    """A device at the start, with its counts under the release that it runs, or to which it is on its way back."""
    runs, assigned = device["release"], device["assigned"]
    is_leaving = runs is not None and assigned is not None and assigned < runs
    former = (assigned or None) if is_leaving else runs
    rows = connection.execute(
        select(STATISTICS.c.since_unix_s, STATISTICS.c.release, STATISTICS.c.counts)
        .where(STATISTICS.c.device_id == device["id"])
        .order_by(STATISTICS.c.id)
    )
    latest = {row.since_unix_s: counts_of(row.counts) for row in rows if row.release == former}
    zone = labels_of(device).get(ZONE_LABEL, "UTC")
    before = sum(latest.values(), NO_COUNTS)
    return Member(wave, zone, former, before=before, leaving=runs if is_leaving else None)


def counts_of(counts: Mapping[str, Any]) -> Counts:
    """A device's counts; invalid values become 0. Bad ones are capped at the total: a device reads its counters one
    after another.
    """

    def count(name: str) -> int:
        value = counts.get(name, 0)
        return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 0

    requests, audits = count("requests"), count("audits")
    late, degraded = min(count("late"), requests), min(count("degraded"), requests)
    return Counts(requests, late, degraded, audits, min(count("disagreements"), audits))


@dataclass(frozen=True)
class _News:
    """The events of a roll-out's devices since its last step."""

    events: Sequence[Event]
    counted: Mapping[str, Any]
    statistics_id: int
    said: Mapping[str, str]

    @classmethod
    def read(cls, connection: Connection, opened: StoredRollout, last_seen: Callable[[Stored], float | None]) -> _News:
        rollout, row = opened.rollout, opened.row
        own = select(ROLLOUT_MEMBERS.c.device_id).where(ROLLOUT_MEMBERS.c.rollout_id == row["id"])
        devices = {one["id"]: one for one in all_rows(connection, select(DEVICES).where(DEVICES.c.id.in_(own)))}
        newer = select(STATISTICS).where(STATISTICS.c.id > row["statistics_id"], STATISTICS.c.device_id.in_(own))
        events: list[Event] = []
        counted: dict[str, Any] = {}
        newest = row["statistics_id"]
        for one in all_rows(connection, newer.order_by(STATISTICS.c.id)):
            device_id, newest = one["device_id"], one["id"]
            before = counted.get(device_id, opened.counted.get(device_id)) or {}
            is_same = (before.get("since_unix_s"), before.get("release")) == (one["since_unix_s"], one["release"])
            delta = since(counts_of(before["counts"]) if is_same else None, counts_of(one["counts"]))
            counted[device_id] = {name: one[name] for name in ("release", "since_unix_s", "counts")}
            refused = _refused(rollout, devices[device_id], rollout.members[device_id])
            events.append(Reported(device_id, one["at_unix_s"], one["release"], delta, refused))
        for device_id, device in devices.items():
            events += _heard(rollout, device, last_seen(device), has_counted=device_id in counted)
        if not rollout.is_over:
            events += _joined(connection, rollout, row)
        said = {name: error for name, one in devices.items() if (error := release_package(one).get("error"))}
        return cls(events, counted, newest, said)


def _heard(rollout: Rollout, device: Stored, seen_unix_s: float | None, *, has_counted: bool) -> Iterable[Event]:
    """The events in a device's row: that it has polled, what it runs, and why it does not run what it should."""
    member = rollout.members[device["id"]]
    if device["revoked_unix_s"] is not None:
        if member.stage is not Stage.LEFT:
            yield Left(device["id"])
        return
    refused = _refused(rollout, device, member)
    is_news = seen_unix_s is not None and seen_unix_s > (member.reported_unix_s or 0.0)
    is_urgent = refused and member.stage is not Stage.RETURNED
    if seen_unix_s is not None and (is_urgent or (is_news and not has_counted)):
        yield Reported(device["id"], seen_unix_s, device["release"], refused=refused)


def _refused(rollout: Rollout, device: Stored, member: Member) -> str:
    """Why the device keeps its release, if it says so and did not say so before the offer."""
    package = release_package(device)
    may_stay = member.stage not in (Stage.WAITING, Stage.RETURNED)  # else it cannot go back
    runs_it = device["release"] == rollout.plan.release and may_stay
    if package.get("status") != "failed" or runs_it:
        return ""
    is_waiting = member.stage in (Stage.WAITING, *ON_NEW, Stage.RETURNED)
    return (package.get("error") or "the device could not install the release") if is_waiting else ""


def _joined(connection: Connection, rollout: Rollout, row: Row) -> Iterable[Event]:
    """Devices that have joined since the start and belong to it."""
    recent = select(DEVICES).where(
        DEVICES.c.enrolled_unix_s >= row["created_unix_s"], DEVICES.c.rollout.is_(None),
        DEVICES.c.revoked_unix_s.is_(None),
    )  # fmt: skip
    holds = membership(row["expression"]).holds
    of_groups = [one for one in all_groups(connection) if one["release"] is not None]
    for device in all_rows(connection, recent):
        if device["id"] not in rollout.members and device["attributes"] and holds(variables_of(device)):
            wave = wave_of_late(rollout.plan.waves, labels_of(device))
            due = {**device, "assigned": wanted(device, of_groups).release}  # it may have taken a newer one by itself
            yield Joined(device["id"], _member(connection, due, wave))


def _save(
    connection: Connection,
    opened: StoredRollout,
    after: Rollout,
    actions: Sequence[Action],
    statistics_id: int,
    counted: Mapping[str, Any],
    now_unix_s: float,
) -> None:
    """Write what has changed and carry out the actions, in the transaction of the step."""
    rollout_id, before = opened.row["id"], opened.rollout
    new = {name: one for name, one in after.members.items() if name not in before.members}
    _add_members(connection, after.plan, new, {})
    for name, member in after.members.items():
        if name in before.members and (member is not before.members[name] or name in counted):
            values: dict[str, Any] = {"state": _MEMBER.dump_python(member, mode="json")}
            if name in counted:
                values["counted"] = counted[name]
            connection.execute(
                update(ROLLOUT_MEMBERS)
                .where(ROLLOUT_MEMBERS.c.rollout_id == rollout_id, ROLLOUT_MEMBERS.c.device_id == name)
                .values(**values)
            )
    for action in actions:
        _do(connection, rollout_id, opened.row["group"], after, action, now_unix_s)
    if (before.phase, after.phase) == (RolloutPhase.FINISHED, RolloutPhase.HALTED):
        _give_back_to_group(connection, opened.row["group"], after.plan)
    over_unix_s = now_unix_s if after.is_over and after.phase is not before.phase else opened.row["over_unix_s"]
    over_s = now_unix_s - (over_unix_s or now_unix_s)
    if is_settled := _is_settled(after, opened.row["group"], over_s):
        _leave_to_group(connection, after)
    values = {
        "state": _header(after), "phase": after.phase.value, "statistics_id": statistics_id, "over_unix_s": over_unix_s,
        "is_followed": not is_settled and _is_followed(after, opened.row["group"], over_s),
    }  # fmt: skip
    if after.is_over and not before.is_over:
        connection.execute(update(DEVICES).where(DEVICES.c.rollout == rollout_id).values(rollout=None))
    if any(opened.row[name] != value for name, value in values.items()):
        connection.execute(update(ROLLOUTS).where(ROLLOUTS.c.id == rollout_id).values(**values))


def _is_settled(after: Rollout, group: str | None, over_s: float) -> bool:
    """Whether every replica must know by now that the group has the release of this finished roll-out."""
    return group is not None and after.phase is RolloutPhase.FINISHED and over_s > 5 * FRESH_S


def _leave_to_group(connection: Connection, after: Rollout) -> None:
    """From now on the group decides what its devices run. Until now each device had its own assignment, so that none
    saw the group's former release in between. One for which no group has a release any more keeps it: without any
    assignment it would take the newest.
    """
    kept = {name for name, one in after.members.items() if one.stage is not Stage.FAILED}
    chosen = select(DEVICES).where(DEVICES.c.assigned == after.plan.release, DEVICES.c.rollout.is_(None))
    groups = [one for one in all_groups(connection) if one["release"] is not None]
    by_group = [
        one["id"]
        for one in all_rows(connection, chosen)
        if one["id"] in kept and wanted({**one, "assigned": None}, groups).release is not None
    ]
    _update(connection, by_group, assigned=None)


def _give_back_to_group(connection: Connection, group: str | None, plan: RolloutPlan) -> None:
    """Give the group the release that it had before, unless it has another one by now, for devices that enrol later.
    Without a former release it has none again, and they take the newest, which may be the one that was taken back.
    """
    mine = (GROUPS.c.name == group, GROUPS.c.release == plan.release)
    connection.execute(update(GROUPS).where(*mine).values(release=plan.group_release))


def _is_followed(after: Rollout, group: str | None, over_s: float) -> bool:
    if not after.is_over or (after.phase is RolloutPhase.FINISHED and group is not None):
        return True
    ways_back = (one for one in after.members.values() if one.stage in (Stage.RETURNED, Stage.FAILED))
    return over_s < FOLLOWED_S and any(not one.is_back for one in ways_back)


def _add_members(
    connection: Connection, plan: RolloutPlan, members: Mapping[str, Member], counted: Mapping[str, Any]
) -> None:
    if not members:
        return
    rows = [
        {"rollout_id": plan.id, "device_id": name, "state": _MEMBER.dump_python(one, mode="json"),
         "counted": counted.get(name)}
        for name, one in members.items()
    ]  # fmt: skip
    connection.execute(insert(ROLLOUT_MEMBERS), rows)
    _update(connection, members, rollout=plan.id)
    # Without an assignment a device would take the newest release: those that wait must keep what they have, or if they
    # have none yet, go on to what their groups want, unless they are on their way back from a halted release.
    of_groups = [one for one in all_groups(connection) if one["release"] is not None]
    kept: dict[AssignedRelease, list[str]] = {}
    devices = (
        device
        for some in in_batches(members)
        for device in all_rows(connection, select(DEVICES).where(DEVICES.c.id.in_(some)))
    )
    for device in devices:
        assigned, former = device["assigned"], members[device["id"]].former
        if assigned is None or device["release"] is None or assigned >= device["release"]:
            found = AssignedRelease() if former else wanted(device, of_groups)
            is_former = found.release is not None and found.release < plan.release
            kept.setdefault(found if is_former else AssignedRelease(former or OWN), []).append(device["id"])
    for found, names in kept.items():
        _assign(connection, names, found.release, found.not_before_unix_s)


def _do(
    connection: Connection, rollout_id: str, group: str | None, after: Rollout, action: Action, now_unix_s: float
) -> None:
    if isinstance(action, OfferRelease):
        _assign(connection, [action.device], action.release)
        note_event(
            connection, action.device, now_unix_s, [("offered", f"release {action.release}, roll-out {rollout_id}")]
        )
    elif isinstance(action, TakeBack):
        _assign(connection, [action.device], action.former or OWN)
        former = f"release {action.former}" if action.former else "what its own agent.yaml names"
        note_event(connection, action.device, now_unix_s, [("taken back", f"to {former}, roll-out {rollout_id}")])
    elif isinstance(action, Halt):
        record_audit(
            connection, replace(GATE, now_unix_s=now_unix_s), "halt rollout", rollout_id, {"reason": action.reason}
        )
    elif isinstance(action, Finish):
        kept = [name for name, one in after.members.items() if one.stage is not Stage.FAILED]
        _assign(connection, kept, action.release)
        if group is not None:
            finished = {"release": action.release, "not_before_unix_s": None}
            connection.execute(update(GROUPS).where(GROUPS.c.name == group).values(**finished))
        record_audit(connection, replace(GATE, now_unix_s=now_unix_s), "finish rollout", rollout_id)


def _assign(
    connection: Connection, devices: Sequence[str], release: int | None, not_before_unix_s: float | None = None
) -> None:
    _update(connection, devices, assigned=release, assigned_not_before_unix_s=not_before_unix_s)


def _update(connection: Connection, devices: Iterable[str], **values: Any) -> None:
    for some in in_batches(devices):
        connection.execute(update(DEVICES).where(DEVICES.c.id.in_(some)).values(**values))
