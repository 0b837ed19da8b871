"""The outbox's tables: messages in order of arrival, and each sink's progress in each pipeline."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from upwell.edge.spool.open_database import Migration
from upwell.pipelines.sinks.base import Message

OUTBOX_NAME = "outbox.db"
"""The file in the agent's `state_dir`."""

OVERHEAD_BYTES = 512
"""Disk space of a message beyond its body and picture (bytes)."""

_BATCH_BYTES = 1 << 20
_LEAST_BYTES = 1 << 20
"""What messages may take even where the disk has no more: it then refuses them, which is a problem that is told."""

_POISONED_SHARE = 10
"""The share of the limit for messages set aside."""

_FREE_PAGES = 2048
"""Number of free pages kept in the file for reuse; others are returned to the disk."""

_PAGES_AT_ONCE = 256

Outcome: TypeAlias = Literal["delivered", "denied", "poisoned", "dropped_size", "dropped_age", "removed"]
"""The outcome of a message for one sink."""

_RETRIES = """CREATE TABLE retries (
    number INTEGER PRIMARY KEY, model TEXT NOT NULL, tags TEXT NOT NULL, is_ordered INTEGER NOT NULL
)"""

SCHEMA: tuple[Migration, ...] = (
    Migration(
        up=(
            "CREATE TABLE downgrades (version INTEGER PRIMARY KEY, statements TEXT NOT NULL)",
            """CREATE TABLE messages (
                number INTEGER PRIMARY KEY AUTOINCREMENT, pipeline TEXT NOT NULL, kept_s REAL NOT NULL,
                size_bytes INTEGER NOT NULL, key TEXT NOT NULL, event TEXT NOT NULL, sequence INTEGER NOT NULL,
                model TEXT NOT NULL, tags TEXT NOT NULL, body BLOB NOT NULL, picture BLOB NOT NULL
            )""",
            "CREATE INDEX messages_pipeline ON messages (pipeline)",  # also by number, which ends each index
            """CREATE TABLE cursors (
                pipeline TEXT NOT NULL, sink TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (pipeline, sink)
            ) WITHOUT ROWID""",
            "CREATE TABLE sequences (pipeline TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID",
            """CREATE TABLE poisoned (
                number INTEGER PRIMARY KEY AUTOINCREMENT, sink TEXT NOT NULL, error TEXT NOT NULL,
                size_bytes INTEGER NOT NULL, key TEXT NOT NULL, pipeline TEXT NOT NULL, event TEXT NOT NULL,
                sequence INTEGER NOT NULL, body BLOB NOT NULL, picture BLOB NOT NULL
            )""",
        ),
        down=(
            "DROP TABLE poisoned",
            "DROP TABLE sequences",
            "DROP TABLE cursors",
            "DROP TABLE messages",
            "DROP TABLE downgrades",
        ),
    ),
    Migration(up=(_RETRIES,), down=("DROP TABLE retries",)),
    Migration(
        up=(
            "ALTER TABLE poisoned ADD COLUMN is_ordered INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE poisoned ADD COLUMN model TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE poisoned ADD COLUMN tags TEXT NOT NULL DEFAULT '{}'",
            """UPDATE poisoned SET (is_ordered, model, tags) = (
                SELECT is_ordered, model, tags FROM retries WHERE retries.number = poisoned.number
            ) WHERE number IN (SELECT number FROM retries)""",
            "DROP TABLE retries",
        ),
        down=(
            _RETRIES,
            "INSERT INTO retries SELECT number, model, tags, is_ordered FROM poisoned",
            *(f"ALTER TABLE poisoned DROP COLUMN {name}" for name in ("is_ordered", "model", "tags")),
        ),
    ),
)
"""`poisoned.is_ordered` says whether a person asked to send the message again."""


@dataclass(frozen=True)
class PendingMessage:
    """A message that a sink has not taken yet, and its number in order of arrival."""

    number: int
    message: Message


@dataclass(frozen=True)
class Beginning:
    """The contents of an outbox when it is opened: the last sequence by pipeline, and the number of waiting messages
    by sink, with removed sinks apart.
    """

    sequences: Mapping[str, int]
    waiting: Mapping[str, int]
    gone: Mapping[str, int]


class OutboxStore:
    """One connection. Every method but `close` runs inside `transaction`, in one thread at a time.

    `sinks` are the names of the sinks by pipeline. The messages of the pipelines `others` wait for another program.
    `free_bytes` tells the free space of the disk. `counted` holds, by sink and outcome, what the current transaction
    did; it counts once that has ended.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        sinks: Mapping[str, Sequence[str]],
        limit_bytes: int,
        free_bytes: Callable[[], int],
        others: Collection[str] = (),
    ) -> None:
        self._connection = connection
        self._free_bytes = free_bytes
        self.sinks = sinks
        self._others = others
        self._limit_bytes = limit_bytes
        self._held_bytes: int | None = None
        self._foreign_changes = -1
        self.is_changed = False
        """Whether another process has changed the tables, as a purge does, and this was not reset since."""
        self.counted: Counter[tuple[str, str]] = Counter()

    def close(self) -> None:
        """Move the write-ahead log into the database and close the connection."""
        self._connection.close()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """A transaction; if `durable`, it is on disk when it ends. Raises `sqlite3.Error`."""
        # Anything else is lost only by a power cut. Messages are then delivered once more, which costs less than a
        # flush for each delivery. Nor is the write lock taken at once: a disk that went read-only can still be read
        # and its messages delivered.
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self.counted, sinks = Counter(), self.sinks
        self._connection.execute("BEGIN IMMEDIATE" if durable else "BEGIN")
        try:
            changes = self._number("PRAGMA data_version")
            if changes != self._foreign_changes:
                self.is_changed |= self._foreign_changes >= 0
                self._held_bytes, self._foreign_changes = None, changes
            yield
            self._connection.execute("COMMIT")
        except BaseException:  # roll back, whatever the error
            self._held_bytes, self.counted, self.sinks = None, Counter(), sinks
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def begin(self, first_sequence: int) -> Beginning:
        """Register the sinks, and forget removed ones together with the messages that only they awaited.

        A new sink gets messages from now on. The sequences of a new pipeline start after `first_sequence`.
        """
        pairs = self._connection.execute("SELECT pipeline, sink FROM cursors")
        known = {(pipeline, sink) for pipeline, sink in pairs if pipeline not in self._others}
        wanted, last = self._pairs(), self._last_number()
        gone = self._waiting_by_sink(known - wanted, last)
        self._connection.executemany("DELETE FROM cursors WHERE pipeline = ? AND sink = ?", known - wanted)
        self._connection.executemany(
            "INSERT INTO cursors VALUES (?, ?, ?)", [(pipeline, sink, last) for pipeline, sink in wanted - known]
        )
        for (pipeline,) in self._connection.execute("SELECT DISTINCT pipeline FROM messages").fetchall():
            self._forget(pipeline)
        for pipeline in self.sinks:
            self._connection.execute("INSERT OR IGNORE INTO sequences VALUES (?, ?)", (pipeline, first_sequence))
        return Beginning(self.last_sequences(), self._waiting_by_sink(wanted, last), gone)

    def change(self, sinks: Mapping[str, Sequence[str]]) -> Mapping[str, int]:
        """Have these sinks from now on, as `begin` does; the number of messages dropped, by removed sink."""
        self.sinks = sinks
        gone = self.begin(0).gone
        for sink, number in gone.items():
            self.counted[sink, "removed"] += number
        return gone

    def last_sequences(self) -> dict[str, int]:
        """The last sequence by pipeline."""
        return dict(self._connection.execute("SELECT pipeline, last FROM sequences").fetchall())

    def waiting_by_sink(self) -> Mapping[str, int]:
        """The number of messages that wait, by sink."""
        return self._waiting_by_sink(self._pairs(), self._last_number())

    def latest_s(self) -> float:
        """The latest time, by the outbox's clock, at which a message was stored; 0 without any."""
        return float(self._connection.execute("SELECT coalesce(max(kept_s), 0) FROM messages").fetchone()[0])

    def add(self, messages: Sequence[Message], now_s: float) -> None:
        """Store these messages in this order, and drop the oldest to make room.

        They grow to at most half of the space that others leave: on a full disk the write-ahead log could not say
        that sinks have taken them, and it would stay full.
        """
        half_bytes = (self._free_bytes() + self._file_bytes()) // 2
        limit_bytes = min(self._limit_bytes, max(half_bytes, self._held(), _LEAST_BYTES))
        for message in messages:
            self._connection.execute(
                "INSERT INTO sequences VALUES (?, ?)"
                " ON CONFLICT (pipeline) DO UPDATE SET last = max(last, excluded.last)",
                (message.pipeline, message.sequence),
            )
            sinks = self.sinks.get(message.pipeline, ())
            if not sinks and message.pipeline not in self._others:
                continue
            self._count_for(sinks, "put")
            size_bytes = size_of(message)
            if size_bytes > limit_bytes:  # all others would make room for it, and it would not have enough
                self._count_for(sinks, "dropped_size")
                continue
            self._connection.execute(
                "INSERT INTO messages VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    message.pipeline, now_s, size_bytes, message.key, message.event, message.sequence, message.model,
                    json.dumps(dict(message.tags)), message.body, message.picture,
                ),
            )  # fmt: skip
            self._held_bytes = self._held() + size_bytes
        while self._held() > limit_bytes:
            self._drop(self._number("SELECT min(number) FROM messages"), "dropped_size")

    def expire(self, oldest_s: float) -> None:
        """Drop messages stored before that instant."""
        # Found in order of arrival, which needs no index: the clock does not go backward.
        query = "SELECT coalesce((SELECT number FROM messages WHERE kept_s >= ? ORDER BY number LIMIT 1), 9e18)"
        self._drop(self._number(query, oldest_s) - 1, "dropped_age")

    def waiting(self, pipeline: str, after: int, limit: int) -> list[PendingMessage]:
        """Up to `limit` messages of the pipeline after that number, in order, together at most about 1 MiB."""
        found: list[PendingMessage] = []
        total_bytes = 0
        for number, size_bytes, key, event, sequence, model, tags, body, picture in self._connection.execute(
            "SELECT number, size_bytes, key, event, sequence, model, tags, body, picture FROM messages "
            "WHERE pipeline = ? AND number > ? ORDER BY number LIMIT ?",
            (pipeline, after, limit),
        ):
            total_bytes += size_bytes
            if found and total_bytes > _BATCH_BYTES:
                break
            found.append(
                PendingMessage(number, Message(key, pipeline, event, sequence, body, picture, model, json.loads(tags)))
            )
        return found

    def cursor(self, pipeline: str, sink: str) -> int:
        """The number of the last message of the pipeline that the sink is done with."""
        query = "SELECT coalesce((SELECT number FROM cursors WHERE pipeline = ? AND sink = ?), 9e18)"  # removed
        return self._number(query, pipeline, sink)

    def settle(self, pipeline: str, sink: str, until: int, outcome: Outcome, shown: Collection[str]) -> None:
        """Record that the sink is done with all messages up to that number. Those that no sink awaits are deleted.

        `shown` are the sinks that get pictures: once all of them are done with a message, its picture is deleted.
        """
        after = self.cursor(pipeline, sink)
        if until <= after:
            return
        self.counted[sink, outcome] += self._count(pipeline, after, until)  # not those dropped meanwhile
        self._connection.execute(
            "UPDATE cursors SET number = ? WHERE pipeline = ? AND sink = ?", (until, pipeline, sink)
        )
        self._forget(pipeline)
        if sink in shown:
            self._forget_pictures(pipeline, after, until, shown)

    def set_aside(self, pipeline: str, sink: str, poison: PendingMessage, error: str, shown: Collection[str]) -> None:
        """Set aside a message that the sink can never take, for a person to look at. The sink is done with it."""
        message = poison.message
        self._connection.execute(
            "INSERT INTO poisoned VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
            (
                sink, error, size_of(message), message.key, pipeline, message.event, message.sequence, message.body,
                message.picture, message.model, json.dumps(dict(message.tags)),
            ),
        )  # fmt: skip
        while self._number("SELECT total(size_bytes) FROM poisoned") > self._limit_bytes // _POISONED_SHARE:
            self._connection.execute("DELETE FROM poisoned WHERE number = (SELECT min(number) FROM poisoned)")
        self.settle(pipeline, sink, poison.number, "poisoned", shown)

    def ordered_retries(self, sink: str) -> list[PendingMessage]:
        """Some of the messages set aside that a person wants sent to this sink again."""
        return [
            PendingMessage(number, Message(key, pipeline, event, sequence, body, picture, model, json.loads(tags)))
            for number, key, pipeline, event, sequence, body, picture, model, tags in self._connection.execute(
                "SELECT number, key, pipeline, event, sequence, body, picture, model, tags FROM poisoned "
                "WHERE is_ordered = 1 AND sink = ? ORDER BY number LIMIT 8",
                (sink,),
            )
        ]

    def end_retry(self, number: int, error: str) -> None:
        """The sink has taken this message. With an `error` it has not, and the message stays set aside."""
        if error:
            self._connection.execute("UPDATE poisoned SET error = ?, is_ordered = 0 WHERE number = ?", (error, number))
        else:
            self._connection.execute("DELETE FROM poisoned WHERE number = ?", (number,))

    def shrink(self) -> None:
        """Return to the disk some of the space that an outage made the file take. Outside of any transaction."""
        excess = self._number("PRAGMA freelist_count") - _FREE_PAGES
        if excess > 0:
            self._connection.execute(f"PRAGMA incremental_vacuum({min(excess, _PAGES_AT_ONCE)})").fetchall()

    def _drop(self, until: int, outcome: Outcome) -> None:
        """Drop all messages up to that number, counted for the sinks that have not got them."""
        for number, pipeline in self._connection.execute(
            "SELECT number, pipeline FROM messages WHERE number <= ?", (until,)
        ).fetchall():
            waits = "SELECT sink FROM cursors WHERE pipeline = ? AND number < ?"
            self._count_for([sink for (sink,) in self._connection.execute(waits, (pipeline, number))], outcome)
        self._delete("number <= ?", until)

    def _forget(self, pipeline: str) -> None:
        """Delete the pipeline's messages that no sink awaits."""
        slowest = "SELECT coalesce(min(number), 9e18) FROM cursors WHERE pipeline = ?"
        self._delete("pipeline = ? AND number <= ?", pipeline, self._number(slowest, pipeline))

    def _forget_pictures(self, pipeline: str, after: int, until: int, shown: Collection[str]) -> None:
        """Delete the pictures of those of these messages that wait for none of the sinks that get pictures."""
        marks = ", ".join("?" * len(shown))
        slowest = f"SELECT min(number) FROM cursors WHERE pipeline = ? AND sink IN ({marks})"  # noqa: S608 (marks only)
        which = (pipeline, after, min(until, self._number(slowest, pipeline, *shown)))
        where = "WHERE pipeline = ? AND number > ? AND number <= ? AND length(picture) > 0"
        freed_bytes = self._number(f"SELECT total(length(picture)) FROM messages {where}", *which)  # noqa: S608 (as before)
        if freed_bytes:
            held_bytes = self._held() - freed_bytes
            self._connection.execute(
                f"UPDATE messages SET size_bytes = size_bytes - length(picture), picture = x'' {where}",  # noqa: S608 (as before)
                which,
            )
            self._held_bytes = held_bytes

    def _delete(self, where: str, *values: Any) -> None:
        size = f"SELECT total(size_bytes) FROM messages WHERE {where}"  # noqa: S608 (constants of this module)
        held_bytes = self._held() - self._number(size, *values)
        self._connection.execute(f"DELETE FROM messages WHERE {where}", values)  # noqa: S608 (as before)
        self._held_bytes = held_bytes

    def _pairs(self) -> set[tuple[str, str]]:
        return {(pipeline, sink) for pipeline, sinks in self.sinks.items() for sink in sinks}

    def _last_number(self) -> int:
        return self._number("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'")

    def _waiting_by_sink(self, pairs: Iterable[tuple[str, str]], last: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for pipeline, sink in pairs:
            found[sink] += self._count(pipeline, self.cursor(pipeline, sink), last)
        return found

    def _count_for(self, sinks: Sequence[str], name: str) -> None:
        for sink in sinks:
            self.counted[sink, name] += 1

    def _count(self, pipeline: str, after: int, until: int) -> int:
        query = "SELECT count(*) FROM messages WHERE pipeline = ? AND number > ? AND number <= ?"
        return self._number(query, pipeline, after, until)

    def _file_bytes(self) -> int:
        return self._number("PRAGMA page_count") * self._number("PRAGMA page_size")

    def _held(self) -> int:
        if self._held_bytes is None:
            self._held_bytes = self._number("SELECT total(size_bytes) FROM messages")
        return self._held_bytes

    def _number(self, query: str, *values: Any) -> int:
        return int(self._connection.execute(query, values).fetchone()[0])


def size_of(message: Message) -> int:
    """The approximate size of the message on disk, in bytes."""
    texts = (message.key, message.pipeline, message.event, message.model, *message.tags, *message.tags.values())
    return OVERHEAD_BYTES + len(message.body) + len(message.picture) + sum(map(len, texts))
