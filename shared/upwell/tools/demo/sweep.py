"""What other thresholds would have given, from what device and cloud really answered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from upwell.shared.routing.hardness import RISING, hardness
from upwell.shared.routing.policy.settings import HardSettings, Settings
from upwell.shared.tensors import Array
from upwell.tools.demo.runs import DemoOutcome


@dataclass(frozen=True)
class ThresholdSweep:
    """Accuracy against the share of requests sent up, float64 [points] in 0..1 each, as the threshold moves.

    The first point sends only the large cases up, each next one the hardest case that is left, the last one all.
    """

    shares: Array
    accuracies: Array


def sweep(edge: Sequence[DemoOutcome], cloud: Sequence[DemoOutcome], settings: Settings) -> ThresholdSweep:
    """Join the outcomes of two runs over the same cases: the device's where a case stays, the cloud's where it goes."""
    pairs = list(zip(edge, cloud, strict=True))
    large = [pair for pair in pairs if len(pair[0].case.png) > settings.large_above_bytes]
    small = [pair for pair in pairs if len(pair[0].case.png) <= settings.large_above_bytes]
    small.sort(key=lambda pair: certainty(pair[0], settings))
    start = sum(_right(high) for _, high in large) + sum(_right(low) for low, _ in small)
    gains = np.cumsum([0, *(_right(high) - _right(low) for low, high in small)])
    digits = sum(len(low.case.labels) for low, _ in pairs)
    return ThresholdSweep(
        shares=(len(large) + np.arange(len(small) + 1)) / len(pairs),
        accuracies=(start + gains) / digits,
    )


def certainty(outcome: DemoOutcome, settings: Settings) -> float:
    """How sure the device was by the policy's measure, whatever its direction: smaller is harder."""
    if outcome.answer is None:
        return -math.inf
    hard = settings.hard or HardSettings()
    value = hardness(outcome.answer.outputs["scores"], hard.measure, logits=False)[0]
    if math.isnan(value):
        return -math.inf
    return -value if hard.measure in RISING else value


def _right(outcome: DemoOutcome) -> int:
    return int(outcome.correct.sum())
