"""Opening a database file: private, durable, migrated and checked; a damaged one is set aside."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Migration:
    """SQL statements from one version to the next, and back without losing a case."""

    up: tuple[str, ...]
    down: tuple[str, ...]


_DENIED = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA})
_BETWEEN = ";\n--\n"


def version_of(connection: sqlite3.Connection) -> int:
    """The database's version; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, steps: Sequence[Migration], target: int | None = None) -> None:
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


REOPEN_S = 5.0
"""Pause before a database that could not be opened is tried again."""

WELL_AFTER_S = 60.0
"""How long writes must succeed before a disk counts as healthy again: a nearly full one accepts small writes but not
large ones."""

DAMAGED_SUFFIX = ".damaged"
"""Ends the name of a damaged database that was set aside."""

_BUSY_TIMEOUT_S = 1.0
_WAL_LIMIT_BYTES = 16 << 20
_SIDE_FILES = ("-wal", "-shm")
_log = logging.getLogger(__name__)


def open_database(path: Path, steps: Sequence[Migration]) -> sqlite3.Connection:
    """Open the database at `path`, created if missing (folder 0700, file 0600), migrated to the newest version of
    `steps`.

    Every commit is on disk when it returns (`synchronous=FULL`). Raises `OSError` and `sqlite3.OperationalError` if the
    path cannot be used, and plain `sqlite3.DatabaseError` if the file is damaged or not a database.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Created here, since SQLite would make it readable by all; its side files inherit the mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
    path.chmod(0o600)
    connection = connect(path)
    try:
        if version_of(connection) == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
        check_integrity(connection)
        migrate(connection, steps)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path) -> sqlite3.Connection:
    """Connect to the database at `path`, which must exist, in any version. Raises `sqlite3.Error`."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,  # used by one thread at a time, but not always the same one
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA foreign_keys = ON")
        # Deleted data is private too, so it is overwritten.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def opened(path: Path, version: int) -> Iterator[sqlite3.Connection]:
    """Open a second connection to a database of this version, which a running agent may use; closed after the block.

    Raises `sqlite3.DatabaseError` for a database of another version.
    """
    connection = connect(path)
    try:
        found = version_of(connection)
        if found != version:
            raise sqlite3.DatabaseError(f"it has version {found}; this software reads version {version}")
        yield connection
    finally:
        connection.close()


_LOCKED_S = 0.05
"""How long deleting holds the lock at a time, so that an agent, which waits for `_BUSY_TIMEOUT_S`, can write."""


def delete_rows(connection: sqlite3.Connection, table: str, ids: Sequence[str | int], key: str = "id") -> int:
    """Delete the rows with these keys beside a running agent; return their number. Raises `sqlite3.Error`.

    The connection overwrites them (`secure_delete`). The write-ahead log keeps older copies of the pages until its
    next checkpoint.
    """
    gone, left = 0, deque(ids)
    while left:
        connection.execute("BEGIN IMMEDIATE")
        began_s = time.monotonic()  # a wait for the agent is no time held
        while left and time.monotonic() - began_s < _LOCKED_S:
            gone += connection.execute(f"DELETE FROM {table} WHERE {key} = ?", (left.popleft(),)).rowcount  # noqa: S608 (our own names)
        connection.execute("COMMIT")
        _let_others_write(began_s)
    while _free_pages(connection):
        connection.execute("BEGIN IMMEDIATE")
        began_s, before = time.monotonic(), _free_pages(connection)
        while _free_pages(connection) and time.monotonic() - began_s < _LOCKED_S:
            connection.execute("PRAGMA incremental_vacuum(1)").fetchall()  # it frees one, whatever is asked for here
        frees = _free_pages(connection) < before
        connection.execute("COMMIT")
        if not frees:
            break
        _let_others_write(began_s)
    return gone


def _free_pages(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def _let_others_write(began_s: float) -> None:
    """Rest as long as the lock was held: SQLite wakes nobody who waits for it, who looks again within 0.1 s."""
    time.sleep(min(0.1, time.monotonic() - began_s))


def check_integrity(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` for a damaged database."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found is None or found[0] != "ok":
        raise sqlite3.DatabaseError(f"damaged: {found[0] if found else 'no answer'}")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the error means a damaged file rather than a disk that is full, locked or read-only."""
    # SQLite's error code needs Python 3.11; in 3.10 only these two cases have the plain class.
    return type(error) is sqlite3.DatabaseError


def set_aside(name: str, path: Path, error: Exception) -> None:
    """Move a damaged database and its side files away, replacing an earlier one, and log it. Raises `OSError`."""
    target = path.with_name(path.name + DAMAGED_SUFFIX)
    for suffix in _SIDE_FILES:
        side = path.with_name(path.name + suffix)
        if side.exists():
            os.replace(side, target.with_name(target.name + suffix))
        else:
            target.with_name(target.name + suffix).unlink(missing_ok=True)
    if path.exists():
        os.replace(path, target)
    _log.error("the %s %s cannot be read (%s): moved to %s, and a new one was started", name, path, error, target)


class DatabaseHealth:
    """Logs once that a database cannot be used, and once that it can be again.

    `name` is its name in messages, `loss` the consequence while it cannot be used.
    """

    def __init__(self, name: str, path: Path, loss: str) -> None:
        self._name = f"the {name} {path}"
        self._loss = loss
        self._is_well = True
        self._failed_at_s = 0.0

    @property
    def problem(self) -> str:
        """The problem; empty if there is none."""
        return "" if self._is_well else f"{self._name} cannot be written; {self._loss}"

    @property
    def may_be_well(self) -> bool:
        """Whether it could not be used, and a write that succeeds now would show that it can be again."""
        return not self._is_well and time.monotonic() - self._failed_at_s >= WELL_AFTER_S

    def note_failed(self, error: Exception) -> None:
        """Note that it could not be used."""
        self._failed_at_s = time.monotonic()
        if self._is_well:
            self._is_well = False
            _log.error("%s cannot be used: %s; %s", self._name, error, self._loss)

    def note_written(self) -> None:
        """Note that a write succeeded. Reading proves nothing, since a full disk can be read."""
        if self.may_be_well:
            self._is_well = True
            _log.warning("%s can be written again", self._name)
