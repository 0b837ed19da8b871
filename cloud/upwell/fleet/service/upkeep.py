"""What the service does beside the requests: batches into the database, what is old out of it, steps of roll-outs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy import delete
from sqlalchemy.exc import SQLAlchemyError

from upwell.fleet.config import FleetServiceSection
from upwell.fleet.opamp.exchange import FleetState
from upwell.fleet.registry.devices import forget_history, write_batch
from upwell.fleet.registry.events import forget_events
from upwell.fleet.registry.questions import forget_questions
from upwell.fleet.rollout.store import advance, followed
from upwell.fleet.storage.tables import CERTIFICATES
from upwell.shared.platform.background_thread import BackgroundThread

WRITE_S = 5.0
"""So often what polls left in memory is written."""

PRUNE_S = 3600.0
_log = logging.getLogger(__name__)


class Upkeep:
    """The thread that does it; `hourly` is called every hour, too."""

    def __init__(self, state: FleetState, section: FleetServiceSection, hourly: Callable[[], None]) -> None:
        self._state = state
        self._hourly = hourly
        self._history_s = section.history
        self._stop = threading.Event()
        self._thread = BackgroundThread("fleet-upkeep", self._loop, self._stop.is_set)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after everything is written."""
        self._stop.set()
        self._thread.join()
        self._write()

    def _loop(self) -> None:
        prune_at_s = time.monotonic()
        while not self._stop.wait(WRITE_S):
            self._write()
            self._advance(time.time())
            if time.monotonic() >= prune_at_s:
                prune_at_s = time.monotonic() + PRUNE_S
                self._prune(time.time())
                self._hourly()

    def _write(self) -> None:
        batch = self._state.presence.take()
        if not batch.seen and not batch.counted:
            return
        try:
            with self._state.database.writing() as connection:
                write_batch(connection, batch)
        except SQLAlchemyError as error:
            _log.error("the database does not take what devices said: %s; it is tried again", type(error).__name__)
            self._state.presence.give_back(batch)

    def _advance(self, now_unix_s: float) -> None:
        """Step the roll-outs, each in a transaction of its own."""
        database, presence = self._state.database, self._state.presence
        with database.reading() as connection:
            rollouts = followed(connection)
        for rollout_id in rollouts:
            with database.writing() as connection:
                advance(connection, rollout_id, now_unix_s, presence.last_seen)

    def _prune(self, now_unix_s: float) -> None:
        with self._state.database.writing() as connection:
            forget_history(connection, now_unix_s - self._history_s)
            forget_events(connection, now_unix_s)
            forget_questions(connection, now_unix_s)
            connection.execute(delete(CERTIFICATES).where(CERTIFICATES.c.expires_unix_s < now_unix_s))
