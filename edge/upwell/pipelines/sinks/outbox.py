"""The outbox: events are on disk before any sink gets them, and stay until each sink has accepted them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from upwell.pipelines.sinks.base import Message, Sink
from upwell.pipelines.sinks.outbox_journal import Journal, OutboxLimits, OutboxUnavailable
from upwell.pipelines.sinks.sink_relay import SinkRelay
from upwell.shared.errors import ConfigError

_CLOSE_S = 2.0
"""How long shutdown waits for deliveries in progress; less than their own timeout for a silent broker."""


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
    """Dropped because their pipeline or sink was removed from the file."""
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
    policy lets a message leave the device. A damaged database is moved aside and replaced. Raises `ConfigError` if
    two sinks have one name.
    """

    def __init__(
        self,
        path: Path,
        sinks: Mapping[str, Sequence[Sink]],
        limits: OutboxLimits,
        may_send: Callable[[Message], bool],
    ) -> None:
        by_name = _by_name(sinks)
        self._limits, self._may_send = limits, may_send
        self._names = _names(sinks)
        self._journal = Journal(path, self._names, limits)
        self._relays = {name: self._relay(sink) for name, sink in by_name.items()}

    def change(self, sinks: Mapping[str, Sequence[Sink]]) -> None:
        """Have these sinks from now on, by pipeline; existing ones go on undisturbed.

        `end` a sink before another takes its name. Messages that wait for a removed pipeline or sink are dropped.
        Call it from one thread at a time. Raises `ConfigError` if two sinks have one name, and then changes nothing.
        """
        by_name = _by_name(sinks)
        self._names = _names(sinks)
        self.end([name for name in self._relays if name not in by_name])
        for name, relay in self._relays.items():
            relay.serve([pipeline for pipeline in relay.pipelines if name in self._names.get(pipeline, ())])
        self._journal.change(self._names)
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
        return SinkRelay(self._journal, sink, self._pipelines_of(sink.name), self._limits, self._may_send)

    def next_sequence(self, pipeline: str) -> int:
        """The number of the pipeline's next event. Numbers rise, also over restarts."""
        return self._journal.next_sequence(pipeline)

    def put(self, messages: Sequence[Message]) -> bool:
        """Store these messages, in this order; they are on disk when this returns. Waits for the disk, never for a
        sink.

        All or none: if the disk refuses, they are counted as `refused` and the result is False.
        """
        try:
            self._journal.ask(lambda store: store.add(messages, self._journal.now_s()), durable=True)
        except OutboxUnavailable:
            for message in messages:
                self._journal.count(self._names.get(message.pipeline, ()), "refused")
            return False
        for name in {name for message in messages for name in self._names.get(message.pipeline, ())}:
            relay = self._relays.get(name)  # it may be about to be opened
            if relay is not None:
                relay.wake()
        return True

    def last_sequences(self) -> Mapping[str, int]:
        """The sequence of the last stored event, by pipeline; empty if the disk cannot be read."""
        try:
            return self._journal.ask(lambda store: store.last_sequences())
        except OutboxUnavailable:
            return {}

    def counts(self) -> Mapping[str, SinkCounts]:
        """The outcomes of the messages, by the name of the sink."""
        return {name: self._counts_of(name) for name in self._relays}

    def problems(self) -> list[str]:
        """What prevents storing or delivery of events. Names of sinks hold no credentials."""
        found = [self._journal.problem, *(relay.problem for relay in self._relays.values())]
        return [one for one in found if one]

    def flush(self, timeout_s: float, names: Iterable[str] | None = None) -> bool:
        """Wait until nothing waits for any sink, or for those of `names`, or until the timeout; whether nothing
        does.
        """
        names = list(self._relays if names is None else names)
        with self._journal.counted:
            return self._journal.counted.wait_for(lambda: not any(map(self._journal.waiting, names)), timeout_s)

    def close(self) -> None:
        """Stop delivering, and close the sinks and the database. Undelivered messages stay on disk. Harmless twice."""
        _end(self._relays.values())
        self._journal.close()

    def _pipelines_of(self, name: str) -> list[str]:
        return [pipeline for pipeline, names in self._names.items() if name in names]

    def _counts_of(self, name: str) -> SinkCounts:
        with self._journal.counted:
            counted = {field.name: self._journal.count_of(name, field.name) for field in fields(SinkCounts)}
            return SinkCounts(**(counted | {"waiting": self._journal.waiting(name)}))


def _end(relays: Collection[SinkRelay]) -> None:
    for relay in relays:
        relay.stop()
    until_s = time.monotonic() + _CLOSE_S
    for relay in relays:
        relay.join(max(0.0, until_s - time.monotonic()))


def _by_name(sinks: Mapping[str, Sequence[Sink]]) -> dict[str, Sink]:
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
