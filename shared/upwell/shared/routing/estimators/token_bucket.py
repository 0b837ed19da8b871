"""The token bucket: how much may pass in the long run, and how much at once. The clock is the caller's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from upwell.shared.values import quick


@dataclass(frozen=True)
class Refill:
    """What comes into a bucket: `per_s` (requests or bytes per second), up to `most`."""

    per_s: float
    most: float


@quick
@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A token bucket (ITU-T I.371's leaky bucket as a meter, seen from the other side); full where it says nothing.

    level(t + dt) = min(most, level(t) + per_s * dt). What is taken is subtracted, even below zero: who lets a request
    larger than the bucket pass once it has filled lets those after it wait until the debt is paid. So over any span of
    dt at most `most + per_s * dt` is taken, and one request more. Instants are seconds of one monotonic clock.
    """

    level: float = math.inf
    at_s: float = -math.inf

    def refilled(self, refill: Refill, now_s: float) -> TokenBucket:
        """As it is at `now_s`; an instant before the last counts as that one."""
        came = refill.per_s * max(0.0, now_s - self.at_s)
        return TokenBucket(min(refill.most, self.level + came), max(now_s, self.at_s))

    def wait_s(self, least: float, refill: Refill) -> float:
        """The seconds until the level is `least` (at most the refill's `most`); 0 where it is that now."""
        return max(0.0, (least - self.level) / refill.per_s)

    def take(self, amount: float = 1.0) -> TokenBucket:
        """With so much less, whatever the level is."""
        return TokenBucket(self.level - amount, self.at_s)

    def give(self, amount: float = 1.0, most: float = math.inf) -> TokenBucket:
        """With so much more than what came by itself, up to `most`."""
        return TokenBucket(min(most, self.level + amount), self.at_s)
