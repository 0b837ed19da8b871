"""Which rows are kept as cases, why and with what probability, and the novelty of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from upwell.shared.routing.policy.settings import CollectSettings

Why: TypeAlias = Literal["hard", "audited", "random", "class", "near", "novel", "track"]
"""Why a row is collected."""

EVALUATED: frozenset[Why] = frozenset({"audited", "random"})
"""Rows chosen at random, which form the evaluation set."""

REFERENCE_ROWS = 256
"""Number of rows of a model learned before any counts as novel."""

Vector: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowSigns:
    """What is known of one answered row.

    `hardness` is NaN if not measured, `from_threshold` is its distance from the threshold. `label` names the class of
    the answer, "" if there is none; `novelty` is `VectorReference.distance`. The row was audited with probability
    `audit_share`; `is_audited` says whether it was. `is_new_track`: it is the first of its track.
    """

    is_hard: bool = False
    from_threshold: float = math.nan
    label: str = ""
    novelty: float = math.nan
    audit_share: float = 0.0
    is_audited: bool = False
    is_new_track: bool = False


def whys(collect: CollectSettings, row: RowSigns, draw: Callable[[], float]) -> tuple[Why, ...]:
    """Why this row is kept; empty if it is not. `draw` returns independent uniform numbers from [0, 1)."""
    found: list[Why] = []
    if row.is_audited and collect.audited:
        found.append("audited")
    if _drawn(collect.sample, draw):
        found.append("random")
    if row.is_hard and _drawn(collect.hard, draw):
        found.append("hard")
    if _drawn(collect.classes.get(row.label, 0.0), draw):
        found.append("class")
    if row.from_threshold <= collect.near and collect.near > 0:
        found.append("near")
    if row.novelty >= collect.novel > 0:
        found.append("novel")
    if row.is_new_track and _drawn(collect.track, draw):
        found.append("track")
    return tuple(found)


def inclusion(collect: CollectSettings, row: RowSigns) -> float:
    """The probability π = 1 − (1 − r)(1 − a) that a row enters the evaluation set.

    r is `sample`, a the probability of an audit; they are drawn independently.
    """
    audit = row.audit_share if collect.audited else 0.0
    return 1.0 - (1.0 - collect.sample) * (1.0 - audit)


def _drawn(share: float, draw: Callable[[], float]) -> bool:
    return share > 0 and draw() < share


@dataclass(frozen=True)
class VectorReference:
    """Mean and variance of each element of a model's vectors for its first `REFERENCE_ROWS` rows.

    Updated one by one (Welford 1962): μₙ = μₙ₋₁ + (x − μₙ₋₁)/n, Mₙ = Mₙ₋₁ + (x − μₙ₋₁)(x − μₙ), σ² = M/(n − 1).
    """

    rows: int = 0
    mean: Vector | None = None
    squares: Vector | None = None

    def add(self, vector: Vector) -> VectorReference:
        """The reference after one more row; unchanged once there are enough rows, or if the vector has another
        length."""
        if self.rows >= REFERENCE_ROWS:
            return self
        if self.mean is None or self.squares is None:
            return VectorReference(1, vector, np.zeros_like(vector))
        if vector.shape != self.mean.shape:
            return self
        mean = self.mean + (vector - self.mean) / (self.rows + 1)
        return replace(
            self, rows=self.rows + 1, mean=mean, squares=self.squares + (vector - self.mean) * (vector - mean)
        )

    def distance(self, vector: Vector) -> float:
        """√(mean of ((x − μ)/σ)²): about 1 for a row like the learnt ones, NaN before there are enough.

        The σ of an element is at least a thousandth of the largest one.
        """
        if self.rows < REFERENCE_ROWS or self.mean is None or self.squares is None or vector.shape != self.mean.shape:
            return math.nan
        deviation = np.sqrt(self.squares / (self.rows - 1))
        floor = max(float(deviation.max()) * 1e-3, 1e-12)
        return float(np.sqrt(np.mean(((vector - self.mean) / np.maximum(deviation, floor)) ** 2)))
