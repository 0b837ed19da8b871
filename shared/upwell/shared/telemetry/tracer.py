"""Decides which requests are traced, and has what was recorded of them delivered beside the requests."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.telemetry.trace import Attributes, Place, Span, Trace

MAX_WAITING = 1024
"""Requests whose spans may wait to be delivered; one more is dropped."""

THREAD = "upwell-traces"
"""The thread that delivers."""

_EVERY_S = 1.0
_CLOSE_S = 3.0
_BATCH = 128

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recorded:
    """All spans of one request, its own first."""

    trace_id: str
    spans: Sequence[Span]


class Exporter(Protocol):
    """What carries spans to a collector."""

    def send(self, batch: Sequence[Recorded]) -> bool:
        """Whether they were taken; may last seconds."""
        ...

    def stop(self) -> None:
        """Break off what `send` waits for, if it can. From any thread."""
        ...


class Tracer:
    """Records a share of the requests. Safe to use from many threads; close it.

    Who calls decides for a request that is in a trace already, else `share`. What was recorded waits in a bounded
    queue for a thread of the tracer's own: a collector that is slow or gone costs no request anything, only its spans.
    """

    def __init__(
        self,
        share: float,
        exporter: Exporter,
        chance: Callable[[], float] = random.random,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._share = share
        self._exporter = exporter
        self._chance = chance
        self._max_waiting = max_waiting
        self._waiting: deque[Recorded] = deque()
        self._became: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = BackgroundThread(THREAD, self._deliver, self._closing.is_set)
        self._thread.start()

    def begin(self, traceparent: str, started_s: float) -> Trace | None:
        """The trace of a request that began at `started_s` (monotonic); None where it is not recorded."""
        caller = Place.parse(traceparent) if traceparent else None
        if caller.is_sampled if caller is not None else self._chance() < self._share:
            return Trace.begin(caller, started_s)
        return None

    def end(self, trace: Trace, name: str, attributes: Attributes, error: str = "") -> None:
        """The request has ended now: have it delivered. Returns at once."""
        recorded = Recorded(trace.root.trace_id, trace.end(name, attributes, error))
        with self._lock:
            if len(self._waiting) >= self._max_waiting or self._closing.is_set():
                self._became["dropped"] += 1
            else:
                self._waiting.append(recorded)

    @property
    def became(self) -> Mapping[str, int]:
        """How many recorded requests were `sent`, `dropped` (too many waited) and `failed` (the collector)."""
        with self._lock:
            return dict(self._became)

    def close(self) -> None:
        """Deliver what waits, for at most a few seconds. Calling it twice is harmless."""
        self._closing.set()
        self._thread.join(_CLOSE_S)
        self._exporter.stop()

    def _deliver(self) -> None:
        works = True
        while True:
            ends = self._closing.wait(_EVERY_S)
            while batch := self._take():
                did, works = works, self._exporter.send(batch)
                with self._lock:
                    self._became["sent" if works else "failed"] += len(batch)
                if did and not works:
                    _log.warning("traces cannot be delivered; they are dropped until the collector takes them again")
                elif works and not did:
                    _log.info("traces are delivered again")
                if self._closing.is_set() and not works:
                    return
            if ends:
                return

    def _take(self) -> list[Recorded]:
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
