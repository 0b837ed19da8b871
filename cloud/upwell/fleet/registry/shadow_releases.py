"""Shadow releases, which run beside those that devices serve, and the request-log lines that they produce."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, delete, func, insert, select, update

from upwell.fleet.errors import Conflict, NotFound
from upwell.fleet.registry.device_events import note_event
from upwell.fleet.registry.device_reports import Shadowed
from upwell.fleet.registry.devices import Stored
from upwell.fleet.registry.groups import members
from upwell.fleet.storage.database import Row, all_rows
from upwell.fleet.storage.tables import DEVICES, SHADOW_LINES
from upwell.fleet.users import Actor, record_audit
from upwell.shared.errors import InvalidRequest

MOST_LINES = 20_000
"""Maximum number of lines stored per release."""
KEPT_S = 30 * 86400.0


def begin(
    connection: Connection, actor: Actor, release: int, expression: str, choose: Callable[[Sequence[Stored]], list[str]]
) -> list[str]:
    """Have devices that match the expression, as selected by `choose`, run a shadow release; return their ids.

    Raises `InvalidRequest` if there is none, `Conflict` if one of them runs another shadow release.
    """
    chosen = choose(members(connection, expression))
    if not chosen:
        raise InvalidRequest("no device matches")
    busy = connection.execute(
        select(DEVICES.c.name, DEVICES.c.shadow)
        .where(DEVICES.c.id.in_(chosen), DEVICES.c.shadow.is_not(None), DEVICES.c.shadow != release)
    ).first()  # fmt: skip
    if busy is not None:
        raise Conflict(f"device {busy.name} already runs shadow release {busy.shadow}; end that first")
    connection.execute(update(DEVICES).where(DEVICES.c.id.in_(chosen)).values(shadow=release))
    record_audit(connection, actor, "begin shadow", str(release), {"expression": expression, "devices": len(chosen)})
    return chosen


def end(connection: Connection, actor: Actor, release: int) -> None:
    """Stop a shadow release on all devices; its lines stay. Raises `NotFound`."""
    if not connection.execute(update(DEVICES).where(DEVICES.c.shadow == release).values(shadow=None)).rowcount:
        raise NotFound(f"no device runs shadow release {release}")
    record_audit(connection, actor, "end shadow", str(release))


def shadows(connection: Connection) -> list[tuple[int, int, int]]:
    """Shadow releases that run or have lines: sequence, devices, lines."""
    devices = select(DEVICES.c.shadow, func.count()).where(DEVICES.c.shadow.is_not(None)).group_by(DEVICES.c.shadow)
    lines = select(SHADOW_LINES.c.release, func.count()).group_by(SHADOW_LINES.c.release)
    running: dict[int, int] = {one[0]: one[1] for one in connection.execute(devices)}
    kept: dict[int, int] = {one[0]: one[1] for one in connection.execute(lines)}
    return [(one, running.get(one, 0), kept.get(one, 0)) for one in sorted(running.keys() | kept.keys())]


def lines_of(connection: Connection, release: int, after: int, limit: int) -> list[Row]:
    """Lines of a release, starting after `after`."""
    found = select(SHADOW_LINES).where(SHADOW_LINES.c.release == release, SHADOW_LINES.c.id > after)
    return all_rows(connection, found.order_by(SHADOW_LINES.c.id).limit(limit))


def keep_lines(connection: Connection, device: Stored, shadowed: Shadowed, now_unix_s: float) -> None:
    """Store a device's report on the shadow release that it was asked to run, and on no other."""
    if shadowed.release != device["shadow"]:
        return
    if shadowed.problem:
        note_event(
            connection, device["id"], now_unix_s, [("shadow", f"release {shadowed.release}: {shadowed.problem}")]
        )
    kept = connection.scalar(select(func.count()).where(SHADOW_LINES.c.release == shadowed.release)) or 0
    about = {"release": shadowed.release, "device_id": device["id"], "at_unix_s": now_unix_s}
    rows = [{**about, "line": line} for line in shadowed.lines[: max(0, MOST_LINES - kept)]]
    if rows:
        connection.execute(insert(SHADOW_LINES), rows)


def forget_lines(connection: Connection, now_unix_s: float) -> None:
    """Delete lines older than thirty days."""
    connection.execute(delete(SHADOW_LINES).where(SHADOW_LINES.c.at_unix_s < now_unix_s - KEPT_S))
