"""The database's tables by version, and the migrations between versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Migration:
    """SQL statements from one version to the next, and back without losing a case."""

    up: tuple[str, ...]
    down: tuple[str, ...]


STEPS: tuple[Migration, ...] = (
    Migration(
        up=(
            "CREATE TABLE downgrades (version INTEGER PRIMARY KEY, statements TEXT NOT NULL)",
            """CREATE TABLE items (
                id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, model TEXT NOT NULL,
                cloud_model TEXT NOT NULL, request_id TEXT NOT NULL, tags TEXT NOT NULL, reason TEXT NOT NULL,
                created_wall_s REAL NOT NULL, kept_s REAL NOT NULL, next_s REAL NOT NULL, attempts INTEGER NOT NULL,
                edge_answer_digest TEXT NOT NULL, size_bytes INTEGER NOT NULL, error TEXT NOT NULL DEFAULT ''
            )""",
            # A separate table, so that changing an item does not rewrite its tensors.
            """CREATE TABLE bodies (
                id TEXT PRIMARY KEY REFERENCES items ON DELETE CASCADE,
                request BLOB NOT NULL, edge_answer BLOB NOT NULL
            )""",
            """CREATE TABLE results (
                sequence INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE REFERENCES items ON DELETE CASCADE,
                answered_wall_s REAL NOT NULL, answer BLOB NOT NULL
            )""",
            "CREATE TABLE sinks (name TEXT PRIMARY KEY, delivered INTEGER NOT NULL)",
            "CREATE INDEX items_due ON items (state, kind, next_s)",
            "CREATE INDEX items_age ON items (kind, kept_s)",
            # A new database continues above the numbers of the previous one, which consumers have seen.
            """INSERT INTO sqlite_sequence (name, seq)
               VALUES ('results', CAST((julianday('now') - 2440587.5) * 86400e3 AS INTEGER))""",
        ),
        down=(
            "DROP TABLE sinks",
            "DROP TABLE results",
            "DROP TABLE bodies",
            "DROP TABLE items",
            "DROP TABLE downgrades",
        ),
    ),
    Migration(
        # The caller that owns the case and its results; unknown for cases from before this version.
        up=("ALTER TABLE items ADD COLUMN owner TEXT NOT NULL DEFAULT ''",),
        down=("ALTER TABLE items DROP COLUMN owner",),
    ),
)

VERSION = len(STEPS)

_DENIED = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA})
_BETWEEN = ";\n--\n"


def version_of(connection: sqlite3.Connection) -> int:
    """The database's version; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, steps: Sequence[Migration] = STEPS, target: int | None = None) -> None:
    """Bring the database to version `target` (the newest of `steps` if None), in one transaction.

    Each upgrade stores its downgrade in the database, so that older software can go back. Raises `sqlite3.Error`,
    leaving the database unchanged.
    """
    target = len(steps) if target is None else target
    connection.execute("BEGIN IMMEDIATE")
    try:
        while (version := version_of(connection)) < target:
            _go_up(connection, steps[version], version + 1)
        while (version := version_of(connection)) > target:
            _go_down(connection, version)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _go_up(connection: sqlite3.Connection, step: Migration, version: int) -> None:
    for statement in step.up:
        connection.execute(statement)
    connection.execute("INSERT INTO downgrades VALUES (?, ?)", (version, _BETWEEN.join(step.down)))
    connection.execute(f"PRAGMA user_version = {version:d}")


def _go_down(connection: sqlite3.Connection, version: int) -> None:
    row = connection.execute("SELECT statements FROM downgrades WHERE version = ?", (version,)).fetchone()
    if row is None:
        raise sqlite3.DatabaseError(f"no way down from version {version}")
    # Anyone who can write the file can write these statements: they may affect only the file.
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in _DENIED else sqlite3.SQLITE_OK)
    try:
        for statement in str(row[0]).split(_BETWEEN):
            connection.execute(statement)
        if version > 1:
            connection.execute("DELETE FROM downgrades WHERE version = ?", (version,))
    finally:
        connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)  # Python 3.10 takes no None
    connection.execute(f"PRAGMA user_version = {version - 1:d}")
