"""Choosing what to label: hard rows that are unlike each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def choose(features: Floats, hardness: Floats, budget: int) -> Sequence[int]:
    """The indexes of `budget` rows of `features` [n, d], best first; all of them where there are no more.

    Greedy k-centre (Gonzalez 1985; as core-set selection Sener & Savarese 2018, arXiv 1708.00489), weighted by
    hardness: the hardest row comes first, then always argmax w·d, with d the Euclidean distance to the nearest row
    chosen, in features scaled to unit variance, and w = (1 + rank)/n from the easiest to the hardest.
    O(budget · n · d) time, O(n · d) memory. NaN in `hardness` counts as hardest; rows whose features are not finite
    come last.
    """
    n = len(features)
    budget = min(budget, n)
    if budget <= 0:
        return []
    known: npt.NDArray[np.bool_] = np.all(np.isfinite(features), axis=1)
    scaled = np.where(known[:, None], features, 0.0)
    scaled = (scaled - scaled.mean(axis=0)) / np.maximum(scaled.std(axis=0), 1e-12)
    order = np.argsort(np.where(np.isnan(hardness), np.inf, hardness), kind="stable")
    weights = np.empty(n)
    weights[order] = np.arange(1, n + 1) / n
    weights = np.where(known, weights, weights * 1e-9)
    chosen = [int(weights.argmax())]
    nearest = np.linalg.norm(scaled - scaled[chosen[0]], axis=1)
    taken = np.zeros(n, dtype=np.bool_)
    taken[chosen[0]] = True
    while len(chosen) < budget:
        # Of rows that are all alike the harder comes first, too.
        gain = np.where(taken, -1.0, weights * (nearest + 1e-9))
        best = int(gain.argmax())
        chosen.append(best)
        taken[best] = True
        nearest = np.minimum(nearest, np.linalg.norm(scaled - scaled[best], axis=1))
    return chosen
