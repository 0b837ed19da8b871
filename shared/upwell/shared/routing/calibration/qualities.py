"""What lower qualities of pictures save on the wire, and how often the cloud's answer stays the same for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upwell.shared.routing.calibration.binomial import lower_bound
from upwell.shared.routing.log import LogLine

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class QualityCost:
    """Of `requests` with pictures at this quality: their bytes as a share of those of whole pictures, the share of the
    cloud's answers that agrees with its answers about those, and the lower bound of that share at `CONFIDENCE`
    (Clopper-Pearson)."""

    quality: int
    requests: int
    bytes_share: float
    agreement: float
    agreement_bound: float


def quality_costs(lines: Sequence[LogLine]) -> tuple[QualityCost, ...]:
    """By quality, the best first; empty where the log holds none."""
    answers = [one for line in lines for one in line.qualities]
    found = []
    for quality in sorted({one.quality for one in answers}, reverse=True):
        mine = [one for one in answers if one.quality == quality]
        agreed = sum(one.agrees for one in mine)
        share = sum(one.up_bytes for one in mine) / max(1, sum(one.whole_bytes for one in mine))
        bound = lower_bound(agreed, len(mine), CONFIDENCE)
        found.append(QualityCost(quality, len(mine), share, agreed / len(mine), bound))
    return tuple(found)
