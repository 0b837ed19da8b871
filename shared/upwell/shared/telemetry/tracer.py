"""Decides which requests are traced, and hands over what was recorded of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from upwell.shared.telemetry.trace import Attributes, Place, Span, Trace


class Delivery(Protocol):
    """What carries recorded requests to a collector, beside the requests."""

    @property
    def became(self) -> Mapping[str, int]:
        """How many recorded requests were `sent`, `dropped` (too many waited) and `failed` (the collector)."""
        ...

    def put(self, trace_id: str, spans: Sequence[Span]) -> None:
        """Take all spans of one request, its own first. Returns at once; from any thread."""
        ...

    def close(self) -> None:
        """Deliver what waits, for at most a few seconds. Calling it twice is harmless."""
        ...


class Tracer:
    """Records a share of the requests. Safe to use from many threads; close its delivery.

    Who calls decides for a request that is in a trace already, else `share`.
    """

    def __init__(self, share: float, delivery: Delivery, chance: Callable[[], float] = random.random) -> None:
        self.delivery = delivery
        self._share = share
        self._chance = chance

    def begin(self, traceparent: str, started_s: float) -> Trace | None:
        """The trace of a request that began at `started_s` (monotonic); None where it is not recorded."""
        caller = Place.parse(traceparent) if traceparent else None
        if caller.is_sampled if caller is not None else self._chance() < self._share:
            return Trace.begin(caller, started_s)
        return None

    def end(self, trace: Trace, name: str, attributes: Attributes, error: str = "") -> None:
        """The request has ended now: have it delivered. Returns at once."""
        self.delivery.put(trace.root.trace_id, trace.end(name, attributes, error))
