"""Token buckets: how much may pass in the long run, and how much at once. The clock is the caller's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refill:
    """What comes into a bucket: `per_s` (requests or bytes per second), up to `most`."""

    per_s: float
    most: float


class Bucket:
    """A token bucket (ITU-T I.371's leaky bucket as a meter, seen from the other side).

    level(t + dt) = min(most, level(t) + per_s * dt), full at the start. What is taken is subtracted, even below zero:
    a request larger than the bucket passes once it has filled, and those after it wait until the debt is
    paid. So over any span of dt at most `most + per_s * dt` is taken, and one request more.

    Not safe for several threads; instants are seconds of one monotonic clock, and one before the last counts as it.
    """

    __slots__ = ("_at_s", "_level", "_refill")

    def __init__(self, refill: Refill, now_s: float) -> None:
        self._refill = refill
        self._level = refill.most
        self._at_s = now_s

    def wait_s(self, least: float, now_s: float) -> float:
        """The seconds until the level is `least` (at most the refill's `most`); 0 where it is that now."""
        return max(0.0, (least - self._level_at(now_s)) / self._refill.per_s)

    def take(self, amount: float, now_s: float) -> None:
        """Take so much, whatever the level is."""
        self._level = self._level_at(now_s) - amount

    def _level_at(self, now_s: float) -> float:
        if now_s > self._at_s:
            self._level = min(self._refill.most, self._level + self._refill.per_s * (now_s - self._at_s))
            self._at_s = now_s
        return self._level
