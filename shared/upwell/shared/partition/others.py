"""Placements beside the best one: those that other bandwidths would ask for, and those that differ in one node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from upwell.shared.partition.arrays import Arrays, Terms
from upwell.shared.tensors import Array

BANDWIDTH_FACTORS = (0.25, 4.0)
"""Times the links' own bandwidth, all of them alike: where on the envelope others are looked for. Its ends are one tier
alone."""

MOST = 5
_MOST_MOVES = 64
"""So many moves of a node are looked at, those first whose own cost changes for the better or the least."""


def others(arrays: Arrays, terms: Terms, best: Array, met: Iterable[Array]) -> list[tuple[Array, float]]:
    """The best few placements but `best` itself, with their totals: of those `met` elsewhere or one node away."""
    found = {tuple(levels.tolist()): levels for levels in (*met, *_moved(arrays, terms, best))}
    found.pop(tuple(best.tolist()), None)
    needed = {arrays.graph.tiers.index(tier) for tier in arrays.graph.non_empty}
    totals = {key: arrays.total_s(terms, levels) for key, levels in found.items() if needed <= set(key)}
    best_first = sorted((total_s, key) for key, total_s in totals.items() if math.isfinite(total_s))
    return [(found[key], total_s) for total_s, key in best_first[:MOST]]


def _moved(arrays: Arrays, terms: Terms, best: Array) -> Iterator[Array]:
    """The best placement with one node on another tier, not below what feeds it nor beyond what it feeds."""
    makers = arrays.makers[arrays.reads]
    is_made = makers >= 0
    lowest, highest = np.zeros_like(best), np.full_like(best, arrays.links)
    np.maximum.at(lowest, arrays.readers[is_made], best[makers[is_made]])
    np.minimum.at(highest, makers[is_made], best[arrays.readers[is_made]])
    level = np.arange(arrays.levels)
    costs_more = terms.compute - terms.compute[np.arange(arrays.nodes), best][:, None]
    is_move = (lowest[:, None] <= level) & (level <= highest[:, None]) & (level != best[:, None])
    moves = np.argwhere(is_move & np.isfinite(costs_more))
    order = np.argsort(costs_more[moves[:, 0], moves[:, 1]], kind="stable")
    for node, target in moves[order[:_MOST_MOVES]].tolist():
        levels = best.copy()
        levels[node] = target
        yield levels
