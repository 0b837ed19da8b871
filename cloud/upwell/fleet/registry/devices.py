"""The devices in the database: looked up, and changed by their reports and by users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from upwell.fleet.errors import Conflict, NotFound
from upwell.fleet.registry.device_events import note_event
from upwell.fleet.registry.device_presence import PresenceUpdate
from upwell.fleet.registry.device_reports import DeviceCounts, Report
from upwell.fleet.storage.database import Row, all_rows, one_row
from upwell.fleet.storage.tables import CERTIFICATES, DEVICES, STATISTICS
from upwell.fleet.users import Actor, record_audit
from upwell.shared.opamp import AGENT_NAME, LABEL

Stored = Row
"""A device's row."""


def labels_of(device: Stored) -> dict[str, str]:
    """The labels of a device: those set in the service win over those that it reports."""
    return {**device["reported_labels"], **device["labels"]}


def variables_of(device: Stored) -> dict[str, Any]:
    """The variables that expressions of groups read."""
    attributes = device["attributes"]
    return {
        "labels": labels_of(device),
        "name": device["name"],
        "version": attributes.get("service.version", ""),
        "os": attributes.get("os.type", ""),
        "arch": attributes.get("host.arch", ""),
    }


def drift_of(models: Mapping[str, Any] | None) -> dict[str, str]:
    """The findings for each model that drifts, by its name."""
    lists = {name: ", ".join(map(str, one["findings"])) for name, one in (models or {}).items()}
    return {name: found for name, found in lists.items() if found}


def by_certificate(connection: Connection, serial: str) -> Stored | None:
    """The device with a valid certificate of that serial number; None if there is none."""
    found = (
        select(DEVICES)
        .join(CERTIFICATES, CERTIFICATES.c.device_id == DEVICES.c.id)
        .where(CERTIFICATES.c.serial == serial, CERTIFICATES.c.revoked_unix_s.is_(None))
        .where(DEVICES.c.revoked_unix_s.is_(None))
    )
    return one_row(connection, found)


def find(connection: Connection, name: str) -> Stored:
    """The device with that id, or with that name if it is unique among those not revoked. Raises `NotFound` and
    `Conflict`.
    """
    found = one_row(connection, select(DEVICES).where(DEVICES.c.id == name))
    if found is not None:
        return found
    chosen = select(DEVICES).where(DEVICES.c.name == name)
    named = all_rows(connection, chosen.where(DEVICES.c.revoked_unix_s.is_(None)).limit(2))
    named = named or all_rows(connection, chosen.limit(2))
    if not named:
        raise NotFound(f"no device {name!r}")
    if len(named) > 1:
        raise Conflict(f"more than one device is called {name!r}; use the id: {named[0]['id']}, …")
    return named[0]


def all_devices(connection: Connection, after: str = "", limit: int | None = None) -> Sequence[Stored]:
    """The devices in the order of their ids, starting after `after`."""
    return all_rows(connection,
        select(DEVICES).where(DEVICES.c.id > after).order_by(DEVICES.c.id).limit(limit)
    )  # fmt: skip


def shared_uids(connection: Connection) -> dict[str, list[str]]:
    """Instance UIDs that several devices, each with its own key, claim: UID -> ids of the devices."""
    twice = (
        select(DEVICES.c.instance_uid)
        .where(DEVICES.c.revoked_unix_s.is_(None))
        .group_by(DEVICES.c.instance_uid)
        .having(func.count() > 1)
    )
    rows = connection.execute(
        select(DEVICES.c.instance_uid, DEVICES.c.id)
        .where(DEVICES.c.instance_uid.in_(twice), DEVICES.c.revoked_unix_s.is_(None))
        .order_by(DEVICES.c.id)
    )
    found: dict[str, list[str]] = {}
    for uid, device_id in rows:
        found.setdefault(uid, []).append(device_id)
    return found


def changes_of(device: Stored, report: Report, now_unix_s: float) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The columns that a report changes, and the events to record."""
    said: dict[str, Any] = {"instance_uid": report.instance_uid}
    if report.capabilities:
        said["capabilities"] = report.capabilities
    if report.attributes is not None:
        said |= _described(report.attributes, device)
    for name in ("health", "configuration", "custom_capabilities"):
        if (value := getattr(report, name)) is not None:
            said[name] = value
    if report.packages is not None:
        said |= {"packages": report.packages, "release": report.release}
    if (status := report.configuration_status) is not None:
        said |= {"config_hash": status.config_hash, "config_status": status.status, "config_error": status.error}
    if report.drift is not None and drift_of(report.drift) != drift_of(device["drift"]):
        said["drift"] = dict(report.drift)
    changed = {name: value for name, value in said.items() if device[name] != value}
    happened = _happened(device, changed)
    changed |= _twin(device, report.started_unix_ns, now_unix_s)
    if "twin_seen_unix_s" in changed and device["twin_seen_unix_s"] is None:
        happened.append(("double", "two processes use this device's key: was its disk copied?"))
    if report.is_leaving:
        happened.append(("stopped", "the agent has stopped"))
    return changed, happened


def apply(connection: Connection, device: Stored, report: Report, now_unix_s: float) -> None:
    """Write what a report changes, if anything."""
    changed, happened = changes_of(device, report, now_unix_s)
    if changed:
        connection.execute(
            update(DEVICES).where(DEVICES.c.id == device["id"]).values(**changed, last_seen_unix_s=now_unix_s)
        )
    note_event(connection, device["id"], now_unix_s, happened)


def _described(attributes: Mapping[str, str], device: Stored) -> dict[str, Any]:
    labels = {key.removeprefix(LABEL): value for key, value in attributes.items() if key.startswith(LABEL)}
    others = {key: value for key, value in attributes.items() if not key.startswith(LABEL)}
    name = others.get(AGENT_NAME) or others.get("host.name") or device["name"]
    return {"reported_labels": labels, "attributes": others, "name": name[:200]}


def _happened(device: Stored, changed: Mapping[str, Any]) -> list[tuple[str, str]]:
    happened: list[tuple[str, str]] = []
    if "instance_uid" in changed and device["instance_uid"]:
        happened.append(("instance", f"the instance UID is now {changed['instance_uid']}"))
    if "health" in changed and (device["health"] or {}).get("healthy") != changed["health"].get("healthy"):
        is_well, error = changed["health"].get("healthy"), changed["health"].get("last_error") or "no reason given"
        happened.append(("health", "healthy" if is_well else f"not healthy: {error}"))
    if "release" in changed:
        release = changed["release"]
        happened.append(("release", "runs no release" if release is None else f"runs release {release}"))
    if changed.get("config_status") == "failed":
        happened.append(("refused", f"refused its configuration: {changed.get('config_error') or 'no reason given'}"))
    if "drift" in changed:
        found = [f"{name}: {text}" for name, text in drift_of(changed["drift"]).items()]
        happened.append(("drift", "; ".join(found) or "no model drifts any more"))
    version = changed.get("attributes", {}).get("service.version", "")
    if version and version != device["attributes"].get("service.version"):
        happened.append(("version", f"runs version {version}"))
    return happened


def _twin(device: Stored, started_unix_ns: int, now_unix_s: float) -> dict[str, Any]:
    """Record that a process thought to have ended speaks again: two processes have the key."""
    if not started_unix_ns or started_unix_ns == device["started_unix_ns"]:
        return {}
    changed = {"started_unix_ns": started_unix_ns, "former_started_unix_ns": device["started_unix_ns"]}
    if started_unix_ns == device["former_started_unix_ns"]:
        changed["twin_seen_unix_s"] = now_unix_s
    return changed


def set_labels(connection: Connection, actor: Actor, device: Stored, labels: Mapping[str, str | None]) -> None:
    """Set labels of a device; None removes one."""
    merged = {**device["labels"], **labels}
    kept = {name: value for name, value in merged.items() if value is not None}
    connection.execute(update(DEVICES).where(DEVICES.c.id == device["id"]).values(labels=kept))
    record_audit(connection, actor, "label device", device["id"], labels)


def revoke(connection: Connection, actor: Actor, device: Stored) -> None:
    """Stop admitting a device. To come back it needs a new token and a new key."""
    now = actor.now_unix_s
    connection.execute(update(DEVICES).where(DEVICES.c.id == device["id"]).values(revoked_unix_s=now))
    connection.execute(
        update(CERTIFICATES)
        .where(CERTIFICATES.c.device_id == device["id"], CERTIFICATES.c.revoked_unix_s.is_(None))
        .values(revoked_unix_s=now)
    )
    note_event(connection, device["id"], now, [("revoked", f"revoked by {actor.name}")])
    record_audit(connection, actor, "revoke device", device["id"])


def assign(
    connection: Connection, actor: Actor, device: Stored, release: int | None, not_before_unix_s: float | None
) -> None:
    """Set which release a device is to run, and from when; None: as its groups say.

    Raises `Conflict` for a device in an active roll-out, which decides that itself.
    """
    values = {"assigned": release, "assigned_not_before_unix_s": not_before_unix_s}
    # Asked now, since a roll-out may have begun after the device was read.
    free = update(DEVICES).where(DEVICES.c.id == device["id"], DEVICES.c.rollout.is_(None))
    if not connection.execute(free.values(**values)).rowcount:
        rollout = connection.scalar(select(DEVICES.c.rollout).where(DEVICES.c.id == device["id"]))
        raise Conflict(f"device {device['name']!r} is in roll-out {rollout}, which has not ended")
    record_audit(
        connection, actor, "assign device", device["id"], {"release": release, "not_before_unix_s": not_before_unix_s}
    )


def write_batch(connection: Connection, batch: PresenceUpdate) -> None:
    """Write when devices were last seen, the drift of their models, and their counts."""
    if batch.seen:
        statement = DEVICES.update().where(DEVICES.c.id == bindparam("the_id")).values(last_seen_unix_s=bindparam("at"))
        connection.execute(statement, [{"the_id": one, "at": at} for one, at in sorted(batch.seen.items())])
    if batch.drift:
        statement = DEVICES.update().where(DEVICES.c.id == bindparam("the_id")).values(drift=bindparam("models"))
        connection.execute(
            statement, [{"the_id": one, "models": dict(models)} for one, models in sorted(batch.drift.items())]
        )
    if batch.counted:
        statement = DEVICES.update().where(DEVICES.c.id == bindparam("the_id")).values(statistics=bindparam("counted"))
        counted = [(device_id, at, _counted(one)) for device_id, (at, one) in sorted(batch.counted.items())]
        connection.execute(statement, [{"the_id": device_id, "counted": one} for device_id, _, one in counted])
        rows = [
            {
                "device_id": device_id,
                "at_unix_s": at,
                **{key: one[key] for key in ("release", "since_unix_s", "counts")},
            }
            for device_id, at, one in counted
        ]
        connection.execute(insert(STATISTICS), rows)


def _counted(one: DeviceCounts) -> dict[str, Any]:
    return {
        "release": one.release,
        "since_unix_s": one.since_unix_s,
        "counts": dict(one.counts),
        "demand": dict(one.demand),
    }


def history(connection: Connection, device_id: str, limit: int) -> Sequence[Row]:
    """The counts of a device over time, the newest first."""
    chosen = select(STATISTICS).where(STATISTICS.c.device_id == device_id)
    return all_rows(connection, chosen.order_by(STATISTICS.c.at_unix_s.desc()).limit(limit))


def forget_history(connection: Connection, before_unix_s: float) -> None:
    """Delete counts older than that."""
    connection.execute(delete(STATISTICS).where(STATISTICS.c.at_unix_s < before_unix_s))
