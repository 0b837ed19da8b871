"""Which requests are traced; a traced request: its place in the caller's trace, and its spans.

It does not know the collector (`otlp`), so a request that is not traced costs one check for None.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeAlias

from upwell.shared.value_classes import value_class

Attributes: TypeAlias = Mapping[str, bool | int | float | str]

_NONE: Attributes = MappingProxyType({})
_LONGEST = 512
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)


@value_class
class Place:
    """The identity of a span: 32 and 16 lower-case hexadecimal digits, and whether the trace is recorded."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def unrecorded(cls) -> Place:
        """A new place that is not recorded, so that services further on do not record parts of a trace."""
        return cls(_new_trace_id(), _new_span_id(), False)

    @classmethod
    def parse(cls, traceparent: str) -> Place | None:
        """Parse a `traceparent` (W3C Trace Context, version 00 or later); None if it is invalid."""
        found = _TRACEPARENT.fullmatch(traceparent) if 0 < len(traceparent) <= _LONGEST else None
        if found is None or (found[1] == "00" and found[5]):
            return None
        return cls(found[2], found[3], bool(int(found[4], 16) & 1))

    def __str__(self) -> str:
        """As a `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


@value_class
class Span:
    """A part of a request: times of the monotonic clock, and the error if it failed.

    `is_call` says that it waited for another process, which may have spans below it. `links` are spans of other
    requests that were handled together with it.
    """

    name: str
    span_id: str
    parent_id: str
    started_s: float
    ended_s: float
    attributes: Attributes = field(default_factory=dict)
    error: str = ""
    is_call: bool = False
    links: Sequence[Place] = ()


@dataclass(eq=False)
class Trace:
    """A request in progress that is recorded. `root` is its own span, `parent_id` the caller's ("" if none).

    Parts are added when they have ended, by the threads that did them, before the request ends.
    """

    root: Place
    parent_id: str
    started_s: float
    spans: list[Span] = field(default_factory=list)

    @classmethod
    def begin(cls, caller: Place | None, started_s: float) -> Trace:
        """A trace for a request with a caller's span, or the first of a new trace."""
        trace_id = caller.trace_id if caller else _new_trace_id()
        return cls(Place(trace_id, _new_span_id(), True), caller.span_id if caller else "", started_s)

    def add(
        self,
        name: str,
        started_s: float,
        ended_s: float | None = None,
        attributes: Attributes = _NONE,
        *,
        error: str = "",
        links: Sequence[Place] = (),
    ) -> None:
        """Add a part that has ended, now or at `ended_s`."""
        until_s = time.monotonic() if ended_s is None else ended_s
        span = Span(name, _new_span_id(), self.root.span_id, started_s, until_s, attributes, error, links=links)
        self.spans.append(span)

    def calling(self) -> Place:
        """The place of a call to another process: pass it on now, add it when the call has ended."""
        return Place(self.root.trace_id, _new_span_id(), True)

    def called(
        self, name: str, place: Place, started_s: float, ended_s: float, attributes: Attributes, error: str
    ) -> None:
        """Add a call that has ended."""
        self.spans.append(
            Span(name, place.span_id, self.root.span_id, started_s, ended_s, attributes, error, is_call=True)
        )

    def end(self, name: str, attributes: Attributes, error: str = "") -> Sequence[Span]:
        """End the request; returns its own span and its parts."""
        root = Span(name, self.root.span_id, self.parent_id, self.started_s, time.monotonic(), attributes, error)
        return (root, *self.spans)


def _new_trace_id() -> str:
    """A random trace ID; never zero, which would be invalid."""
    return f"{random.getrandbits(128) | 1:032x}"


def _new_span_id() -> str:
    """A random span ID; never zero, which would be invalid."""
    return f"{random.getrandbits(64) | 1:016x}"


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
