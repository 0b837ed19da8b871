"""The users: each has a token and a role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from upwell.fleet.errors import Conflict, NotFound
from upwell.fleet.storage.database import Row, all_rows
from upwell.fleet.storage.tables import USERS
from upwell.fleet.users.audit_log import Actor, record
from upwell.fleet.users.tokens import digest_of, new_secret

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


def add_user(connection: Connection, actor: Actor, name: str, role: Role) -> str:
    """Add a user; return their token, which is shown only once. Raises `Conflict` if the name is taken."""
    token = new_secret("upwu")
    try:
        connection.execute(
            insert(USERS).values(name=name, role=role, token_sha256=digest_of(token), created_unix_s=actor.now_unix_s)
        )
    except IntegrityError:
        raise Conflict(f"there is a user {name!r} already; remove it first for a new token") from None
    record(connection, actor, "add user", name, {"role": role})
    return token


def remove_user(connection: Connection, actor: Actor, name: str) -> None:
    """Remove a user. Raises `NotFound`, and `Conflict` for the last operator."""
    role = connection.scalar(select(USERS.c.role).where(USERS.c.name == name))
    if role is None:
        raise NotFound(f"no user {name!r}")
    operators = connection.scalar(select(func.count()).select_from(USERS).where(USERS.c.role == "operator"))
    if role == "operator" and operators == 1:
        raise Conflict(f"{name!r} is the last operator; add another one first")
    connection.execute(delete(USERS).where(USERS.c.name == name))
    record(connection, actor, "remove user", name)


def user_of(connection: Connection, token: str) -> User | None:
    """The user with that token; None if there is none."""
    # The time of the search reveals only something about the hash, which nobody can choose or invert.
    row = connection.execute(select(USERS.c.name, USERS.c.role).where(USERS.c.token_sha256 == digest_of(token))).first()
    return None if row is None else User(row.name, row.role)


def all_users(connection: Connection) -> list[Row]:
    """Name, role and time of each user, by name."""
    return all_rows(connection, select(USERS.c.name, USERS.c.role, USERS.c.created_unix_s).order_by(USERS.c.name))
