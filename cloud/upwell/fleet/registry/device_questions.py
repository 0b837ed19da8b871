"""Questions to devices: why a request was answered as it was. A device gets them with its next poll."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select, update

from upwell.fleet.registry.device_reports import Explained
from upwell.fleet.registry.devices import Stored
from upwell.fleet.storage.database import Database, Row, the_row
from upwell.fleet.storage.tables import QUESTIONS
from upwell.fleet.users import Actor, new_id, record_audit

OPEN_S = 3600.0
"""Time after which a question not yet fetched by its device expires."""

KEPT_S = 86400.0
FRESH_S = 1.0
_MOST_OPEN = 1000


def ask(connection: Connection, actor: Actor, device: Stored, request_id: str) -> str:
    """Add a question; return its id."""
    question_id = new_id()
    connection.execute(
        insert(QUESTIONS).values(
            id=question_id, device_id=device["id"], request_id=request_id, asked_unix_s=actor.now_unix_s,
            asked_by=actor.name,
        )
    )  # fmt: skip
    record_audit(connection, actor, "ask device", device["id"], {"request_id": request_id})
    return question_id


def question(connection: Connection, question_id: str) -> Row:
    """The question and, once it has arrived, its answer. Raises `NotFound`."""
    return the_row(connection, select(QUESTIONS).where(QUESTIONS.c.id == question_id), f"question {question_id!r}")


def answer(connection: Connection, device_id: str, explained: Explained, now_unix_s: float) -> None:
    """Store a device's answer, if it was asked that and has not answered yet."""
    connection.execute(
        update(QUESTIONS)
        .where(QUESTIONS.c.id == explained.question_id, QUESTIONS.c.device_id == device_id)
        .where(QUESTIONS.c.answered_unix_s.is_(None))
        .values(answered_unix_s=now_unix_s, answer=dict(explained.answer))
    )


def forget_questions(connection: Connection, now_unix_s: float) -> None:
    """Delete questions older than a day."""
    connection.execute(delete(QUESTIONS).where(QUESTIONS.c.asked_unix_s < now_unix_s - KEPT_S))


class OpenQuestions:
    """Answers polls: the oldest open question of a device, cached for a second."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._open: Mapping[str, tuple[str, str]] = {}
        self._read_at_s = float("-inf")

    def next_for(self, device_id: str, now_s: float, now_unix_s: float) -> tuple[str, str] | None:
        """Id of the question and id of the request, or None; `now_s` is monotonic."""
        with self._lock:
            if now_s - self._read_at_s >= FRESH_S:
                self._read(now_unix_s)
                self._read_at_s = now_s
            return self._open.get(device_id)

    def answered(self, device_id: str) -> None:
        """The device has answered its question; others are found the next time."""
        with self._lock:
            self._open = {one: asked for one, asked in self._open.items() if one != device_id}

    def _read(self, now_unix_s: float) -> None:
        chosen = (
            select(QUESTIONS.c.device_id, QUESTIONS.c.id, QUESTIONS.c.request_id)
            .where(QUESTIONS.c.answered_unix_s.is_(None), QUESTIONS.c.asked_unix_s > now_unix_s - OPEN_S)
            .order_by(QUESTIONS.c.asked_unix_s.desc())
            .limit(_MOST_OPEN)
        )
        with self._database.reading() as connection:
            rows = connection.execute(chosen).all()
        self._open = {device_id: (question_id, request_id) for device_id, question_id, request_id in rows}
