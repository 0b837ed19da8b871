"""The outbox: what pipelines have to say is on disk before anybody is told, and told until it is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from upwell.pipelines.sinks.base import Message, Sink
from upwell.pipelines.sinks.journal import Journal, OutboxLimits, OutboxUnavailable
from upwell.pipelines.sinks.relay import SinkRelay
from upwell.shared.errors import ConfigError

_CLOSE_S = 5.0


@dataclass(frozen=True)
class SinkCounts:
    """What became of the messages for one sink, in numbers of messages since the process began.

    `resumed + put = waiting + delivered + denied + poisoned + dropped_size + dropped_age + damaged`.
    """

    resumed: int
    """Waited on disk at the start."""
    put: int
    delivered: int
    denied: int
    """Not sent, since the policy no longer let them leave."""
    poisoned: int
    """Set aside, since the sink can never take them."""
    dropped_size: int
    """The oldest, to make room; or too large for any outbox."""
    dropped_age: int
    damaged: int
    """Lost with a damaged database."""
    refused: int
    """Never kept, since the disk refused. These are not in `put`."""
    failures: int
    """Deliveries that the sink could not take, which are tried again."""
    waiting: int


class Outbox:
    """Keeps messages in the SQLite file at `path` until each sink of their pipeline has them. Safe from any thread.

    Every message is delivered at least once, in the order of its pipeline, whatever ends in between: the process, the
    link, the power. There is a thread for each sink, so that none waits for another. `may_send` says whether the policy
    of now lets a message leave the device. A damaged database is moved aside and begun anew. Raises `ConfigError` where
    two sinks have one name.
    """

    def __init__(
        self,
        path: Path,
        sinks: Mapping[str, Sequence[Sink]],
        limits: OutboxLimits,
        may_send: Callable[[Message], bool],
    ) -> None:
        by_name: dict[str, Sink] = {}
        for pipeline, of_pipeline in sinks.items():
            names = [sink.name for sink in of_pipeline]
            for sink in of_pipeline:
                if by_name.setdefault(sink.name, sink) is not sink or names.count(sink.name) > 1:
                    raise ConfigError.at(None, f"{sink.name} appears twice, and the two cannot be told apart", pipeline)
        self._names = {pipeline: [sink.name for sink in of_pipeline] for pipeline, of_pipeline in sinks.items()}
        self._journal = Journal(path, self._names, limits)
        self._relays = {
            name: SinkRelay(self._journal, sink, self._pipelines_of(name), limits, may_send)
            for name, sink in by_name.items()
        }

    def next_sequence(self, pipeline: str) -> int:
        """The number of the pipeline's next event. They rise, also over restarts."""
        return self._journal.next_sequence(pipeline)

    def put(self, messages: Sequence[Message]) -> None:
        """Keep these, in this order; they are on disk when this returns. Waits for the disk, and never for a sink.

        What the disk refuses is counted as `refused`, and raises nothing.
        """
        try:
            self._journal.ask(lambda store: store.add(messages, self._journal.now_s()), durable=True)
        except OutboxUnavailable:
            for message in messages:
                self._journal.count(self._names.get(message.pipeline, ()), "refused")
            return
        for name in {name for message in messages for name in self._names.get(message.pipeline, ())}:
            self._relays[name].wake()

    def counts(self) -> Mapping[str, SinkCounts]:
        """What became of the messages, by the name of the sink."""
        return {name: self._counts_of(name) for name in self._relays}

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing waits for any sink, or the time is up; whether nothing does."""
        with self._journal.counted:
            return self._journal.counted.wait_for(lambda: not any(map(self._journal.waiting, self._relays)), timeout_s)

    def close(self) -> None:
        """Deliver nothing more, and close the sinks and the database. What waits stays on disk. Harmless twice."""
        for relay in self._relays.values():
            relay.stop()
        until_s = time.monotonic() + _CLOSE_S
        for relay in self._relays.values():
            relay.join(max(0.0, until_s - time.monotonic()))
        self._journal.close()

    def _pipelines_of(self, name: str) -> list[str]:
        return [pipeline for pipeline, names in self._names.items() if name in names]

    def _counts_of(self, name: str) -> SinkCounts:
        with self._journal.counted:
            counted = {field.name: self._journal.count_of(name, field.name) for field in fields(SinkCounts)}
            return SinkCounts(**(counted | {"waiting": self._journal.waiting(name)}))
