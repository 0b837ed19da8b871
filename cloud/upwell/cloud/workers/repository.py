"""Loads and unloads where several workers serve: whichever is asked, all of them do it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from upwell.cloud.service.control import ModelRepository
from upwell.cloud.workers.messages import Ask, Change, Done, Message, WorkerReply, error_from_wire, error_to_wire
from upwell.shared.errors import NotLoaded, Unavailable, UpwellError
from upwell.shared.oip.grpc.repository import IndexEntry

log = logging.getLogger("upwell.cloud")


class SharedRepository:
    """The `Repository` of a worker: `own` is what this worker serves, `send` says something to the supervisor.

    The supervisor makes one change at a time, and answers when every worker has made it.
    """

    def __init__(self, own: ModelRepository, send: Callable[[Message], None]) -> None:
        self._own = own
        self._send = send
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: dict[int, Future[None]] = {}

    def index(self) -> Sequence[IndexEntry]:
        """See `Repository.index`: as it is in this worker."""
        return self._own.index()

    def load(self, model: str) -> None:
        """See `Repository.load`. Where it fails in one worker and not in another, it has failed."""
        self._ask(model, unload=False)

    def unload(self, model: str) -> None:
        """See `Repository.unload`."""
        self._ask(model, unload=True)

    def answered(self, answer: WorkerReply) -> None:
        """The supervisor says what became of a change that this worker asked for."""
        with self._lock:
            future = self._waiting.pop(answer.id, None)
        if future is None:
            return
        if answer.error is None:
            future.set_result(None)
        else:
            future.set_exception(error_from_wire(answer.error))

    def close(self) -> None:
        """Nobody answers any more: those who wait are told."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(Unavailable("the service is draining and no longer loads or unloads models"))

    def make_changes(self, changes: queue.SimpleQueue[Change]) -> None:
        """Make the changes that the supervisor tells, one after the other, for ever: for a thread."""
        while True:
            change = changes.get()
            self._send(self._made(change))

    def _ask(self, model: str, *, unload: bool) -> None:
        with self._own.place():
            future: Future[None] = Future()
            with self._lock:
                self._count += 1
                number = self._count
                self._waiting[number] = future
            self._send(Ask(number, model, unload))
            future.result()

    def _made(self, change: Change) -> Done:
        make = self._own.make_unload if change.unload else self._own.make_load
        error: BaseException | None = None
        try:
            make(change.model)
        except UpwellError as refused:
            error = refused
        except Exception as failed:  # the caller is told, and the worker goes on
            log.exception("model %s could not be loaded or unloaded", change.model)
            error = failed
        happened = error is None or isinstance(error, NotLoaded)
        versions = self._own.versions(change.model) if happened else ()
        return Done(change.id, None if error is None else error_to_wire(error), versions)
