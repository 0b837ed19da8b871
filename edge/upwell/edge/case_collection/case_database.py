"""The database of cases. Every method runs inside `transaction`, only in the keeper's thread."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TypeAlias

from upwell.edge.case_collection.collected_case import CaseFacts, CaseSignature, CollectedCase
from upwell.edge.spool.open_database import Migration, open_database
from upwell.edge.spool.spool_store import TransactionalStore
from upwell.shared.files import parse_json
from upwell.shared.routing.policy.settings import CollectSettings
from upwell.shared.routing.request_tags import tag_key

FILE_NAME = "cases.db"
"""The database's name in the agent's `state_dir`."""

_DAYS_KEPT = 7
_MOST_SOURCES, _OTHERS = 1000, "(others)"
"""So many sources of a model have a limit of their own each day, since callers may invent any number of them."""

Kept: TypeAlias = Literal["kept", "refused_day", "refused_large"]
"""Outcomes of a case that is not stored: its source reached its daily limit, or it exceeds the size limit."""

SCHEMA: tuple[Migration, ...] = (
    Migration(
        up=(
            "CREATE TABLE downgrades (version INTEGER PRIMARY KEY, statements TEXT NOT NULL)",
            """CREATE TABLE cases (
                id TEXT PRIMARY KEY, model TEXT NOT NULL, source TEXT NOT NULL, tags TEXT NOT NULL,
                is_evaluated INTEGER NOT NULL, kept_s REAL NOT NULL, expires_s REAL NOT NULL,
                size_bytes INTEGER NOT NULL, spool_id TEXT NOT NULL, spool_row INTEGER NOT NULL,
                signature INTEGER NOT NULL REFERENCES signatures, sealed INTEGER NOT NULL, facts TEXT NOT NULL
            )""",
            # A separate table, so that changing the facts does not rewrite the tensors.
            """CREATE TABLE bodies (
                id TEXT PRIMARY KEY REFERENCES cases ON DELETE CASCADE,
                request BLOB NOT NULL, edge BLOB NOT NULL, cloud BLOB NOT NULL
            )""",
            # Stores the names of a thousand classes once, not in each case.
            "CREATE TABLE signatures (number INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
            """CREATE TABLE days (
                day TEXT NOT NULL, model TEXT NOT NULL, source TEXT NOT NULL, kept INTEGER NOT NULL,
                PRIMARY KEY (day, model, source)
            ) WITHOUT ROWID""",
            "CREATE INDEX cases_order ON cases (model, is_evaluated, kept_s)",
            "CREATE INDEX cases_spool ON cases (spool_id)",
        ),
        down=(
            "DROP TABLE days",
            "DROP TABLE bodies",
            "DROP TABLE cases",
            "DROP TABLE signatures",
            "DROP TABLE downgrades",
        ),
    ),
)


class CaseStore(TransactionalStore):
    """One connection's view of the cases. Its parts are models."""

    table = "cases"

    @classmethod
    def open(cls, path: Path) -> CaseStore:
        """Open the database at `path`, created if missing. Raises as `open_database` does."""
        return cls(open_database(path, SCHEMA))

    def add(
        self, case: CollectedCase, collect: CollectSettings, now_s: float, awaits: tuple[str, int] = ("", 0)
    ) -> Kept:
        """Store a case, and drop older ones of its model beyond the limit; returns the outcome.

        `awaits` is the id of the spooled case that the cloud will answer, and the row in it, -1 for all of it.
        """
        facts = case.facts
        if case.size_bytes > collect.keep_bytes:
            self.counted["refused_large"] += 1
            return "refused_large"
        if not facts.is_evaluated and not self._counts_for_today(facts, collect.per_day):
            self.counted["refused_day"] += 1
            return "refused_day"
        held_bytes = self._bytes(facts.model) + case.size_bytes
        self._connection.execute(
            "INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
            (
                facts.id, facts.model, facts.source, json.dumps(dict(facts.tags)), int(facts.is_evaluated), now_s,
                now_s + collect.max_age_s, case.size_bytes, *awaits, self._signature(facts), facts_text(facts),
            ),
        )  # fmt: skip
        self._connection.execute(
            "INSERT INTO bodies VALUES (?, ?, ?, ?)", (facts.id, case.request, case.edge, case.cloud)
        )
        self._held_bytes[facts.model] = held_bytes
        self.counted["kept"] += 1
        self._make_room(facts.model, collect.keep_bytes, "dropped_full", "is_evaluated, kept_s, rowid")
        return "kept"

    def answer(self, spool_id: str, cloud_digest: str, row_of: Callable[[int], bytes]) -> None:
        """Add the cloud's answer to the cases that await it; `row_of` gives the answer to a row in stored form."""
        found = self._connection.execute(
            "SELECT id, spool_row, facts, model FROM cases WHERE spool_id = ?", (spool_id,)
        ).fetchall()
        for id, row, facts, model in found:
            answer = row_of(row)
            facts = json.dumps({**json.loads(facts), "cloud_digest": cloud_digest})
            self._connection.execute("UPDATE bodies SET cloud = ? WHERE id = ?", (answer, id))
            self._connection.execute(
                "UPDATE cases SET facts = ?, spool_id = '', size_bytes = size_bytes + ? WHERE id = ?",
                (facts, len(answer), id),
            )
            self._held_bytes.pop(model, None)
            self.counted["answered"] += 1

    def expire(self, now_s: float) -> None:
        """Drop expired cases."""
        gone = self._connection.execute("DELETE FROM cases WHERE expires_s < ?", (now_s,)).rowcount
        if gone:
            self._held_bytes = {}
            self.counted["dropped_old"] += gone
            self._connection.execute("DELETE FROM signatures WHERE number NOT IN (SELECT signature FROM cases)")
        wall_s = min(now_s, time.time())  # a day has the wall clock's name, which may be far behind after a boot
        day = datetime.fromtimestamp(max(0.0, wall_s - _DAYS_KEPT * 86400), timezone.utc).date().isoformat()
        self._connection.execute("DELETE FROM days WHERE day < ?", (day,))

    def held(self) -> tuple[int, int]:
        """The number of cases, and their bytes."""
        row = self._connection.execute("SELECT count(*), total(size_bytes) FROM cases").fetchone()
        return int(row[0]), int(row[1])

    def _counts_for_today(self, facts: CaseFacts, per_day: int) -> bool:
        day = datetime.fromtimestamp(facts.created_unix_s, timezone.utc).date().isoformat()
        sources = self._number("SELECT count(*) FROM days WHERE day = ? AND model = ?", day, facts.model)
        for source in (tag_key(facts.source), _OTHERS):
            key = (day, facts.model, source)
            where = "day = ? AND model = ? AND source = ?"
            kept = self._number(f"SELECT coalesce(max(kept), 0) FROM days WHERE {where}", *key)  # noqa: S608 (a constant)
            if kept or sources < _MOST_SOURCES:
                break
        if kept >= per_day:
            return False
        self._connection.execute("INSERT OR REPLACE INTO days VALUES (?, ?, ?, ?)", (*key, kept + 1))
        return True

    def _signature(self, facts: CaseFacts) -> int:
        text = facts.signature.model_dump_json()
        self._connection.execute("INSERT OR IGNORE INTO signatures (text) VALUES (?)", (text,))
        return self._number("SELECT number FROM signatures WHERE text = ?", text)

    def _where(self, part: str) -> tuple[str, ...]:
        return ("model = ?", part)


def facts_text(facts: CaseFacts) -> str:
    """The facts as JSON, without the signature, which has a table of its own."""
    return facts.model_dump_json(exclude={"signature"}, exclude_defaults=True)


def read_case(row: sqlite3.Row | tuple[str, str, bytes, bytes, bytes]) -> CollectedCase:
    """A case from a row of `READ`. Raises `ValueError` if the stored data cannot be read."""
    facts, signature, request, edge, cloud = row
    return CollectedCase(read_facts(facts, CaseSignature.model_validate_json(signature)), request, edge, cloud)


def read_facts(text: str, signature: CaseSignature) -> CaseFacts:
    """The facts of a case from `facts_text`. Raises `ValueError`."""
    document = parse_json(text)
    if not isinstance(document, dict):
        raise ValueError("its facts are not an object")
    return CaseFacts.model_validate({**document, "signature": signature})


READ = """SELECT facts, signatures.text, request, edge, cloud FROM cases JOIN bodies USING (id)
    JOIN signatures ON signature = number"""
