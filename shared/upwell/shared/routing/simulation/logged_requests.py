"""The requests of a log, ready for replay: in order, with all gaps filled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from upwell.shared.routing.calibration.logged_hardness import hardness_of_chances, is_of_chances
from upwell.shared.routing.hardness import RISING, Measure, hardness
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.settings import HardSettings, LowerQuality, ModelPair
from upwell.shared.routing.request_log_line import LogLine, QualityAnswer
from upwell.shared.routing.simulation.link_capacity import LONGEST_S

LARGEST_BYTES = 1 << 40
_FROM_LOGITS: frozenset[Measure] = frozenset({"max_prob", "margin", "entropy", "energy", "logit_norm"})


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRequest:
    """One line of the log. `edge_s` and `cloud_s` are filled in; `deadline_s` is infinite if the line has none."""

    line: LogLine
    request_facts: RequestFacts
    edge_s: float
    cloud_s: float

    @property
    def t_s(self) -> float:
        """Its arrival time."""
        return self.line.t_s

    @property
    def size_bytes(self) -> int:
        """Its bytes on the wire."""
        return self.line.size_bytes if self.line.up_bytes is None else self.line.up_bytes

    def bytes_at(self, quality: LowerQuality) -> int:
        """Its bytes on the wire at that quality: those of the line, else by the average share."""
        found = self._at(quality)
        return round(self.size_bytes * quality.bytes_share) if found is None else found.up_bytes

    def cloud_is_right(self, quality: LowerQuality | None) -> bool | None:
        """Whether the cloud's answer at that quality is right. An answer that is not known to agree with that at full
        quality counts as wrong."""
        if quality is None or self.line.cloud_correct is None:
            return self.line.cloud_correct
        found = self._at(quality)
        return found is not None and found.agrees and self.line.cloud_correct

    def _at(self, quality: LowerQuality) -> QualityAnswer | None:
        return next((one for one in self.line.qualities if one.quality == quality.quality), None)

    @property
    def deadline_s(self) -> float:
        """The caller's deadline, counted from the arrival."""
        return math.inf if self.line.deadline_s is None else self.line.deadline_s


def prepare(lines: Sequence[LogLine], start_wall_s: float = 0.0) -> tuple[LoggedRequest, ...]:
    """The lines as requests, by arrival; `start_wall_s` is the Unix time at which `t_s` is 0.

    Unknown times are replaced by the median of the same model's known ones, or by 0. Raises `ValueError` for a line
    that cannot be replayed.
    """
    for number, line in enumerate(lines, 1):
        if line.t_s > LONGEST_S or max(line.size_bytes, line.up_bytes or 0) > LARGEST_BYTES:
            raise ValueError(f"request {number}: t_s is at most {LONGEST_S:g} and a size at most {LARGEST_BYTES} bytes")
    edge_s, cloud_s = _medians(lines, lambda line: line.edge_s), _medians(lines, lambda line: line.cloud_s)
    return tuple(
        LoggedRequest(
            line,
            RequestFacts(line.model, line.tags, line.size_bytes, start_wall_s + line.t_s),
            edge_s[line.model] if line.edge_s is None else line.edge_s,
            cloud_s[line.model] if line.cloud_s is None else line.cloud_s,
        )
        for line in sorted(lines, key=lambda line: line.t_s)
    )


def _medians(lines: Sequence[LogLine], time_s: Callable[[LogLine], float | None]) -> Mapping[str, float]:
    known: dict[str, list[float]] = {line.model: [] for line in lines}
    for line in lines:
        if (value := time_s(line)) is not None:
            known[line.model].append(value)
    return {model: statistics.median(times) if times else 0.0 for model, times in known.items()}


def model_pairs(requests: Sequence[LoggedRequest]) -> Mapping[str, ModelPair]:
    """The model pair of each model, from its first line, for the choice of its calibration."""
    lines = (one.line for one in reversed(requests))
    return {line.model: ModelPair(line.edge_digest, line.edge_runtime, line.cloud_digest) for line in lines}


Score: TypeAlias = Callable[[LoggedRequest, HardSettings], float]
"""The hardness of a request after the edge run."""


def score(request: LoggedRequest, hard: HardSettings) -> float:
    """The hardness from the line's chances or logits, else as logged; NaN, which is hard, without any of them."""
    line = request.line
    if is_of_chances(line, hard.measure):
        return hardness_of_chances(line, hard.measure, hard.fit)
    if line.logits and hard.measure in _FROM_LOGITS:
        return hardness(np.array([line.logits]), hard.measure, logits=True, temperature=hard.temperature)[0]
    return line.hardness.get(hard.measure, math.nan)


def verdict(is_hard: bool, hard: HardSettings) -> float:
    """A score that is hard, or easy, whatever the threshold."""
    if is_hard:
        return math.nan
    return -math.inf if hard.measure in RISING else math.inf
