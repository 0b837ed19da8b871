"""Groups of devices as CEL expressions, and the release of each device.

An expression is for instance `labels.site == "hamburg" && version != "0.1.0"`. A device is to run the release of its
own assignment, else that of its groups.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from cel_expr_python import cel
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from upwell.fleet.errors import Conflict, NotFound
from upwell.fleet.registry.devices import Stored, all_devices, variables_of
from upwell.fleet.storage.database import Database, Row, all_rows, the_row
from upwell.fleet.storage.tables import GROUPS
from upwell.fleet.users import Actor, record_audit
from upwell.shared.config.cel_expressions import FUNCTIONS, compile_expression, no_verdict
from upwell.shared.errors import InvalidRequest

_TEXT = cel.Type.STRING
_VARIABLES = {"labels": cel.Type.Map(_TEXT, _TEXT), "name": _TEXT, "version": _TEXT, "os": _TEXT, "arch": _TEXT}
_ENVIRONMENT = cel.NewEnv(variables=_VARIABLES)
_NOTHING = MappingProxyType({"labels": {}, "name": "", "version": "", "os": "", "arch": ""})


class Membership:
    """One compiled expression. If a label is missing or evaluation fails, the device is not in the group.

    Raises `InvalidRequest`, which says what is wrong with the expression and where.
    """

    def __init__(self, source: str) -> None:
        try:
            self._program = compile_expression(_ENVIRONMENT, source, _VARIABLES, FUNCTIONS | {"has"})
        except ValueError as error:
            raise InvalidRequest(f"the expression: {error}") from None
        result = self._program.eval(data=dict(_NOTHING))
        # It may need a label that is missing here, but the types are always these.
        if result.type() not in (cel.Type.BOOL, cel.Type.ERROR):
            raise InvalidRequest(f"the expression: {no_verdict(result.value())}")

    def holds(self, device: Mapping[str, object]) -> bool:
        """Whether a device with these variables is in the group."""
        result = self._program.eval(data=dict(device))
        return result.type() == cel.Type.BOOL and bool(result.value())


@lru_cache(maxsize=256)
def membership(source: str) -> Membership:
    """The compiled expression. Raises `InvalidRequest`."""
    return Membership(source)


FRESH_S = 2.0
"""Maximum age of the groups as polls see them, and so the delay until other replicas follow a change."""

_MOST_REMEMBERED = 50_000


@dataclass(frozen=True)
class AssignedRelease:
    """The release that a device is to run (None: the newest of its own source), from when, and who decided it.

    If groups contradict each other, `conflict` says so, and no release is wanted.
    """

    release: int | None = None
    not_before_unix_s: float | None = None
    source: str = ""
    conflict: str = ""


def all_groups(connection: Connection) -> Sequence[Row]:
    """The groups by name."""
    return all_rows(connection, select(GROUPS).order_by(GROUPS.c.name))


def find_group(connection: Connection, name: str) -> Row:
    """One group. Raises `NotFound`."""
    return the_row(connection, select(GROUPS).where(GROUPS.c.name == name), f"group {name!r}")


def put_group(connection: Connection, actor: Actor, name: str, expression: str) -> None:
    """Create a group, or change its expression. Raises `InvalidRequest` for an invalid one, and `Conflict`."""
    membership(expression)
    changed = connection.execute(update(GROUPS).where(GROUPS.c.name == name).values(expression=expression))
    if not changed.rowcount:
        values = {"name": name, "expression": expression, "created_unix_s": actor.now_unix_s}
        try:
            connection.execute(insert(GROUPS).values(**values))
        except IntegrityError:
            raise Conflict(f"another operator has just made group {name!r}") from None
    record_audit(connection, actor, "put group", name, {"expression": expression})


def drop_group(connection: Connection, actor: Actor, name: str) -> None:
    """Delete a group; its devices stay. Raises `NotFound`."""
    if not connection.execute(delete(GROUPS).where(GROUPS.c.name == name)).rowcount:
        raise NotFound(f"no group {name!r}")
    record_audit(connection, actor, "drop group", name)


def assign_group(
    connection: Connection, actor: Actor, name: str, release: int | None, not_before_unix_s: float | None
) -> None:
    """Set which release the devices of a group are to run, including later ones. Raises `NotFound`."""
    values = {"release": release, "not_before_unix_s": not_before_unix_s}
    if not connection.execute(update(GROUPS).where(GROUPS.c.name == name).values(**values)).rowcount:
        raise NotFound(f"no group {name!r}")
    record_audit(connection, actor, "assign group", name, values)


def members(connection: Connection, expression: str) -> list[Stored]:
    """The devices in a group, without revoked ones."""
    group = membership(expression)
    return [
        device
        for device in all_devices(connection)
        if device["revoked_unix_s"] is None and group.holds(variables_of(device))
    ]


def wanted(device: Stored, groups: Sequence[Row]) -> AssignedRelease:
    """The release that a device is to run: by its own assignment, or else by that of its groups."""
    if device["assigned"] is not None:
        return AssignedRelease(device["assigned"], device["assigned_not_before_unix_s"], "device")
    variables = variables_of(device)
    found = [
        group for group in groups if group["release"] is not None and membership(group["expression"]).holds(variables)
    ]
    if not found:
        return AssignedRelease()
    if len({group["release"] for group in found}) > 1:
        names = " and ".join(f"{group['name']} ({group['release']})" for group in found)
        return AssignedRelease(conflict=f"its groups have different releases: {names}")
    return AssignedRelease(found[0]["release"], found[0]["not_before_unix_s"], f"group {found[0]['name']}")


class Assignments:
    """Answers polls: `wanted`, with the groups cached for a short time. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._groups: Sequence[Row] = ()
        self._read_at_s = float("-inf")
        self._remembered: dict[str, AssignedRelease] = {}

    def wanted(self, device: Stored, now_s: float) -> AssignedRelease:
        """The release that a device is to run; `now_s` is monotonic."""
        if device["assigned"] is not None:
            return wanted(device, ())
        groups = self._current(now_s)
        if not groups:
            return AssignedRelease()
        key = json.dumps(variables_of(device), sort_keys=True)
        found = self._remembered.get(key)
        if found is None:
            found = wanted(device, groups)
            if len(self._remembered) < _MOST_REMEMBERED:
                self._remembered[key] = found
        return found

    def _current(self, now_s: float) -> Sequence[Row]:
        with self._lock:
            if now_s - self._read_at_s < FRESH_S:
                return self._groups
            with self._database.reading() as connection:
                groups = [group for group in all_groups(connection) if group["release"] is not None]
            if groups != self._groups:
                self._groups, self._remembered = groups, {}
            self._read_at_s = now_s
            return self._groups
