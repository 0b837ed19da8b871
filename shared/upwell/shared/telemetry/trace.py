"""One request that is traced: its place in the caller's trace, and the spans that it was made of.

Knows nothing of who collects traces (`telemetry.otlp`), so that a request that is not traced costs one look at a None.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

Attributes: TypeAlias = Mapping[str, bool | int | float | str]

_NONE: Attributes = MappingProxyType({})
_LONGEST = 512
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII
)


@dataclass(frozen=True)
class Place:
    """A span as others refer to it: 32 and 16 lower-case hexadecimal digits, and whether the trace is recorded."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def unrecorded(cls) -> Place:
        """A new one, so that nobody further on records a part of what is not recorded here."""
        return cls(_new_trace_id(), _new_span_id(), False)

    @classmethod
    def parse(cls, traceparent: str) -> Place | None:
        """Read a `traceparent` (W3C Trace Context, version 00 and what later ones keep of it); None if it is none."""
        found = _TRACEPARENT.fullmatch(traceparent) if 0 < len(traceparent) <= _LONGEST else None
        if found is None or (found[1] == "00" and found[5]):
            return None
        return cls(found[2], found[3], bool(int(found[4], 16) & 1))

    def __str__(self) -> str:
        """As a `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


@dataclass(frozen=True)
class Span:
    """A part of a request: instants of the monotonic clock, and where something failed, what.

    `is_call` says that it waited for another process, which may have spans of its own below it. `links` are spans of
    other requests that it was done together with.
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
    """A request under way that is recorded. `root` is its own span here, `parent_id` the caller's (empty: none).

    Parts are added once they have ended, by whatever thread did them, before the request itself ends.
    """

    root: Place
    parent_id: str
    started_s: float
    spans: list[Span] = field(default_factory=list)

    @classmethod
    def begin(cls, caller: Place | None, started_s: float) -> Trace:
        """For a request that came from a span of its caller, or is the first of its trace."""
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
        """A part that has ended, now or at `ended_s`."""
        until_s = time.monotonic() if ended_s is None else ended_s
        span = Span(name, _new_span_id(), self.root.span_id, started_s, until_s, attributes, error, links=links)
        self.spans.append(span)

    def calling(self) -> Place:
        """The place of a call to another process, to be told to it now and to be added once it has ended."""
        return Place(self.root.trace_id, _new_span_id(), True)

    def called(
        self, name: str, place: Place, started_s: float, ended_s: float, attributes: Attributes, error: str
    ) -> None:
        """Such a call has ended."""
        self.spans.append(
            Span(name, place.span_id, self.root.span_id, started_s, ended_s, attributes, error, is_call=True)
        )

    def end(self, name: str, attributes: Attributes, error: str = "") -> Sequence[Span]:
        """The request has ended: its own span, and its parts."""
        root = Span(name, self.root.span_id, self.parent_id, self.started_s, time.monotonic(), attributes, error)
        return (root, *self.spans)


def _new_trace_id() -> str:
    """Never zero, which would be none."""
    return f"{random.getrandbits(128) | 1:032x}"


def _new_span_id() -> str:
    """Never zero, which would be none."""
    return f"{random.getrandbits(64) | 1:016x}"
