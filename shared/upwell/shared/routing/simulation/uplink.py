"""The simulated link and cloud: one queue up, no limit down, a cloud that is never busy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.simulation.capacity import Capacity
from upwell.shared.routing.simulation.kernel import Event, Kernel
from upwell.shared.routing.simulation.requests import LoggedRequest


@dataclass(frozen=True, slots=True)
class CloudBehaviour:
    """The cloud's reaction to one message: an answer after `cloud_s`, or then a failure with a reason. Infinite:
    none."""

    cloud_s: float
    failure: Reason | None = None


CloudScript: TypeAlias = Callable[[LoggedRequest, int], CloudBehaviour]
"""The cloud's reaction to a request's message, by its number from 0."""


def as_logged(request: LoggedRequest, _: int) -> CloudBehaviour:
    """The cloud answers as the log says."""
    return CloudBehaviour(request.cloud_s)


def _nobody() -> None:
    pass


@dataclass(slots=True, eq=False)
class SimulatedCall:
    """One message up and its reply. `total_s` is the time from sending to the reply, NaN before."""

    size_bytes: int
    behaviour: CloudBehaviour
    sent_s: float
    on_end: Callable[[], None]
    began: bool = False
    total_s: float = math.nan
    answered: Event = field(default_factory=Event)

    @property
    def cloud_s(self) -> float:
        """The cloud's part of the time."""
        return self.behaviour.cloud_s

    @property
    def ended(self) -> bool:
        """Whether the cloud has answered or failed."""
        return self.answered.is_set


class Queue:
    """A first-in-first-out queue over a capacity, as arithmetic."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._free_bytes = 0.0

    def begins_s(self, queued_s: float, size_bytes: int) -> float:
        """When the first packet of a message queued at `queued_s` leaves, if it is the next."""
        first_bytes = min(self._capacity.quantum_bytes, max(1, size_bytes))
        return self._capacity.reached_s(self._start_bytes(queued_s) + first_bytes)

    def ends_s(self, queued_s: float, size_bytes: int) -> float:
        """When its last packet leaves, if it is the next."""
        return self._capacity.reached_s(self._start_bytes(queued_s) + max(1, size_bytes))

    def take(self, queued_s: float, size_bytes: int) -> None:
        """Send it completely."""
        packets = math.ceil(max(1, size_bytes) / self._capacity.quantum_bytes)
        self._free_bytes = self._start_bytes(queued_s) + packets * self._capacity.quantum_bytes

    def _start_bytes(self, queued_s: float) -> float:
        return max(self._free_bytes, self._capacity.offered_bytes(queued_s))


class SimulatedUplink:
    """The cloud has a message half a round trip after it has left; then it takes its time, and the reply the other
    half.

    A message is sent completely before the next one begins. A cancelled one leaves the queue if nothing of it has left,
    and is otherwise sent to its end. The connection stays up: no handshakes, no failures, only delays.
    """

    def __init__(self, kernel: Kernel, capacity: Capacity, rtt_s: float) -> None:
        self._kernel = kernel
        self._queue = Queue(capacity)
        self._rtt_s = rtt_s
        self._waiting: list[SimulatedCall] = []

    def send(self, size_bytes: int, behaviour: CloudBehaviour, on_end: Callable[[], None] = _nobody) -> SimulatedCall:
        """Queue a message; `on_end` is called once the cloud has answered or failed."""
        call = SimulatedCall(size_bytes, behaviour, self._kernel.now_s, on_end)
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._await_begin()
        return call

    def give_up(self, call: SimulatedCall) -> None:
        """Cancel this call."""
        if call in self._waiting:
            was_next = self._waiting[0] is call
            self._waiting.remove(call)
            if was_next:
                self._await_begin()

    def _await_begin(self) -> None:
        if self._waiting:
            call = self._waiting[0]
            self._kernel.call(self._queue.begins_s(call.sent_s, call.size_bytes), lambda: self._begin(call))

    def _begin(self, call: SimulatedCall) -> None:
        if not self._waiting or self._waiting[0] is not call or call.began:
            return  # cancelled meanwhile
        del self._waiting[0]
        call.began = True
        ends_s = self._queue.ends_s(call.sent_s, call.size_bytes)
        self._queue.take(call.sent_s, call.size_bytes)
        self._kernel.call(ends_s + self._rtt_s + call.cloud_s, lambda: self._answer(call))
        self._await_begin()

    def _answer(self, call: SimulatedCall) -> None:
        call.total_s = self._kernel.now_s - call.sent_s
        self._kernel.fire(call.answered)
        call.on_end()
