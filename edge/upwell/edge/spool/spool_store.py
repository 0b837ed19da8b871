"""The cases and results in the database. Every method runs inside `transaction`, only in the keeper's thread."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from upwell.edge.spool.open_database import Migration
from upwell.edge.spool.spooled_request import (
    OVERHEAD_BYTES,
    SpoolHeld,
    SpoolLimits,
    SpoolResult,
    SpoolUnavailable,
    Stored,
)
from upwell.shared.files import parse_json

SCHEMA: tuple[Migration, ...] = (
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
"""The versions of the spool's database."""

_WAITING = "state != 'done'"
_RESULTS = "state = 'done'"
_OLD = f"DELETE FROM items WHERE (kept_s < ? AND {_WAITING}) OR (next_s < ? AND {_RESULTS})"  # noqa: S608 (constants of this module)
_STORED = """SELECT items.id, kind, model, cloud_model, request_id, CAST(tags AS BLOB), reason, created_wall_s, kept_s,
    next_s, attempts, edge_answer_digest, request, edge_answer, owner FROM items JOIN bodies USING (id)"""
_RESULT = """SELECT sequence, items.id, request_id, kind, model, cloud_model, CAST(tags AS BLOB), reason,
    created_wall_s, answered_wall_s, edge_answer_digest, answer, edge_answer, owner,
    length(answer) + length(edge_answer) + length(tags) FROM results JOIN items USING (id) JOIN bodies USING (id)"""


class TransactionalStore(ABC):
    """One connection to a database with a table of entries, each with an `id`, `size_bytes` and the time `kept_s`.

    `counted` collects a transaction's counts, which are valid once it is on disk.
    """

    table: ClassVar[str]

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._held_bytes: dict[str, int] = {}
        self._foreign_changes = -1
        self.counted: Counter[str] = Counter()

    def close(self) -> None:
        """Close the connection, after moving the whole log into the database."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that is on disk when it ends. Raises `sqlite3.Error`; `SpoolUnavailable` if it cannot begin."""
        self.counted = Counter()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:  # locked, or the disk is gone: not the fault of the work
            raise SpoolUnavailable(str(error)) from None
        try:
            changes = self._number("PRAGMA data_version")
            if changes != self._foreign_changes:  # another process purged cases: the sums are no longer valid
                self._held_bytes, self._foreign_changes = {}, changes
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._held_bytes, self.counted = {}, Counter()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @property
    def rows_written(self) -> int:
        """The number of rows changed by this connection so far."""
        return self._connection.total_changes

    def write_nothing(self) -> None:
        """Write to the disk, without a change, to see whether that can be done."""
        self._connection.execute("INSERT INTO downgrades VALUES (0, '')")
        self._connection.execute("DELETE FROM downgrades WHERE version = 0")

    def latest_s(self) -> float:
        """The latest time on the spool's clock at which something was stored; 0 without any."""
        query = f"SELECT coalesce(max(kept_s), 0) FROM {self.table}"  # noqa: S608 (constants of this package)
        return float(self._connection.execute(query).fetchone()[0])

    @abstractmethod
    def expire(self, now_s: float) -> None:
        """Drop expired entries."""

    @abstractmethod
    def _where(self, part: str) -> tuple[str, ...]:
        """The condition for the entries of a part that has a limit of its own, and the condition's values."""

    def _bytes(self, part: str) -> int:
        """The bytes that the entries of a part take."""
        if part not in self._held_bytes:
            where, *values = self._where(part)
            query = f"SELECT total(size_bytes) FROM {self.table} WHERE {where}"  # noqa: S608 (as above)
            self._held_bytes[part] = self._number(query, *values)
        return self._held_bytes[part]

    def _make_room(self, part: str, max_bytes: int, count: str, order: str) -> None:
        """Drop the first entries of a part, in that order, until it takes no more; they are counted as `count`."""
        excess_bytes = self._bytes(part) - max_bytes
        if excess_bytes <= 0:
            return
        doomed: list[str] = []
        where, *values = self._where(part)
        query = f"SELECT id, size_bytes FROM {self.table} WHERE {where} ORDER BY {order}"  # noqa: S608 (as above)
        for id, size_bytes in self._connection.execute(query, values):
            doomed.append(id)
            excess_bytes -= size_bytes
            if excess_bytes <= 0:
                break
        self._connection.executemany(f"DELETE FROM {self.table} WHERE id = ?", [(id,) for id in doomed])  # noqa: S608
        self._held_bytes[part] = max_bytes + excess_bytes
        self.counted[count] += len(doomed)

    def _number(self, query: str, *values: Any) -> int:
        value: Any = self._connection.execute(query, values).fetchone()[0]
        return int(value)


class Store(TransactionalStore):
    """The store of the spool. Its parts are conditions."""

    table = "items"

    def __init__(self, connection: sqlite3.Connection, limits: SpoolLimits) -> None:
        super().__init__(connection)
        self._limits = limits

    def add(self, item: Stored) -> bool:
        """Store a case, dropping others to make room; returns whether it was stored."""
        if item.size_bytes > self._limits.max_bytes:
            self.counted["refused_large"] += 1
            return False
        held_bytes = self._bytes(_WAITING) + item.size_bytes
        if item.kind == "audit" and held_bytes > self._limits.max_bytes:
            sum_of_spooled = f"SELECT total(size_bytes) FROM items WHERE {_WAITING} AND kind = 'spool'"  # noqa: S608
            spool_bytes = self._number(sum_of_spooled)
            if spool_bytes + item.size_bytes > self._limits.max_bytes:  # it would itself be dropped first
                self.counted["refused_large"] += 1
                return False
        self._connection.execute(
            "INSERT INTO items VALUES (?, ?, 'waiting', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?)",
            (
                item.id, item.kind, item.model, item.cloud_model, item.request_id, item.tags_text,
                item.reason, item.created_wall_s, item.kept_s, item.next_s, item.attempts, item.edge_answer_digest,
                item.size_bytes, item.owner,
            ),
        )  # fmt: skip
        self._connection.execute("INSERT INTO bodies VALUES (?, ?, ?)", (item.id, item.request, item.edge_answer))
        self._held_bytes[_WAITING] = held_bytes
        self.counted["kept"] += 1
        self._make_room(_WAITING, self._limits.max_bytes, "dropped_full", "kind, kept_s, rowid")
        return True

    def next_due(self, now_s: float, apart_from: Collection[str] = ()) -> Stored | None:
        """The case to send now: spooled ones before audits, the one due longest first.

        Excludes the models in `apart_from`.
        """
        others = f"model NOT IN ({', '.join('?' * len(apart_from))})"
        query = (
            f"{_STORED} WHERE state = 'waiting' AND kind = ? AND next_s <= ? AND {others} "
            "ORDER BY next_s, items.rowid LIMIT 1"
        )
        for kind in ("spool", "audit"):
            while (row := self._connection.execute(query, (kind, now_s, *apart_from)).fetchone()) is not None:
                if (tags := tags_in(row[5])) is not None:
                    return Stored(*_replaced(row, 5, tags))
                self.set_aside(row[0], row[10], "its stored tags cannot be read, so nobody knows whether it may leave")
        return None

    def latest_s(self) -> float:
        """As for any store; a case that was tried or answered since has the time of that."""
        return float(self._connection.execute("SELECT coalesce(max(next_s), 0) FROM items").fetchone()[0])

    def next_due_s(self) -> float | None:
        """When the next case is due; None if none waits."""
        row = self._connection.execute("SELECT min(next_s) FROM items WHERE state = 'waiting'").fetchone()
        return None if row[0] is None else float(row[0])

    def finish(self, id: str, answer: bytes, now_s: float, wall_s: float) -> int:
        """Replace the request by the cloud's answer; returns the result's number, 0 if the case is gone."""
        row = self._connection.execute(
            "SELECT length(edge_answer) + length(tags), size_bytes FROM bodies JOIN items USING (id) "
            "WHERE id = ? AND state != 'done'",
            (id,),
        ).fetchone()
        if row is None:
            return 0
        size_bytes = len(answer) + row[0] + OVERHEAD_BYTES
        waiting_bytes, result_bytes = self._bytes(_WAITING) - row[1], self._bytes(_RESULTS) + size_bytes
        self._connection.execute("UPDATE bodies SET request = x'' WHERE id = ?", (id,))
        self._connection.execute(
            "UPDATE items SET state = 'done', next_s = ?, size_bytes = ?, error = '' WHERE id = ?",
            (now_s, size_bytes, id),
        )
        added = self._connection.execute(
            "INSERT INTO results (id, answered_wall_s, answer) VALUES (?, ?, ?)", (id, wall_s, answer)
        )
        self._held_bytes = {_WAITING: waiting_bytes, _RESULTS: result_bytes}
        self.counted["answered"] += 1
        self._make_room(_RESULTS, self._limits.max_result_bytes, "dropped_results", "kind, next_s, rowid")
        return int(added.lastrowid or 0)

    def postpone(self, id: str, next_s: float, attempts: int, error: str) -> None:
        """Try a case again at `next_s`, not before."""
        self._connection.execute(
            "UPDATE items SET next_s = ?, attempts = ?, error = ? WHERE id = ?", (next_s, attempts, error, id)
        )

    def set_aside(self, id: str, attempts: int, error: str) -> None:
        """Never send a case again, but keep it for inspection."""
        self._connection.execute(
            "UPDATE items SET state = 'poisoned', attempts = ?, error = ? WHERE id = ?", (attempts, error, id)
        )
        self.counted["poisoned"] += 1

    def remove(self, id: str, count: str) -> None:
        """Drop a case, counted under that name."""
        self.counted[count] += self._connection.execute("DELETE FROM items WHERE id = ?", (id,)).rowcount
        self._held_bytes = {}

    def expire(self, now_s: float) -> None:
        """Drop expired entries."""
        # For a result, `next_s` is the time of its arrival.
        oldest_s = now_s - self._limits.max_age_s
        gone = self._connection.execute(_OLD, (oldest_s, oldest_s))
        if gone.rowcount:
            self._held_bytes = {}
            self.counted["dropped_old"] += gone.rowcount

    def results(self, since: int, max_bytes: int) -> list[SpoolResult]:
        """The results after number `since`, in order: at least one if there is one, and about `max_bytes` at most."""
        found: list[SpoolResult] = []
        total_bytes = 0
        for row in self._connection.execute(f"{_RESULT} WHERE sequence > ? ORDER BY sequence", (since,)):
            total_bytes += row[14]
            if found and total_bytes > max_bytes:
                break
            found.append(SpoolResult(*_replaced(row[:14], 6, tags_in(row[6]) or {})))
        return found

    def last_sequence(self) -> int:
        """The number of the latest result ever stored."""
        return self._number("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'results'")

    def delivered(self, sink: str) -> int:
        """The number of the last result delivered to the sink; 0 for a new sink."""
        row = self._connection.execute("SELECT delivered FROM sinks WHERE name = ?", (sink,)).fetchone()
        return int(row[0]) if row else 0

    def set_delivered(self, sink: str, sequence: int) -> None:
        """Note that the sink has all results up to this one."""
        self._connection.execute("INSERT OR REPLACE INTO sinks VALUES (?, ?)", (sink, sequence))

    def held(self, now_s: float) -> SpoolHeld:
        """The contents of the store."""
        rows: list[tuple[str, int, int]] = self._connection.execute(
            "SELECT state, count(*), sum(size_bytes) FROM items GROUP BY state"
        ).fetchall()
        counts = {state: count for state, count, _ in rows}
        oldest = self._connection.execute("SELECT min(kept_s) FROM items WHERE state = 'waiting'").fetchone()[0]
        return SpoolHeld(
            waiting=counts.get("waiting", 0),
            poisoned=counts.get("poisoned", 0),
            results=counts.get("done", 0),
            size_bytes=sum(size_bytes for *_, size_bytes in rows),
            oldest_waiting_s=0.0 if oldest is None else max(0.0, now_s - oldest),
        )

    def _where(self, part: str) -> tuple[str, ...]:
        return (part,)


def _replaced(row: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*row[:index], value, *row[index + 1 :])


def tags_in(text: str | bytes) -> dict[str, str] | None:
    """Stored tags; None if the disk has garbled them."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
