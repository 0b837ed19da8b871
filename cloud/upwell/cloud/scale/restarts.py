"""When a worker that died is started again, and when that makes no sense any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Restarts:
    """The deaths of one worker in a row: a value, time is an argument.

    The k-th death in a row is followed by a wait of `FIRST_WAIT_S` · 2^(k-1), at most `LONGEST_WAIT_S`, so that what
    fails at once does not take the machine from the workers that serve. One that has served for `WELL_S` before it
    died begins a new row. With the `LIMIT`-th it is hopeless.
    """

    FIRST_WAIT_S: ClassVar[float] = 0.5
    LONGEST_WAIT_S: ClassVar[float] = 30.0
    WELL_S: ClassVar[float] = 60.0
    LIMIT: ClassVar[int] = 6

    deaths: int = 0

    def died(self, served_s: float) -> Restarts:
        """After one more death, of a worker that had served for so long."""
        return Restarts(1 if served_s >= self.WELL_S else self.deaths + 1)

    @property
    def wait_s(self) -> float:
        """How long to wait before the next start."""
        return min(self.LONGEST_WAIT_S, self.FIRST_WAIT_S * 2.0 ** max(0, self.deaths - 1))

    @property
    def is_hopeless(self) -> bool:
        """Whether to give up."""
        return self.deaths >= self.LIMIT
