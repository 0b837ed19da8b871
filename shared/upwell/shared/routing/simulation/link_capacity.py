"""The capacity of a link over time: a trace of single packets, or a rate that changes in steps.

A capacity is given by the bytes that it has offered since its zero, used or not. A queue is then a position on that
scale: a message of n bytes that may begin at position p ends at p + n, at the time when that much has been offered.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

LONGEST_S = 1e10
"""The latest time accepted (three centuries): far beyond it a double cannot distinguish milliseconds."""
MOST_BITS_PER_S = 1e13


class Capacity(Protocol):
    """The capacity of a link. `quantum_bytes` is the smallest unit that leaves at once; a message does not share its
    last one."""

    @property
    def quantum_bytes(self) -> int:
        """Size of the packets in which capacity is counted."""

    def offered_bytes(self, at_s: float) -> float:
        """Bytes offered before the time `at_s`."""

    def reached_s(self, position_bytes: float) -> float:
        """The first time at which that much was offered; infinite if never."""


class PacketTrace:
    """A mahimahi trace: the milliseconds at which packets of 1500 bytes may leave; it repeats after the last one."""

    quantum_bytes: ClassVar[int] = 1500

    def __init__(self, packets_ms: Sequence[int]) -> None:
        """Take the times in order, the last above 0. Raises `ValueError`."""
        self._packets_ms = np.asarray(packets_ms, dtype=np.int64)
        self._period_ms = int(packets_ms[-1]) if len(packets_ms) else 0
        if self._period_ms <= 0:
            raise ValueError("the trace has no packet after 0 ms; expected the millisecond of each packet")

    def offered_bytes(self, at_s: float) -> float:
        """See `Capacity`."""
        cycles, rest_ms = divmod(at_s * 1000, self._period_ms)
        if rest_ms == 0 and cycles > 0:  # the packet that ends a cycle leaves at this time, not before it
            cycles, rest_ms = cycles - 1, self._period_ms
        packets = int(cycles) * len(self._packets_ms) + int(self._packets_ms.searchsorted(rest_ms, "left"))
        return packets * self.quantum_bytes

    def reached_s(self, position_bytes: float) -> float:
        """See `Capacity`."""
        packet = max(0, math.ceil(position_bytes / self.quantum_bytes) - 1)
        cycles, index = divmod(packet, len(self._packets_ms))
        return (cycles * self._period_ms + int(self._packets_ms[index])) / 1000


class StepTrace:
    """A rate that changes in steps; it repeats from its end, and the last step is as long as the one before it."""

    quantum_bytes: ClassVar[int] = 1

    def __init__(self, starts_s: Sequence[float], rates_bits_per_s: Sequence[float]) -> None:
        """Take the steps in order; their starts count from the first. Raises `ValueError`."""
        if not starts_s:
            raise ValueError("the trace has no rows; expected rows of second and Mbps")
        if any(after <= before for before, after in itertools.pairwise(starts_s)):
            raise ValueError("the seconds do not increase from row to row")
        if not all(0 <= rate <= MOST_BITS_PER_S for rate in rates_bits_per_s):
            raise ValueError(f"expected rates from 0 to {MOST_BITS_PER_S / 1e6:g} Mbps")
        last_s = starts_s[-1] - starts_s[-2] if len(starts_s) > 1 else 1.0
        self._bounds_s = [start_s - starts_s[0] for start_s in starts_s] + [starts_s[-1] - starts_s[0] + last_s]
        self._rates = [rate / 8 for rate in rates_bits_per_s]
        steps = zip(self._rates, itertools.pairwise(self._bounds_s), strict=True)
        offered = (rate * (end_s - start_s) for rate, (start_s, end_s) in steps)
        self._offered_bytes = list(itertools.accumulate(offered, initial=0.0))

    def offered_bytes(self, at_s: float) -> float:
        """See `Capacity`."""
        cycles, rest_s = divmod(at_s, self._bounds_s[-1])
        step = bisect.bisect_right(self._bounds_s, rest_s, hi=len(self._rates)) - 1
        within = (rest_s - self._bounds_s[step]) * self._rates[step]
        return cycles * self._offered_bytes[-1] + self._offered_bytes[step] + within

    def reached_s(self, position_bytes: float) -> float:
        """See `Capacity`."""
        whole = self._offered_bytes[-1]
        if whole <= 0:
            return math.inf
        cycles, rest = divmod(position_bytes, whole)
        if rest == 0 and cycles > 0:  # offered by the last step with a rate, not by the end of the cycle
            cycles, rest = cycles - 1, whole
        step = max(0, bisect.bisect_left(self._offered_bytes, rest) - 1)
        within_s = (rest - self._offered_bytes[step]) / self._rates[step] if rest > 0 else 0.0
        return cycles * self._bounds_s[-1] + self._bounds_s[step] + within_s


def constant(bits_per_s: float) -> StepTrace:
    """A constant rate."""
    return StepTrace([0.0], [bits_per_s])


def parse_trace(text: str) -> Capacity:
    """Parse a trace: CSV rows of second and Mbps, or one millisecond per line. Raises `ValueError`."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    filled = [(number, line) for number, line in lines if line]
    return _step_trace(filled) if any("," in line for _, line in filled[:2]) else _packet_trace(filled)


def _packet_trace(lines: Sequence[tuple[int, str]]) -> PacketTrace:
    packets_ms: list[int] = []
    for number, line in lines:
        if not line.isdecimal() or len(line) > 12:
            raise ValueError(f"line {number}: expected the millisecond of a packet, a whole number, got {line[:40]!r}")
        packets_ms.append(int(line))
        if packets_ms[-1] < packets_ms[-2:][0]:
            raise ValueError(f"line {number}: {packets_ms[-1]} ms is before the previous line")
    return PacketTrace(packets_ms)


def _step_trace(lines: Sequence[tuple[int, str]]) -> StepTrace:
    starts_s: list[float] = []
    rates: list[float] = []
    for row, (number, line) in enumerate(lines):
        try:
            start_s, mbps = (float(cell) for cell in line.split(","))
            if not (0 <= start_s <= LONGEST_S and 0 <= mbps <= MOST_BITS_PER_S / 1e6):
                raise ValueError
        except ValueError:
            if row == 0 and not any(char.isdecimal() for char in line):
                continue  # a header
            raise ValueError(f"line {number}: expected second and Mbps, such as 12,3.5, got {line[:40]!r}") from None
        if starts_s and start_s <= starts_s[-1]:
            raise ValueError(f"line {number}: second {start_s:g} is not after the previous line")
        starts_s.append(start_s)
        rates.append(mbps * 1e6)
    return StepTrace(starts_s, rates)
