"""The devices in the database: looked up, and changed by users; their counts over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from upwell.fleet.errors import Conflict, NotFound
from upwell.fleet.registry.device_events import note_event
from upwell.fleet.storage.database import Row, all_rows, one_row
from upwell.fleet.storage.tables import CERTIFICATES, DEVICES, STATISTICS
from upwell.fleet.users import Actor, record_audit
from upwell.shared.opamp import RELEASE_PACKAGE

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


def release_package(device: Stored) -> Mapping[str, str]:
    """What the device says of its release: `status`, `error` and others; empty if it says nothing."""
    found: Mapping[str, str] = (device["packages"] or {}).get(RELEASE_PACKAGE, {})
    return found


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


def history(connection: Connection, device_id: str, limit: int) -> Sequence[Row]:
    """The counts of a device over time, the newest first."""
    chosen = select(STATISTICS).where(STATISTICS.c.device_id == device_id)
    return all_rows(connection, chosen.order_by(STATISTICS.c.at_unix_s.desc()).limit(limit))


def forget_history(connection: Connection, before_unix_s: float) -> None:
    """Delete counts older than that."""
    connection.execute(delete(STATISTICS).where(STATISTICS.c.at_unix_s < before_unix_s))
