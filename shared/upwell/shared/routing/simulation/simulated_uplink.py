"""The simulated link and cloud: one queue up, no limit down, a cloud that is never busy; empty calls keep the link
estimate fresh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeAlias

from upwell.shared.routing.decide.router_state import LinkProbed
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.simulation.link_capacity import Capacity
from upwell.shared.routing.simulation.logged_requests import LoggedRequest
from upwell.shared.routing.simulation.simulated_router import Pilot
from upwell.shared.routing.simulation.simulated_time import Event, Kernel, Process


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


class SimulatedProber:
    """Times an empty call after `STALE_S` without news, or after a late call for `RETRY_S`.

    Only while requests come that may be offloaded: none for `SEEN_S`, no probe. The bytes of probes are not counted.
    """

    STALE_S: ClassVar[float] = 1.5
    RETRY_S: ClassVar[float] = 0.5
    SEEN_S: ClassVar[float] = 10.0
    TIMEOUT_S: ClassVar[float] = 2.0
    SIZE_BYTES: ClassVar[int] = 100

    def __init__(self, kernel: Kernel, uplink: SimulatedUplink, pilot: Pilot) -> None:
        self._kernel, self._uplink, self._pilot = kernel, uplink, pilot
        self._heard_at_s = -math.inf
        self._seen_at_s = -math.inf

    def note_candidate(self) -> None:
        """A request came that may be offloaded."""
        self._seen_at_s = self._kernel.now_s

    def note_answer(self) -> None:
        """The cloud answered."""
        self._heard(self.STALE_S)

    def note_late(self) -> None:
        """The cloud was late: it, or the link, may be back soon."""
        self._heard(self.RETRY_S)

    def note_failure(self) -> None:
        """The cloud failed: the breaker finds out whether it is back."""
        self._heard_at_s = -math.inf

    def _heard(self, quiet_s: float) -> None:
        self._heard_at_s = now_s = self._kernel.now_s
        self._kernel.call(now_s + quiet_s, partial(self._look, now_s))

    def _look(self, heard_at_s: float) -> None:
        now_s = self._kernel.now_s
        if self._heard_at_s == heard_at_s and now_s - self._seen_at_s < self.SEEN_S:
            self._kernel.start(now_s, self._probe())

    def _probe(self) -> Process[None]:
        call = self._uplink.send(self.SIZE_BYTES, CloudBehaviour(0.0))
        yield call.answered, self._kernel.now_s + self.TIMEOUT_S
        if call.answered.is_set:
            self._pilot.observe(LinkProbed(call.total_s))
            self.note_answer()
        else:
            self._uplink.give_up(call)
            self.note_late()
