"""Which endpoint is in use, and when another one takes its place."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from upwell.shared.routing.reasons import Reason
from upwell.shared.value_classes import value_class

FAIL_OVER_AT_ONCE = frozenset({Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_CERTIFICATE, Reason.CLOUD_UNAUTHENTICATED})
"""Failures of the endpoint itself: the next call goes to another. A late answer may be due to a short deadline, so it
takes `EndpointSelector.LATE` of them in a row.
"""


@value_class
class EndpointSelector:
    """The endpoint in use among `count`, by its place, and when to try the preferred ones again. A value; time is an
    argument.

    After a failure the next place is used, the first after the last, and kept. While any but the first is in use,
    those before it are tried again after `wait_s`. That starts at `FIRST_WAIT_S` and doubles with each try up to
    `LONGEST_WAIT_S`, even if the try succeeds: an endpoint that reports ready and then fails again is tried less and
    less often, until an answer comes from the first place.
    """

    LATE: ClassVar[int] = 3
    FIRST_WAIT_S: ClassVar[float] = 1.0
    LONGEST_WAIT_S: ClassVar[float] = 30.0

    count: int
    place: int = 0
    late: int = 0
    wait_s: float = FIRST_WAIT_S
    try_at_s: float = 0.0

    def answered(self, place: int) -> EndpointSelector:
        """The state after an answer from `place`."""
        if place != self.place:
            return self
        return replace(self, late=0, wait_s=self.wait_s if place else self.FIRST_WAIT_S)

    def missed(self, place: int, reason: Reason, now_s: float) -> EndpointSelector:
        """The state after a failure at `place`; a call sent before the last move changes nothing."""
        if self.count == 1 or place != self.place:
            return self
        late = self.late + 1 if reason is Reason.CLOUD_DEADLINE else 0
        if reason not in FAIL_OVER_AT_ONCE and late < self.LATE:
            return replace(self, late=late)
        return replace(self, place=(place + 1) % self.count, late=0, try_at_s=now_s + self.wait_s)

    def tried(self, better: int | None, now_s: float) -> EndpointSelector:
        """The state after a try of the preferred places: `better` is the first that is ready, or None."""
        wait_s = min(self.LONGEST_WAIT_S, self.wait_s * 2)
        place = self.place if better is None else min(better, self.place)
        return replace(self, place=place, late=0, wait_s=wait_s, try_at_s=now_s + wait_s)

    def after(self, place: int) -> int:
        """A place other than `place`, if there is one: the one in use, or the next."""
        return self.place if place != self.place else (place + 1) % self.count
