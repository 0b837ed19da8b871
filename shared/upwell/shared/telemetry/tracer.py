"""Decides which requests are traced, and passes their spans on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from upwell.shared.telemetry.trace import Attributes, Place, Span, Trace


class Delivery(Protocol):
    """Sends recorded requests to a collector, off the request path."""

    @property
    def became(self) -> Mapping[str, int]:
        """Numbers of recorded requests that were `sent`, `dropped` (queue full) and `failed` (collector)."""
        ...

    def put(self, trace_id: str, spans: Sequence[Span]) -> None:
        """Queue all spans of one request, the root first. Returns at once. Thread-safe."""
        ...

    def close(self) -> None:
        """Deliver what is queued, for a few seconds at most. May be called twice."""
        ...


class Tracer:
    """Records a share of the requests. Thread-safe. Closing it means closing its delivery.

    The caller decides for a request that already belongs to a trace, else `share` does.
    """

    def __init__(self, share: float, delivery: Delivery, chance: Callable[[], float] = random.random) -> None:
        self.delivery = delivery
        self._share = share
        self._chance = chance

    def begin(self, traceparent: str, started_s: float) -> Trace | None:
        """The trace of a request that began at `started_s` (monotonic); None if it is not recorded."""
        caller = Place.parse(traceparent) if traceparent else None
        if caller.is_sampled if caller is not None else self._chance() < self._share:
            return Trace.begin(caller, started_s)
        return None

    def end(self, trace: Trace, name: str, attributes: Attributes, error: str = "") -> None:
        """End the request now and queue its spans. Returns at once."""
        self.delivery.put(trace.root.trace_id, trace.end(name, attributes, error))
