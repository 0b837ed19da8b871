"""The events of devices, kept for a month."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from upwell.fleet.storage.database import Row, all_rows
from upwell.fleet.storage.tables import DEVICES, EVENTS

EVENTS_KEPT_S = 30 * 86400.0


def note_event(connection: Connection, device_id: str, now_unix_s: float, happened: Sequence[tuple[str, str]]) -> None:
    """Record events of a device: kinds and texts."""
    if happened:
        rows = [
            {"at_unix_s": now_unix_s, "device_id": device_id, "kind": kind, "text": text[:500]}
            for kind, text in happened
        ]
        connection.execute(insert(EVENTS), rows)


def events_after(connection: Connection, after: int, limit: int, device_id: str | None = None) -> list[Row]:
    """The events after that number, the oldest first, each with its device's `name`; for -1 the last ones."""
    chosen = select(EVENTS, DEVICES.c.name).join(DEVICES, DEVICES.c.id == EVENTS.c.device_id)
    if device_id is not None:
        chosen = chosen.where(EVENTS.c.device_id == device_id)
    if after < 0:
        return all_rows(connection, chosen.order_by(EVENTS.c.id.desc()).limit(limit))[::-1]
    return all_rows(connection, chosen.where(EVENTS.c.id > after).order_by(EVENTS.c.id).limit(limit))


def forget_events(connection: Connection, now_unix_s: float) -> None:
    """Delete events older than a month."""
    connection.execute(delete(EVENTS).where(EVENTS.c.at_unix_s < now_unix_s - EVENTS_KEPT_S))
