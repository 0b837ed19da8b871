"""Delivers messages from the outbox to one sink."""

from __future__ import annotations

import logging
import random
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby

from upwell.edge.spool.open_database import REOPEN_S
from upwell.pipelines.sinks.base import Message, Poisonous, Sink, SinkUnavailable
from upwell.pipelines.sinks.outbox_journal import Journal, OutboxLimits, OutboxUnavailable
from upwell.pipelines.sinks.outbox_store import OutboxStore, Outcome, PendingMessage
from upwell.shared.platform.background_thread import BackgroundThread

_IDLE_S = 30.0
_BATCH_STAYING = 256
_BATCH_LEAVING = 32
"""Batch size for messages that leave the device: the policy is checked before each batch and must not be outdated."""

_LONGEST_RETRY_AFTER_S = 3600.0
_log = logging.getLogger(__name__)


class SinkRelay:
    """Gives one sink the messages of its pipelines, each pipeline's in order, at least once, from its own thread.

    If a sink cannot take a message, it is retried after growing, jittered pauses, and later messages wait. Messages
    that the policy no longer lets leave are not sent; those that the sink can never take are set aside.
    """

    def __init__(
        self,
        journal: Journal,
        sink: Sink,
        pipelines: Sequence[str],
        limits: OutboxLimits,
        may_send: Callable[[Message], bool],
    ) -> None:
        self._journal = journal
        self._sink = sink
        self._pipelines = tuple(pipelines)
        self._turn = 0
        self._limits = limits
        self._may_send = may_send
        self._random = random.Random()  # noqa: S311 (spreads load; keeps no secret)
        self._changed = threading.Condition()
        self._has_news = True
        self._closing = False
        self._failures = 0
        self._problem = ""
        self._cursors: dict[str, int] = {}
        self._owed: deque[Callable[[OutboxStore], None]] = deque()
        self._epoch = 0
        self._thread = BackgroundThread(f"sink {sink.name}", self._run, lambda: self._closing)
        self._thread.start()

    def wake(self) -> None:
        """Look for new messages now."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def serve(self, pipelines: Sequence[str]) -> None:
        """Deliver the messages of these pipelines from now on."""
        self._pipelines = tuple(pipelines)
        self.wake()

    @property
    def pipelines(self) -> Sequence[str]:
        """The pipelines whose messages it delivers."""
        return self._pipelines

    @property
    def sink(self) -> Sink:
        """The sink that it delivers to."""
        return self._sink

    @property
    def problem(self) -> str:
        """Why it delivers nothing now; empty if it does."""
        return self._problem

    def stop(self) -> None:
        """Stop delivering. A delivery in progress goes on to its end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, which closes the sink."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._work()
        finally:
            if self._closing:
                self._sink.close()

    def _work(self) -> None:
        with self._changed:
            self._has_news = False
        try:
            with suppress(OutboxUnavailable):  # a full disk can still be read
                self._save_owed()
            had_some = False
            pipelines = self._pipelines
            for _ in pipelines:  # in turn, so that no pipeline waits behind all of another's
                self._turn += 1
                had_some |= self._deliver_some(pipelines[self._turn % len(pipelines)])
            had_some |= self._deliver_retries()
            if not had_some:
                self._idle(REOPEN_S if self._owed else _IDLE_S)
        except OutboxUnavailable:
            self._pause(REOPEN_S)
        except SinkUnavailable as error:
            self._note_failure(error)
            self._pause(max(self._jittered(), min(error.retry_after_s, _LONGEST_RETRY_AFTER_S)))

    def _deliver_some(self, pipeline: str) -> bool:
        """Deliver the next messages of the pipeline; whether there were any."""
        batch = self._journal.ask(lambda store: self._next(store, pipeline))
        for is_allowed, run in groupby(batch, self._is_allowed):
            if self._closing:
                break
            if is_allowed:
                self._deliver(pipeline, list(run))
            else:
                self._settle(pipeline, list(run), "denied")
        return bool(batch)

    def _deliver_retries(self) -> bool:
        """Deliver messages set aside that are to be sent again; whether there were any. One at a time: order no
        longer matters.
        """
        retries = self._journal.ask(lambda store: store.ordered_retries(self._sink.name))
        for one in retries:
            if self._closing:
                break
            error = ""
            if not self._is_allowed(one):
                error = "the policy does not let it leave the device"
            else:
                try:
                    self._call_sink([one.message])
                except Poisonous as poisonous:
                    error = str(poisonous)
            _log.info("event %s was sent again to %s: %s", one.message.key, self._sink.name, error or "taken")
            self._save(lambda store, one=one, error=error: store.end_retry(one.number, error))  # type: ignore[misc]  # bound now
        return bool(retries)

    def _next(self, store: OutboxStore, pipeline: str) -> list[PendingMessage]:
        if self._epoch != self._journal.epoch:
            self._epoch = self._journal.epoch
            self._cursors.clear()
            self._owed.clear()
        after = max(store.cursor(pipeline, self._sink.name), self._cursors.get(pipeline, 0))
        return store.waiting(pipeline, after, _BATCH_LEAVING if self._sink.leaves_device else _BATCH_STAYING)

    def _is_allowed(self, waiting: PendingMessage) -> bool:
        return not self._sink.leaves_device or self._may_send(waiting.message)

    def _deliver(self, pipeline: str, run: list[PendingMessage]) -> None:
        """Deliver all of these. Raises `SinkUnavailable` after recording what was taken."""
        while run and not self._closing:
            try:
                self._call_sink([waiting.message for waiting in run])
            except Poisonous as error:
                self._settle(pipeline, run[: error.index], "delivered")
                self._set_aside(pipeline, run[error.index], str(error))
                del run[: error.index + 1]
            except SinkUnavailable as error:
                self._settle(pipeline, run[: error.taken], "delivered")
                raise
            else:
                self._settle(pipeline, run, "delivered")
                return

    def _call_sink(self, messages: Sequence[Message]) -> None:
        try:
            self._sink.deliver(messages)
        except (SinkUnavailable, Poisonous):
            raise
        except Exception as error:  # noqa: BLE001 (the boundary to any sink: it is given the same again later)
            if not self._failures:  # log the place of the error, not its text, which may hold part of an event
                place = "".join(traceback.format_tb(error.__traceback__))
                _log.error("the sink %s failed with %s at\n%s", self._sink.name, type(error).__name__, place)
            raise SinkUnavailable(type(error).__name__) from None

    def _settle(self, pipeline: str, run: Sequence[PendingMessage], outcome: Outcome) -> None:
        if run:
            self._cursors[pipeline] = until = run[-1].number
            if outcome == "delivered":
                self._note_success()
            self._save(lambda store: store.settle(pipeline, self._sink.name, until, outcome))

    def _set_aside(self, pipeline: str, poison: PendingMessage, error: str) -> None:
        key = poison.message.key
        _log.warning("the sink %s rejected event %s, which is set aside: %s", self._sink.name, key, error)
        self._cursors[pipeline] = poison.number
        self._save(lambda store: store.set_aside(pipeline, self._sink.name, poison, error))

    def _save(self, work: Callable[[OutboxStore], None]) -> None:
        epoch = self._epoch

        def save(store: OutboxStore) -> None:
            if epoch == self._journal.epoch:
                work(store)

        self._owed.append(save)
        with suppress(OutboxUnavailable):  # if the disk refuses, this is known in memory and saved later
            self._save_owed()

    def _save_owed(self) -> None:
        while self._owed:
            self._journal.ask(self._owed[0])
            self._owed.popleft()

    def _note_success(self) -> None:
        if self._failures:
            _log.warning("the sink %s accepts events again", self._sink.name)
        self._failures, self._problem = 0, ""

    def _note_failure(self, error: SinkUnavailable) -> None:
        self._journal.count([self._sink.name], "failures")
        self._problem = f"the sink {self._sink.name} accepts no events: {error}"
        if not self._failures:
            _log.warning("the sink %s accepts no events and will be tried again: %s", self._sink.name, error)
        self._failures += 1

    def _jittered(self) -> float:
        longest_s = min(self._limits.longest_pause_s, self._limits.first_pause_s * 2.0 ** min(self._failures - 1, 60))
        return longest_s * self._random.uniform(0.5, 1.0)

    def _pause(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, pause_s)

    def _idle(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._has_news, pause_s)
