"""The uplink as a queue: data that was sent and has not left yet delays the next message."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, NamedTuple

from upwell.shared.value_classes import value_class


@value_class
class InFlight:
    """One message in flight. `hoped_s` is the predicted time of the whole call when it was sent, `expected_s` the same
    without fading (NaN if unknown), `server_s` the cloud's own part. `has_left`: a later one was answered, so it has
    left."""

    call: str
    size_bytes: int
    sent_s: float
    expected_s: float = math.nan
    hoped_s: float = math.nan
    server_s: float = 0.0
    has_left: bool = False
    is_cancelled: bool = False


class Carried(NamedTuple):
    """A message as a sample of the link: `size_bytes` bytes took `network_s`, without the wait behind others."""

    size_bytes: int
    network_s: float


class _Place(NamedTuple):
    """A message in the queue: the busy period that it ends began at `start_s` and carries `size_bytes` in total."""

    message: InFlight
    start_s: float
    size_bytes: int
    begins_s: float
    ends_s: float


@value_class
class Backlog:
    """A virtual first-in-first-out queue before the link, as a value with time as an argument (Lindley's recursion,
    1952, doi 10.1017/S0305004100027638).

    States: `in_flight` in order of sending, and `left_s`, when the last byte known to have left had left. A message of
    x bytes sent at s leaves at max(s, when the one before left) + x·λ, for λ seconds per byte. An answer proves that
    its message and all before it have left. An overdue message bounds λ from below: the link is slower than estimated,
    but for now by no more than the factor `OVERDUE`, since the server may be slow instead. A cancelled message that had
    begun to leave keeps the link busy to its end; one that had not is gone.
    """

    OVERDUE: ClassVar[float] = 4.0
    LONGEST: ClassVar[int] = 64
    LONGEST_S: ClassVar[float] = 30.0

    in_flight: tuple[InFlight, ...] = ()
    left_s: float = -math.inf

    @property
    def is_idle(self) -> bool:
        """Whether no call in flight is waited for."""
        return all(message.is_cancelled for message in self.in_flight)

    def sent(self, message: InFlight, s_per_byte: float) -> Backlog:
        """With one more message. Cancelled ones that have left by now, and old ones, are forgotten."""
        now_s = message.sent_s
        gone = {place.message.call for place in self._places(s_per_byte) if place.ends_s <= now_s}
        kept = [
            known
            for known in self.in_flight
            if not (known.is_cancelled and known.call in gone) and now_s - known.sent_s <= self.LONGEST_S
        ]
        return Backlog((*kept[-self.LONGEST + 1 :], message), self.left_s)

    def find(self, call: str) -> InFlight | None:
        """The message of that call, None if it is not (or no longer) known."""
        return next((message for message in self.in_flight if message.call == call), None)

    def wait_s(self, now_s: float, s_per_byte: float, rtt_s: float) -> tuple[float, float]:
        """How long a message sent now waits for those before it, and the λ used, in seconds per byte.

        λ is `s_per_byte`, or more if messages in flight are overdue.
        """
        if not self.in_flight:
            return 0.0, s_per_byte
        seen = s_per_byte
        for place in self._places(s_per_byte):
            if place.size_bytes and not place.message.is_cancelled:
                elapsed_s = now_s - place.start_s - rtt_s - place.message.server_s
                seen = max(seen, elapsed_s / place.size_bytes)
        seen = min(seen, self.OVERDUE * s_per_byte)
        ends_s = [place.ends_s for place in self._places(seen)]
        return (max(0.0, ends_s[-1] - now_s) if ends_s else 0.0), seen

    def carried(self, call: str, done_s: float, s_per_byte: float) -> Carried | None:
        """The sample of the link from the message of `call`, complete at `done_s`; None if there is none.

        Messages that queued before it in one busy period count with it: all their bytes took the time since its
        beginning.
        """
        for place in self._places(s_per_byte):
            if place.message.call == call:
                return Carried(place.size_bytes, max(0.0, done_s - place.start_s))
        return None

    def without(self, call: str) -> Backlog:
        """Without the message of `call`, none of which is in flight any more."""
        return replace(self, in_flight=tuple(message for message in self.in_flight if message.call != call))

    def answered(self, call: str, left_s: float) -> Backlog:
        """Without the message of `call`, whose last byte left at about `left_s`; all sent before it left too."""
        index = next((index for index, message in enumerate(self.in_flight) if message.call == call), None)
        if index is None:
            return self
        if self.in_flight[index].has_left:
            return self.without(call)
        before = (replace(message, has_left=True) for message in self.in_flight[:index] if not message.is_cancelled)
        return Backlog((*before, *self.in_flight[index + 1 :]), max(self.left_s, left_s))

    def cancelled(self, call: str, now_s: float, s_per_byte: float, *, frees_link: bool = False) -> Backlog:
        """With the message of `call` cancelled: gone, unless it has begun to leave. With `frees_link` it ends now."""
        started = any(
            place.message.call == call and place.begins_s <= now_s < place.ends_s for place in self._places(s_per_byte)
        )
        if started and frees_link:
            return replace(self.without(call), left_s=now_s)
        in_flight = (
            replace(message, is_cancelled=True) if message.call == call else message
            for message in self.in_flight
            if started or message.call != call
        )
        return replace(self, in_flight=tuple(in_flight))

    def _places(self, s_per_byte: float) -> Iterator[_Place]:
        """The messages that may not have left, at λ = `s_per_byte`."""
        start_s, ends_s, size_bytes = -math.inf, self.left_s, 0
        for message in self.in_flight:
            if message.has_left:
                continue
            if ends_s <= message.sent_s or size_bytes == 0:  # the link was idle before it
                start_s, size_bytes = max(ends_s, message.sent_s), 0
                ends_s = start_s
            begins_s = ends_s
            size_bytes += message.size_bytes
            ends_s += message.size_bytes * s_per_byte
            yield _Place(message, start_s, size_bytes, begins_s, ends_s)
