"""Users, their roles and their tokens, and the audit log of what they changed.

A token is shown once and stored only as a hash; how often wrong ones may be tried is limited. The audit log is
written in the transaction of the change, so that neither exists without the other.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from upwell.fleet.errors import Conflict, NotFound
from upwell.fleet.storage.database import Row, all_rows
from upwell.fleet.storage.tables import AUDIT, USERS
from upwell.shared.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class Actor:
    """Who acts, and when (Unix seconds)."""

    name: str
    now_unix_s: float


def record_audit(
    connection: Connection, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """Record that `actor` did `action` to `subject`."""
    connection.execute(
        insert(AUDIT).values(
            at_unix_s=actor.now_unix_s, who=actor.name, action=action, subject=subject, details=dict(details or {})
        )
    )


def audit_entries(connection: Connection, after: int, limit: int) -> list[Row]:
    """The entries after that number, the oldest first."""
    return all_rows(connection, select(AUDIT).where(AUDIT.c.id > after).order_by(AUDIT.c.id).limit(limit))


MOST_FAILURES = 20
WINDOW_S = 60.0
_MOST_ADDRESSES = 10_000


def new_secret(kind: str) -> str:
    """A secret of 256 random bits with the prefix `kind`, by which scanners of source code find leaked ones."""
    return f"{kind}_{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> str:
    """SHA-256 of a secret. No slow hash: nobody guesses 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def new_id() -> str:
    """A random id of 64 bits, in hexadecimal."""
    return secrets.token_hex(8)


class Attempts:
    """Failures by address in the last minute. Thread-safe; time is an argument (monotonic)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """How long the address must wait before it may try again; 0 if it need not."""
        with self._lock:
            times = [one for one in self._failures.get(address, ()) if now_s - one < WINDOW_S]
        return WINDOW_S - (now_s - times[-MOST_FAILURES]) if len(times) >= MOST_FAILURES else 0.0

    def failed(self, address: str, now_s: float) -> None:
        """Count a failure."""
        with self._lock:
            times = self._failures.setdefault(address, [])
            times[:] = [one for one in times[1 - MOST_FAILURES :] if now_s - one < WINDOW_S] + [now_s]
            self._failures.move_to_end(address)
            if len(self._failures) > _MOST_ADDRESSES:
                self._failures.popitem(last=False)


Role: TypeAlias = Literal["viewer", "operator"]
"""The roles: a viewer can read; an operator can also make changes."""


@dataclass(frozen=True)
class User:
    """An authenticated user."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether the user may do what requires that role."""
        return role == "viewer" or self.role == "operator"


def check_name(name: str) -> None:
    """Raise `InvalidRequest` for an invalid name of a group, a user or a budget."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest("expected a name of at most 100 letters, digits, dots, dashes, underscores and @")


def add_user(connection: Connection, actor: Actor, name: str, role: Role) -> str:
    """Add a user; return their token, which is shown only once. Raises `InvalidRequest` for an invalid name, and
    `Conflict` if it is taken.
    """
    check_name(name)
    token = new_secret("upwu")
    try:
        connection.execute(
            insert(USERS).values(name=name, role=role, token_sha256=digest_of(token), created_unix_s=actor.now_unix_s)
        )
    except IntegrityError:
        raise Conflict(f"there is a user {name!r} already; remove it first for a new token") from None
    record_audit(connection, actor, "add user", name, {"role": role})
    return token


def remove_user(connection: Connection, actor: Actor, name: str) -> None:
    """Remove a user. Raises `NotFound`, and `Conflict` for the last operator."""
    role = connection.scalar(select(USERS.c.role).where(USERS.c.name == name))
    if role is None:
        raise NotFound(f"no user {name!r}")
    operators = select(USERS.c.name).where(USERS.c.role == "operator").order_by(USERS.c.name)
    if connection.scalars(operators.with_for_update()).all() == [name]:  # locked: two operators may remove each other
        raise Conflict(f"{name!r} is the last operator; add another one first")
    connection.execute(delete(USERS).where(USERS.c.name == name))
    record_audit(connection, actor, "remove user", name)


def user_of(connection: Connection, token: str) -> User | None:
    """The user with that token; None if there is none."""
    # The time of the search reveals only something about the hash, which nobody can choose or invert.
    row = connection.execute(select(USERS.c.name, USERS.c.role).where(USERS.c.token_sha256 == digest_of(token))).first()
    return None if row is None else User(row.name, row.role)


def all_users(connection: Connection) -> list[Row]:
    """Name, role and time of each user, by name."""
    return all_rows(connection, select(USERS.c.name, USERS.c.role, USERS.c.created_unix_s).order_by(USERS.c.name))
