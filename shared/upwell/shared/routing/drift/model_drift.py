"""Watches all quantities of one model's rows in windows: what moved, by how much, and since when."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from upwell.shared.routing.drift.drift_reference import (
    FROZEN,
    MOVING,
    DistanceFrom,
    DriftReference,
    Quantity,
    ReferenceHistogram,
    RowMeasures,
)
from upwell.shared.routing.drift.quantity_test import QuantityTest

WINDOW_ROWS = 64
MOST_WINDOWS = 64
_RECENT_WINDOWS = 8
BASELINE_AUDITS = 100
"""Number of audits that establish the baseline rate of disagreement."""

Finding: TypeAlias = Literal["camera", "world", "model"]
"""`camera`: dirty, dark, out of focus or frozen; `world`: the scene changed; `model`: it got worse."""
FINDINGS: Mapping[Finding, str] = {
    "camera": "the camera is dirty, dark, out of focus or frozen",
    "world": "the world changed",
    "model": "the model got worse",
}
OF_FINDING: Mapping[Quantity, Finding] = {
    "brightness": "camera", "sharpness": "camera", "frozen": "camera",
    "classes": "world", "embedding": "world", "hardness": "world", "audits": "model",
}  # fmt: skip


@dataclass(frozen=True)
class QuantityReport:
    """The state of a quantity. `rows` were seen; `moved_from` and `moved_to` are its medians, or the shares of the
    class that changed most, as text; `distance` is the total variation between the recent counts and the reference, 0
    to 1. Counts with the same `expected` and bins can be added up. `since` is an estimated unit of the stream."""

    rows: int
    moved: bool
    distance: float
    text: str
    since_unix_s: float | None = None
    since: int | None = None
    seen: int | None = None
    counts: Sequence[int] = ()
    expected: Sequence[int] = ()


@dataclass(frozen=True)
class DriftReport:
    """The state of a model: its quantities, and the findings from them."""

    findings: Sequence[Finding]
    quantities: Mapping[Quantity, QuantityReport]

    @property
    def text(self) -> str:
        """The findings as a sentence; "" without any."""
        return "; ".join(FINDINGS[one] for one in self.findings)

    def document(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "findings": list(self.findings),
            "text": self.text,
            "quantities": {name: asdict(one) for name, one in self.quantities.items()},
        }


@dataclass
class _Window:
    """Counts of rows by bin over an interval (Unix seconds). Windows of one reference add up."""

    from_unix_s: float
    counts: list[int]
    to_unix_s: float = 0.0


@dataclass
class _Watched:
    histogram: ReferenceHistogram
    test: QuantityTest
    windows: deque[_Window] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    rows: int = 0
    unit: list[int] = field(default_factory=list)
    unit_began_s: float = math.nan
    begins_window: bool = False


class ModelDrift:
    """Watches the rows of one model. Not thread-safe."""

    def __init__(self, reference: DriftReference) -> None:
        self.reference = reference
        self._distance = None if reference.vectors is None else DistanceFrom(reference.vectors)
        self._quantities = len(reference.quantities) + 1  # audits included
        self._watched: dict[Quantity, _Watched] = {
            name: _Watched(one, QuantityTest(one, self._quantities)) for name, one in reference.quantities.items()
        }
        self._audits = [0, 0]

    def add(self, row: RowMeasures, now_unix_s: float) -> None:
        """Add a row."""
        values: dict[Quantity, float | str] = {
            "hardness": row.hardness, "classes": row.label, "brightness": row.brightness, "sharpness": row.sharpness,
        }  # fmt: skip
        if row.is_frozen is not None:
            values["frozen"] = FROZEN if row.is_frozen else MOVING
        if self._distance is not None and row.vector is not None:
            values["embedding"] = self._distance(row.vector)
        for name, value in values.items():
            watched = self._watched.get(name)
            bin = None if watched is None else watched.histogram.bin_of(value)
            if watched is not None and bin is not None:
                self._count(watched, bin, now_unix_s, self.reference.every_s)

    def audited(self, disagreed: bool, now_unix_s: float) -> None:
        """Add the cloud's answer to an audit. The first `BASELINE_AUDITS` are the baseline for later ones."""
        watched = self._watched.get("audits")
        if watched is None:
            self._audits[disagreed] += 1
            if sum(self._audits) == BASELINE_AUDITS:
                self._watch_audits()
            return
        self._count(watched, int(disagreed), now_unix_s, 0.0)

    @property
    def has_drifted(self) -> bool:
        """Whether any quantity has moved."""
        return any(one.test.alarm is not None for one in self._watched.values())

    def report(self) -> DriftReport:
        """The current report."""
        found = {name: _report(one) for name, one in self._watched.items()}
        moved = {OF_FINDING[name] for name, one in found.items() if one.moved}
        # A dark picture changes the model's output as well, so the camera takes precedence over the world.
        findings: list[Finding] = ["camera"] if "camera" in moved else ["world"] if "world" in moved else []
        if "model" in moved:
            findings.append("model")
        return DriftReport(findings, found)

    def to_json(self) -> dict[str, Any]:
        """The state for a restart."""
        return {
            "audits": list(self._audits),
            "quantities": {
                name: {
                    "rows": one.rows,
                    "windows": [[w.from_unix_s, w.to_unix_s, w.counts] for w in one.windows],
                    "test": one.test.to_json(),
                }
                for name, one in self._watched.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state. Raises `ValueError`, `KeyError` or `TypeError` if it belongs to another reference."""
        self._audits = [int(one) for one in state["audits"]]
        if sum(self._audits) >= BASELINE_AUDITS:
            self._watch_audits()
        for name, saved in state["quantities"].items():
            one = self._watched[name]
            one.test.restore(saved["test"])
            one.rows = int(saved["rows"])
            for start_s, end_s, counts in saved["windows"]:
                if len(counts) != len(one.histogram.counts):
                    raise ValueError("a window has different bins")
                one.windows.append(_Window(float(start_s), [int(c) for c in counts], float(end_s)))

    def _watch_audits(self) -> None:
        histogram = ReferenceHistogram(labels=("agreed", "disagreed"), counts=(self._audits[0], self._audits[1]))
        self._watched["audits"] = _Watched(histogram, QuantityTest(histogram, self._quantities, is_one_sided=True))

    def _count(self, watched: _Watched, bin: int, now_unix_s: float, every_s: float) -> None:
        bins = len(watched.histogram.counts)
        watched.rows += 1
        if watched.begins_window or not watched.windows or sum(watched.windows[-1].counts) >= WINDOW_ROWS:
            watched.windows.append(_Window(now_unix_s, [0] * bins))
            watched.begins_window = False
        watched.windows[-1].counts[bin] += 1
        watched.windows[-1].to_unix_s = now_unix_s
        if every_s and watched.unit and not 0 <= now_unix_s - watched.unit_began_s < every_s:
            self._close_unit(watched)
        if not watched.unit:
            watched.unit, watched.unit_began_s = [0] * bins, now_unix_s
        watched.unit[bin] += 1
        if not every_s:
            self._close_unit(watched)

    def _close_unit(self, watched: _Watched) -> None:
        had_moved = watched.test.alarm is not None
        watched.test.add(np.array(watched.unit, np.float64), watched.unit_began_s)
        if not had_moved and watched.test.alarm is not None:
            watched.begins_window = True  # rows after the change must not mix with those before
        watched.unit = []


def _report(watched: _Watched) -> QuantityReport:
    alarm, histogram = watched.test.alarm, watched.histogram
    since_s = -math.inf if alarm is None else alarm.since_unix_s
    # The window in which the change began has rows from before it.
    recent = [w for w in watched.windows if w.from_unix_s >= since_s][-_RECENT_WINDOWS:] or list(watched.windows)[-1:]
    counts = np.sum([w.counts for w in recent] or [[0] * len(histogram.counts)], axis=0)
    expected = np.array(histogram.counts)
    if not counts.sum():
        return QuantityReport(watched.rows, False, 0.0, "", expected=expected.tolist())
    shares, before = counts / counts.sum(), expected / expected.sum()
    return QuantityReport(
        rows=watched.rows,
        moved=alarm is not None,
        distance=round(float(np.abs(shares - before).sum()) / 2, 4),
        text=_change(histogram, before, shares),
        since_unix_s=None if alarm is None else alarm.since_unix_s,
        since=None if alarm is None else alarm.since,
        seen=None if alarm is None else alarm.seen_at,
        counts=counts.tolist(),
        expected=expected.tolist(),
    )


def _change(histogram: ReferenceHistogram, before: Any, now: Any) -> str:
    """`median 0.42 → 0.11`, or `'3' 10 % → 31 %` for the class that changed most."""
    if histogram.labels:
        most = int(np.abs(now - before).argmax())
        return f"{histogram.labels[most]!r} {before[most]:.0%} → {now[most]:.0%}"
    medians = [histogram.name_of(int(np.searchsorted(np.cumsum(one), 0.5))) for one in (before, now)]
    return f"median {medians[0]} → {medians[1]}"
