"""The outbox: events are on disk before any sink gets them, and stay until each sink has accepted them.

A relay per sink delivers them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path

from upwell.edge.spool.open_database import REOPEN_S
from upwell.pipelines.sinks.base import Message, Poisonous, Sink, SinkUnavailable
from upwell.pipelines.sinks.outbox_database import OutboxDatabase, OutboxLimits, OutboxUnavailable
from upwell.pipelines.sinks.outbox_store import OutboxStore, Outcome, PendingMessage
from upwell.shared.errors import ConfigError
from upwell.shared.platform.background_thread import BackgroundThread

_IDLE_S = 30.0
_BATCH_STAYING, _BATCH_LEAVING = 256, 32
_LONGEST_RETRY_AFTER_S = 3600.0
_CLOSE_S = 2.0
"""How long shutdown waits for deliveries in progress; less than their own timeout for a silent broker."""

_log = logging.getLogger(__name__)


class SinkRelay:
    """Gives one sink the messages of its pipelines, each pipeline's in order, at least once, from its own thread.

    If a sink cannot take a message, it is retried after growing, jittered pauses, and later messages wait. Messages
    that the policy no longer lets leave are not sent; those that the sink can never take are set aside.
    """

    def __init__(
        self,
        database: OutboxDatabase,
        sink: Sink,
        pipelines: Sequence[str],
        limits: OutboxLimits,
        may_send: Callable[[Message], bool],
    ) -> None:
        self._database = database
        self._sink = sink
        self._pipelines = tuple(pipelines)
        self._turn = 0
        self._limits = limits
        self._may_send = may_send
        is_one = sink.leaves_device and not getattr(sink, "sends_together", False)
        self._at_once = 1 if is_one else _BATCH_STAYING
        self._get_ready: Callable[[], None] | None = getattr(sink, "get_ready", None)
        self._random = random.Random()  # noqa: S311 (spreads load; keeps no secret)
        self._changed = threading.Condition()
        self._has_news = True
        self._closing = False
        self._failures = 0
        self._is_rejecting = False
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
        """Why it delivers nothing now, or not the last event; empty if it does."""
        return self._problem

    @property
    def is_failing(self) -> bool:
        """Whether the sink could not take what it was given last."""
        return self._failures > 0

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
        batch = self._database.ask(lambda store: self._next(store, pipeline))
        if self._get_ready is not None and any(map(self._is_allowed, batch)):
            self._get_ready()
        for start in range(0, len(batch), self._at_once):
            for is_allowed, run in groupby(batch[start : start + self._at_once], self._is_allowed):
                if self._closing:
                    return True
                if is_allowed:
                    if not self._deliver(pipeline, list(run)):
                        return True
                else:
                    self._settle(pipeline, list(run), "denied")
        return bool(batch)

    def _deliver_retries(self) -> bool:
        """Deliver messages set aside that are to be sent again; whether there were any. One at a time: order no
        longer matters. None while it cannot be recorded that they were sent: they would be sent again and again.
        """
        if self._owed:
            return False
        retries = self._database.ask(lambda store: store.ordered_retries(self._sink.name))
        for one in retries:
            if self._closing or self._owed:
                break
            error = ""
            if self._get_ready is not None:
                self._get_ready()
            if not self._is_allowed(one):
                error = "the policy does not let it leave the device"
            else:
                try:
                    self._call_sink([one.message])
                    self._note_success()
                except Poisonous as poisonous:
                    error = str(poisonous)
            _log.info("event %s was sent again to %s: %s", one.message.key, self._sink.name, error or "taken")
            self._save(lambda store, one=one, error=error: store.end_retry(one.number, error))  # type: ignore[misc]  # bound now
        return bool(retries)

    def _next(self, store: OutboxStore, pipeline: str) -> list[PendingMessage]:
        if self._epoch != self._database.epoch:
            self._epoch = self._database.epoch
            self._cursors.clear()
            self._owed.clear()
        after = max(store.cursor(pipeline, self._sink.name), self._cursors.get(pipeline, 0))
        return store.waiting(pipeline, after, _BATCH_LEAVING if self._sink.leaves_device else _BATCH_STAYING)

    def _is_allowed(self, waiting: PendingMessage) -> bool:
        return not self._sink.leaves_device or self._may_send(waiting.message)

    def _deliver(self, pipeline: str, run: Sequence[PendingMessage]) -> bool:
        """Deliver these; False if one was set aside: the policy is asked again before those behind it leave, since the
        sink may now have to wait. Raises `SinkUnavailable` after recording what was taken.
        """
        try:
            self._call_sink([waiting.message for waiting in run])
        except Poisonous as error:
            self._settle(pipeline, run[: error.index], "delivered")
            self._set_aside(pipeline, run[error.index], str(error))
            return False
        except SinkUnavailable as error:
            self._settle(pipeline, run[: error.taken], "delivered")
            raise
        self._settle(pipeline, run, "delivered")
        return True

    def _call_sink(self, messages: Sequence[Message]) -> None:
        if self._sink.leaves_device:  # a picture shows the whole frame, about which the policy is not asked
            messages = [replace(one, picture=b"") for one in messages]
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
            shown = self._database.shown
            self._save(lambda store: store.settle(pipeline, self._sink.name, until, outcome, shown))

    def _set_aside(self, pipeline: str, poison: PendingMessage, error: str) -> None:
        if self._sink.leaves_device:  # it gets none, and there is little room for what is set aside
            poison = replace(poison, message=replace(poison.message, picture=b""))
        self._problem = f"the sink {self._sink.name} rejects events, which are set aside: {error}"
        if not self._is_rejecting:  # one that rejects all must not fill the log
            _log.warning("%s (the first is %s)", self._problem, poison.message.key)
        self._is_rejecting = True
        self._cursors[pipeline] = poison.number
        shown = self._database.shown
        self._save(lambda store: store.set_aside(pipeline, self._sink.name, poison, error, shown))

    def _save(self, work: Callable[[OutboxStore], None]) -> None:
        epoch = self._epoch

        def save(store: OutboxStore) -> None:
            if epoch == self._database.epoch:
                work(store)

        self._owed.append(save)
        with suppress(OutboxUnavailable):  # if the disk refuses, this is known in memory and saved later
            self._save_owed()

    def _save_owed(self) -> None:
        while self._owed:
            self._database.ask(self._owed[0])
            self._owed.popleft()

    def _note_success(self) -> None:
        if self._failures:
            _log.warning("the sink %s accepts events again", self._sink.name)
        self._failures, self._is_rejecting, self._problem = 0, False, ""

    def _note_failure(self, error: SinkUnavailable) -> None:
        self._database.count([self._sink.name], "failures")
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


@dataclass(frozen=True)
class SinkCounts:
    """Outcomes of the messages for one sink since the process began, in messages.

    `resumed + put = waiting + delivered + denied + poisoned + dropped_size + dropped_age + removed + damaged`.
    """

    resumed: int
    """Waiting on disk at the start."""
    put: int
    delivered: int
    denied: int
    """Not sent because the policy no longer let them leave."""
    poisoned: int
    """Set aside because the sink can never accept them."""
    dropped_size: int
    """Dropped, oldest first, to make room, or because they were too large. Those dropped while the sink was being
    given them may still have arrived.
    """
    dropped_age: int
    removed: int
    """Dropped because their pipeline or sink was removed from the file, or purged by a person."""
    damaged: int
    """Lost with a damaged database."""
    refused: int
    """Never stored because of a disk error. These are not in `put`."""
    failures: int
    """Failed deliveries, which are retried."""
    waiting: int


class Outbox:
    """Keeps messages in the SQLite file at `path` until each sink of their pipeline has them. Thread-safe.

    Every message is delivered at least once, in the order of its pipeline, even if the process, the link or the power
    fails in between. Each sink has its own thread, so none waits for another. `may_send` says whether the current
    policy lets a message leave the device. A damaged database is moved aside and replaced. The messages of the
    pipelines `others`, which other programs run, stay. Raises `ConfigError` if two sinks have one name.
    """

    def __init__(
        self,
        path: Path,
        sinks: Mapping[str, Sequence[Sink]],
        limits: OutboxLimits,
        may_send: Callable[[Message], bool],
        others: Collection[str] = (),
    ) -> None:
        by_name = sinks_by_name(sinks)
        self._limits, self._may_send = limits, may_send
        self._names = _names(sinks)
        self._database = OutboxDatabase(path, self._names, _shown(by_name), limits, others)
        self._relays = {name: self._relay(sink) for name, sink in by_name.items()}

    def change(self, sinks: Mapping[str, Sequence[Sink]]) -> None:
        """Have these sinks from now on, by pipeline; existing ones go on undisturbed.

        `end` a sink before another takes its name. Messages that wait for a removed pipeline or sink are dropped.
        Call it from one thread at a time. Raises `ConfigError` if two sinks have one name, and then changes nothing.
        """
        by_name = sinks_by_name(sinks)
        self._names = _names(sinks)
        self.end([name for name in self._relays if name not in by_name])
        for name, relay in self._relays.items():
            relay.serve([pipeline for pipeline in relay.pipelines if name in self._names.get(pipeline, ())])
        self._database.change(self._names, _shown(by_name))
        for relay in self._relays.values():
            relay.serve(self._pipelines_of(relay.sink.name))
        new = {name: self._relay(sink) for name, sink in by_name.items() if name not in self._relays}
        self._relays = {**self._relays, **new}

    def end(self, names: Sequence[str]) -> None:
        """Close the sinks of these names after the deliveries in progress. Their messages keep waiting."""
        ended = [self._relays[name] for name in names]
        self._relays = {name: relay for name, relay in self._relays.items() if name not in names}
        _end(ended)

    def _relay(self, sink: Sink) -> SinkRelay:
        return SinkRelay(self._database, sink, self._pipelines_of(sink.name), self._limits, self._may_send)

    def next_sequence(self, pipeline: str) -> int:
        """The number of the pipeline's next event. Numbers rise, also over restarts."""
        return self._database.next_sequence(pipeline)

    def put(self, messages: Sequence[Message]) -> bool:
        """Store these messages, in this order; they are on disk when this returns. Waits for the disk, never for a
        sink.

        All or none: if the disk refuses, they are counted as `refused` and the result is False.
        """
        try:
            self._database.ask(lambda store: store.add(messages, self._database.now_s()), durable=True)
        except OutboxUnavailable:
            for message in messages:
                self._database.count(self._names.get(message.pipeline, ()), "refused")
            return False
        for name in {name for message in messages for name in self._names.get(message.pipeline, ())}:
            relay = self._relays.get(name)  # it may be about to be opened
            if relay is not None:
                relay.wake()
        return True

    def last_sequences(self) -> Mapping[str, int]:
        """The sequence of the last stored event, by pipeline; empty if the disk cannot be read."""
        try:
            return self._database.ask(lambda store: store.last_sequences())
        except OutboxUnavailable:
            return {}

    def counts(self) -> Mapping[str, SinkCounts]:
        """The outcomes of the messages, by the name of the sink."""
        return {name: self._counts_of(name) for name in self._relays}

    def problems(self) -> list[str]:
        """What prevents storing or delivery of events. Names of sinks hold no credentials."""
        found = [self._database.problem, *(relay.problem for relay in self._relays.values())]
        return [one for one in found if one]

    def failing(self, names: Iterable[str]) -> list[str]:
        """Those of these sinks that could not take what they were given last."""
        return [name for name in names if self._relays[name].is_failing]

    def flush(self, timeout_s: float, names: Iterable[str] | None = None) -> bool:
        """Wait until nothing waits for any sink, or for those of `names`, or until the timeout; whether nothing
        does.
        """
        names = list(self._relays if names is None else names)
        with self._database.counted:
            return self._database.counted.wait_for(lambda: not any(map(self._database.waiting, names)), timeout_s)

    def close(self) -> None:
        """Stop delivering, and close the sinks and the database. Undelivered messages stay on disk. Harmless twice."""
        _end(self._relays.values())
        self._database.close()

    def _pipelines_of(self, name: str) -> list[str]:
        return [pipeline for pipeline, names in self._names.items() if name in names]

    def _counts_of(self, name: str) -> SinkCounts:
        with self._database.counted:
            counted = {field.name: self._database.count_of(name, field.name) for field in fields(SinkCounts)}
            return SinkCounts(**(counted | {"waiting": self._database.waiting(name)}))


def _end(relays: Collection[SinkRelay]) -> None:
    for relay in relays:
        relay.stop()
    until_s = time.monotonic() + _CLOSE_S
    for relay in relays:
        relay.join(max(0.0, until_s - time.monotonic()))


def sinks_by_name(sinks: Mapping[str, Sequence[Sink]]) -> dict[str, Sink]:
    """Each sink once. Raises `ConfigError`."""
    found: dict[str, Sink] = {}
    for pipeline, of_pipeline in sinks.items():
        names = [sink.name for sink in of_pipeline]
        for sink in of_pipeline:
            if found.setdefault(sink.name, sink) is not sink or names.count(sink.name) > 1:
                raise ConfigError.at(None, f"{sink.name} appears twice; expected different sinks", pipeline)
    return found


def _names(sinks: Mapping[str, Sequence[Sink]]) -> dict[str, list[str]]:
    return {pipeline: [sink.name for sink in of_pipeline] for pipeline, of_pipeline in sinks.items()}


def _shown(sinks: Mapping[str, Sink]) -> frozenset[str]:
    """The names of the sinks that get pictures."""
    return frozenset(name for name, sink in sinks.items() if not sink.leaves_device)
