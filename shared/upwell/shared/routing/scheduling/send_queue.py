"""Messages that wait for the link, in order of gain per byte; an immutable value."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from dataclasses import replace

from upwell.shared.value_classes import value_class


@value_class
class QueuedMessage:
    """A message of `rows` rows that has not been sent, with the name of its call.

    `gain` is what it is worth that it goes up, for each row from 0 to 1, infinite where nobody else answers it. It is
    of no use after `give_up_s`, nor if it is less likely in time than `needed` (NaN where the most likely time counts).
    `model` is what the router knows the model up there by, `interface` the network interface that it goes over.
    """

    call: str
    model: str
    rows: int
    size_bytes: int
    gain: float
    needed: float
    give_up_s: float
    interface: str = ""

    @property
    def order(self) -> tuple[float, float]:
        """Most gain per byte first; among equals the earliest due."""
        return -self.gain / max(1, self.size_bytes), self.give_up_s


@value_class
class SendQueue:
    """The sender's queue of one uplink, in the order in which messages may go.

    A message takes link time from others, so the most gain per byte goes first: the greedy rule for a knapsack (Dantzig
    1957, doi 10.1287/opre.5.2.266), here of the bytes that the link carries by the deadlines.
    """

    waiting: tuple[QueuedMessage, ...] = ()

    @property
    def first(self) -> str | None:
        """The call of the next message."""
        return self.waiting[0].call if self.waiting else None

    def joined(self, message: QueuedMessage) -> SendQueue:
        """With one more message, behind those of equal worth."""
        waiting = list(self.waiting)
        insort(waiting, message, key=lambda one: one.order)
        return SendQueue(tuple(waiting))

    def without(self, call: str) -> SendQueue:
        """Without the message of that call, which was sent or is no longer needed."""
        return replace(self, waiting=tuple(one for one in self.waiting if one.call != call))

    def has(self, call: str) -> bool:
        """Whether the message of that call waits."""
        return any(one.call == call for one in self.waiting)

    def before(self, message: QueuedMessage, now_s: float) -> tuple[QueuedMessage, ...]:
        """The messages before this one, which may be in the queue itself; late ones are left out."""
        places = (place for place, one in enumerate(self.waiting) if one.call == message.call)
        place = next(places, bisect_right(self.waiting, message.order, key=lambda one: one.order))
        return tuple(one for one in self.waiting[:place] if now_s < one.give_up_s)

    @property
    def owed_bytes(self) -> int:
        """Bytes of the messages that only the cloud can answer."""
        return sum(one.size_bytes for one in self.waiting if one.gain == math.inf)
