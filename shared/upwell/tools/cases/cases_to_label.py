"""Which cases to label first: a few that each represent many, more of them among hard cases."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from upwell.edge.case_collection.collected_case import CaseFacts, CollectedCase
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.hardness import RISING
from upwell.shared.signature.picture_quality import thumbnail
from upwell.shared.tensors import Array

Floats = npt.NDArray[np.float64]

_THUMBNAIL_PX, _MOST_FEATURES = 16, 4096
_MOST_ROUNDS = 20


def features_of(case: CollectedCase) -> list[float]:
    """The features by which rows are compared: the embedding of a side, or else the inputs (pictures as 16 x 16 grey
    levels), or else the scores; empty if there are none. A model that is to be replaced is a poor judge of
    similarity.
    """
    outputs = case.edge_outputs() or case.cloud_outputs()
    embedding = _of_kind(case, outputs, "embedding")
    if embedding:
        return embedding
    found: list[float] = []
    pictures = case.pictures()
    for name, array in case.inputs().items():
        if name in pictures:
            with contextlib.suppress(InvalidRequest):
                found += (thumbnail(pictures[name], _THUMBNAIL_PX) / 255).ravel().tolist()
        elif array.dtype.kind in "fiub":
            found += array.astype(np.float64).ravel().tolist()
    if 0 < len(found) <= _MOST_FEATURES:
        return found
    return _of_kind(case, outputs, "logits") or _of_kind(case, outputs, "probabilities")


def _of_kind(case: CollectedCase, outputs: Mapping[str, Array], kind: str) -> list[float]:
    for output in case.facts.signature.outputs:
        if output.kind == kind and output.name in outputs:
            return [float(value) for value in outputs[output.name].ravel()]
    return []


def hardness_of(facts: CaseFacts) -> float:
    """Larger is harder; NaN, which counts as hardest, if not measured."""
    if facts.hardness is None or facts.hard is None:
        return float("nan")
    return facts.hardness if facts.hard.measure in RISING else -facts.hardness


def choose(features: Floats, hardness: Floats, budget: int) -> Sequence[int]:
    """The indexes of `budget` rows of `features` [n, d]; all of them if there are no more.

    Each represents many: the rows are clustered into `budget` clusters, and the row nearest each mean is taken, those
    of the heaviest clusters first. The clusters are k-means' (Lloyd 1982) with k-means++ seeding (Arthur &
    Vassilvitskii 2007), where a row weighs (1 + rank)/n from the easiest to the hardest. So there are more clusters
    where hard rows lie close together, and few for outliers, whose labels teach nothing about other rows. Selecting
    the farthest rows (k-centre) would take just those. Deterministic. O(budget · n · d) time a round, at most 20
    rounds; O(budget · n) memory. NaN in `hardness` counts as hardest; rows with features that are not finite come
    last.
    """
    known = np.flatnonzero(np.all(np.isfinite(features), axis=1))
    unknown = np.setdiff1d(np.arange(len(features)), known)
    ranks = np.empty(len(known))
    order = np.argsort(np.where(np.isnan(hardness[known]), np.inf, hardness[known]), kind="stable")
    ranks[order] = np.arange(1, len(known) + 1) / max(1, len(known))
    if budget >= len(known):
        chosen = known[np.argsort(-ranks, kind="stable")].tolist()
        return [*chosen, *unknown.tolist()][: max(0, budget)]
    if budget <= 0:
        return []
    rows = features[known] - features[known].mean(axis=0)
    rows = rows / max(float(rows.std()), 1e-12)
    return [int(known[index]) for index in _medoids(rows, ranks, budget)]


def _medoids(rows: Floats, weights: Floats, count: int) -> list[int]:
    """The row nearest the mean of each of `count` clusters, the heaviest cluster first.

    Of fewer distinct rows than that there are fewer clusters.
    """
    rng, squares = np.random.default_rng(0), (rows**2).sum(axis=1)
    centres = rows[_seeds(rows, weights, count, rng)]
    labels = np.full(len(rows), -1)
    distance = np.zeros(len(rows))
    for _ in range(_MOST_ROUNDS):
        apart = squares[:, None] - 2 * rows @ centres.T + (centres**2).sum(axis=1)
        before, labels = labels, apart.argmin(axis=1)
        distance = apart[np.arange(len(rows)), labels]
        if (before == labels).all():
            break
        heavy = np.bincount(labels, weights, len(centres))
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, rows * weights[:, None])
        centres = np.where(heavy[:, None] > 0, sums / np.maximum(heavy, 1e-300)[:, None], centres)
    heavy = np.bincount(labels, weights, len(centres))
    nearest: dict[int, int] = {}
    for index in np.argsort(distance, kind="stable").tolist():
        nearest.setdefault(int(labels[index]), index)
    chosen = sorted(nearest.values(), key=lambda index: -heavy[labels[index]])
    taken = set(chosen)
    # A cluster may have lost all its rows to others, or there were too few.
    rest = [index for index in np.argsort(-weights, kind="stable").tolist() if index not in taken]
    return [*chosen, *rest[: count - len(chosen)]]


def _seeds(rows: Floats, weights: Floats, count: int, rng: np.random.Generator) -> list[int]:
    """k-means++: picks each next row with a probability proportional to its weight times its squared distance."""
    found = [int(weights.argmax())]
    nearest = ((rows - rows[found[0]]) ** 2).sum(axis=1)
    while len(found) < count:
        chances = weights * nearest
        total = float(chances.sum())
        if total <= 0:  # the remaining rows are duplicates
            break
        found.append(int(np.searchsorted(np.cumsum(chances), rng.random() * total)))
        nearest = np.minimum(nearest, ((rows - rows[found[-1]]) ** 2).sum(axis=1))
    return found
