"""The audit log: written in the transaction of the change, so that neither exists without the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from upwell.fleet.storage.database import Row, all_rows
from upwell.fleet.storage.tables import AUDIT


@dataclass(frozen=True)
class Actor:
    """Who acts, and when (Unix seconds)."""

    name: str
    now_unix_s: float


def record(
    connection: Connection, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """Record that `actor` did `action` to `subject`."""
    connection.execute(
        insert(AUDIT).values(
            at_unix_s=actor.now_unix_s, who=actor.name, action=action, subject=subject, details=dict(details or {})
        )
    )


def entries(connection: Connection, after: int, limit: int) -> list[Row]:
    """The entries after that number, the oldest first."""
    return all_rows(connection, select(AUDIT).where(AUDIT.c.id > after).order_by(AUDIT.c.id).limit(limit))
