"""The hardness of logged requests under one measure and temperature."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from upwell.shared.routing.hardness import Measure, hardness
from upwell.shared.routing.log import LogLine
from upwell.shared.tensors import Array

FROM_LOGITS: frozenset[str] = frozenset({"max_prob", "margin", "entropy", "energy", "logit_norm"})
"""Measures that follow from the logits of a line; the others are only what the line itself says."""

TEMPERED: frozenset[str] = frozenset({"max_prob", "margin", "entropy"})
"""Measures of probabilities: those that temperature scaling is about."""


def measured(lines: Sequence[LogLine], measure: Measure, temperature: float) -> Array:
    """The hardness of each line, FP64 [lines]: from its logits where it has them, else as logged; NaN where neither."""
    values = np.array([line.hardness.get(measure, math.nan) for line in lines], np.float64)
    if measure not in FROM_LOGITS:
        return values
    by_classes: dict[int, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        if line.logits:
            by_classes[len(line.logits)].append(index)
    for indexes in by_classes.values():
        logits = np.array([lines[index].logits for index in indexes], np.float64)
        values[indexes] = hardness(logits, measure, logits=True, temperature=temperature)
    return values
