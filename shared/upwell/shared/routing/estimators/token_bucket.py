"""The token bucket: limits the long-term rate and the burst. The clock is the caller's."""

from __future__ import annotations

import math

from upwell.shared.value_classes import value_class


@value_class
class Refill:
    """The refill of a bucket: `per_s` (requests or bytes per second), up to `most`."""

    per_s: float
    most: float


@value_class
class TokenBucket:
    """A token bucket (ITU-T I.371's leaky bucket as a meter, inverted); full by default.

    level(t + dt) = min(most, level(t) + per_s * dt). What is taken is subtracted, even below zero: if a request larger
    than the bucket passes once it is full, later ones wait until the debt is paid. So within any dt at most `most +
    per_s * dt` is taken, plus one request. Times are seconds of one monotonic clock.
    """

    level: float = math.inf
    at_s: float = -math.inf

    def refilled(self, refill: Refill, now_s: float) -> TokenBucket:
        """The bucket at `now_s`; a time before the last one counts as that."""
        came = refill.per_s * max(0.0, now_s - self.at_s)
        return TokenBucket(min(refill.most, self.level + came), max(now_s, self.at_s))

    def wait_s(self, least: float, refill: Refill) -> float:
        """Seconds until the level is `least` (at most the refill's `most`); 0 if it is already."""
        return max(0.0, (least - self.level) / refill.per_s)

    def take(self, amount: float = 1.0) -> TokenBucket:
        """With `amount` less, whatever the level is."""
        return TokenBucket(self.level - amount, self.at_s)

    def give(self, amount: float = 1.0, most: float = math.inf) -> TokenBucket:
        """With `amount` more, up to `most`."""
        return TokenBucket(min(most, self.level + amount), self.at_s)
