"""What the streams of a server may take of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamLimits:
    """What streams may take of a server. A stream that ends for one of the times may be opened again at once.

    Of the `streams` each has one request answered at a time, and the next one is read meanwhile. Where answers take
    longer than `quick_s`, up to `ahead` are under way, each in a thread of its own, of which all streams together have
    `helpers` beside the first of each. What is not answered yet counts, until the client has taken the answer: one
    that reads slowly cannot pile answers up. `idle_s`: without a request. `stall_s`: an answer that the client does
    not take. `age_s`: for what a caller may do is found out when its stream opens. `spare_s`: silent for so long, it
    may have to make room for another one.
    """

    streams: int = 64
    ahead: int = 16
    helpers: int = 64
    quick_s: float = 0.001
    idle_s: float = 300.0
    stall_s: float = 60.0
    age_s: float = 3600.0
    spare_s: float = 1.0

    @property
    def threads(self) -> int:
        """How many there may have to be: one that waits for a request of each stream, and one for each under way."""
        return 2 * self.streams + self.helpers
