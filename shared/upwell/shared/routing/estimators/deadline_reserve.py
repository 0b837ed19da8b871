"""The time kept back before a deadline for the steps after the wait for the cloud."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from upwell.shared.value_classes import value_class

LEAST_S = 0.002
"""What is kept back at the least."""


def reserve_s(available_s: float) -> float:
    """Time kept back for merging, encoding and the way to the caller (seconds).

    A tenth of the available time, between 2 ms and 25 ms.
    """
    return min(0.025, max(LEAST_S, available_s * 0.1))


@value_class
class Overruns:
    """How long after the end of the wait for the cloud answers were complete, in seconds; an immutable value.

    Where the device's answer is in hand, all that is left to do then is to wake up, merge and encode. On most devices
    that takes a fraction of the reserve, and the rest is time that the cloud could have used: so once `ENOUGH` answers
    were seen, `TIMES` the slowest of the last `WINDOW` is kept back, never more than `reserve_s` and never less than
    its least, which is for the way to the caller.
    """

    WINDOW: ClassVar[int] = 256
    ENOUGH: ClassVar[int] = 20
    TIMES: ClassVar[float] = 2.0

    recent_s: tuple[float, ...] = ()
    slowest_s: float = 0.0

    def add(self, overrun_s: float) -> Overruns:
        """With one more answer."""
        recent_s = (*self.recent_s, overrun_s)[-self.WINDOW :]
        return replace(self, recent_s=recent_s, slowest_s=max(recent_s))

    def reserve_s(self, available_s: float) -> float:
        """The time to keep back of `available_s`."""
        most_s = reserve_s(available_s)
        if len(self.recent_s) < self.ENOUGH:
            return most_s
        return min(most_s, max(LEAST_S, self.TIMES * self.slowest_s))
