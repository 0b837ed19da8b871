"""Which of the ready cuts a request takes: a look-up by inverse bandwidth, with hysteresis. Pure; on the hot path.

A cut is a line over inverse bandwidth (`envelope`), so what each is predicted to take is a handful of multiplications.
Bandwidth estimates tremble; near a corner of the envelope two cuts take nearly the same, and going to and fro would
gain nothing and cost warm caches and batches. So the current cut stays until another is better by a margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARGIN = 0.1
"""By what share of its predicted time the current cut must be beaten."""


@dataclass(frozen=True)
class ReadyCut:
    """A cut whose head is loaded: seconds of head and tail, bytes that go up and come back for one request.

    The edge alone has neither tail nor bytes; the cloud alone has no head.
    """

    name: str
    edge_s: float
    cloud_s: float
    bytes_up: float
    bytes_down: float

    @property
    def is_local(self) -> bool:
        """Whether nothing of it leaves the device, so that no round trip is paid."""
        return not (self.cloud_s or self.bytes_up or self.bytes_down)

    def total_s(self, up_s_per_byte: float, down_s_per_byte: float, fixed_s: float) -> float:
        """Predicted seconds; infinite where the link is not known (NaN)."""
        if self.is_local:
            return self.edge_s
        up_s, down_s = self.bytes_up * up_s_per_byte, self.bytes_down * down_s_per_byte
        total_s = self.edge_s + self.cloud_s + fixed_s + up_s + down_s
        return math.inf if math.isnan(total_s) else total_s


@dataclass(frozen=True)
class Choice:
    """The cut to take and what it is predicted to take; `best` is the one predicted to take least."""

    cut: ReadyCut
    total_s: float
    best: ReadyCut
    best_s: float


def choose(
    cuts: Sequence[ReadyCut],
    up_s_per_byte: float,
    down_s_per_byte: float,
    fixed_s: float,
    current: str | None = None,
    *,
    within_s: float = math.inf,
    margin: float = MARGIN,
) -> Choice:
    """The cut for one request, of at least one that is ready.

    `fixed_s` is what every cut but a local one takes besides: the round trip, queue wait. The cut named `current` is
    kept unless it is no longer ready, the best takes less than (1 − `margin`) of its time, or it is predicted to take
    longer than `within_s` where the best is not. Of cuts predicted the same the first counts.
    """
    totals = [cut.total_s(up_s_per_byte, down_s_per_byte, fixed_s) for cut in cuts]
    best_s = min(totals)
    best = cuts[totals.index(best_s)]
    for cut, total_s in zip(cuts, totals, strict=True):
        if cut.name == current:
            stays = best_s >= (1 - margin) * total_s and (total_s <= within_s or best_s > within_s)
            return Choice(cut, total_s, best, best_s) if stays else Choice(best, best_s, best, best_s)
    return Choice(best, best_s, best, best_s)
