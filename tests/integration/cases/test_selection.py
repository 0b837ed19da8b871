"""Which cases are worth a person's time: what `select` chooses teaches a model more than as many at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from upwell.tools.cases.cases_to_label import choose

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = tuple[Floats, npt.NDArray[np.int64]]

BUDGET, POOL = 300, 5000


def test_chosen_rows_stand_for_many_and_outliers_do_not() -> None:
    rng = np.random.default_rng(0)
    crowd = np.concatenate([rng.normal(at, 0.1, (200, 2)) for at in (0.0, 5.0, 10.0)])
    features = np.concatenate([crowd, [[500.0, -500.0]]])
    picked = choose(features, np.ones(len(features)), 3)
    assert len(set(picked)) == 3
    near = {round(float(features[index, 0]) / 5) for index in choose(features, np.ones(len(features)), 4)}
    assert {0, 1, 2} <= near


def test_hard_regions_get_more_and_what_cannot_be_compared_comes_last() -> None:
    rng = np.random.default_rng(1)
    features = np.concatenate([rng.normal(0, 1, (300, 3)), rng.normal(20, 1, (300, 3))])
    hardness = np.repeat([0.0, 1.0], 300) + rng.random(600) / 100
    picked = choose(features, hardness, 40)
    assert sum(index >= 300 for index in picked) > 22
    broken = np.concatenate([features, np.full((5, 3), np.nan)])
    assert max(choose(broken, np.append(hardness, [np.nan] * 5), 100)) < 600
    assert sorted(choose(broken, np.append(hardness, [9.0] * 5), 605)) == list(range(605))
    assert choose(broken, np.append(hardness, [9.0] * 5), 605)[-5:] == list(range(600, 605))
    alike = choose(np.zeros((10, 2)), np.arange(10.0), 4)
    assert len(set(alike)) == 4
    frozen = choose(np.repeat([[0.0, 0.0], [5.0, 5.0]], 5, axis=0), np.arange(10.0), 4)  # two pictures, again and again
    assert (len(set(frozen)), {index // 5 for index in frozen[:2]}) == (4, {0, 1})
    assert choose(features, hardness, 0) == []
    assert choose(np.zeros((0, 2)), np.zeros(0), 5) == []


def digits(seed: int) -> tuple[Rows, Rows, Rows]:
    """scikit-learn's digits: 200 clean ones to begin with, 5,000 shifted and noisy ones of others, and a test set."""
    from scipy.ndimage import shift
    from sklearn.datasets import load_digits

    rng, known = np.random.default_rng(seed), load_digits()
    order = rng.permutation(len(known.target))

    def drifted(originals: npt.NDArray[np.int64], count: int) -> Rows:
        picked = rng.choice(originals, count)
        moved = [shift(known.images[i], rng.uniform(-1.2, 1.2, 2), order=1) for i in picked]
        rows = [np.clip(one + rng.normal(0, 2.5, (8, 8)), 0, 16).ravel() for one in moved]
        return np.array(rows), known.target[picked]

    old = order[:200]
    return (known.data[old], known.target[old]), drifted(order[200:1200], POOL), drifted(order[1200:], 2000)


def made(seed: int) -> tuple[Rows, Rows, Rows]:
    """Eight classes of unequal size in 30 dimensions."""
    from sklearn.datasets import make_classification

    shares = [0.3, 0.2, 0.15, 0.1, 0.1, 0.06, 0.05, 0.04]
    x, y = make_classification(
        9000, n_features=30, n_informative=12, n_redundant=6, n_classes=8, n_clusters_per_class=2, class_sep=1.6,
        weights=shares, random_state=seed,
    )  # fmt: skip
    return (x[:200], y[:200]), (x[200 : 200 + POOL], y[200 : 200 + POOL]), (x[5200:8200], y[5200:8200])


def wins(data: Callable[[int], tuple[Rows, Rows, Rows]], seeds: Sequence[int]) -> tuple[int, float, float]:
    """In how many seeds the chosen rows make a better model than random ones, and both mean accuracies."""
    from sklearn.svm import SVC

    found = []
    for seed in seeds:
        (x_old, y_old), (x, y), (x_test, y_test) = data(seed)
        scores = np.sort(SVC(C=5).fit(x_old, y_old).decision_function(x), axis=1)
        picked = [
            np.array(choose(x, scores[:, -2] - scores[:, -1], BUDGET)),
            np.random.default_rng(seed + 5000).choice(POOL, BUDGET, replace=False),
        ]
        found.append([
            SVC(C=5).fit(np.vstack([x_old, x[rows]]), np.append(y_old, y[rows])).score(x_test, y_test)
            for rows in picked
        ])  # fmt: skip
    accuracies = np.array(found)
    chosen, random = accuracies.mean(axis=0)
    return int((accuracies[:, 0] > accuracies[:, 1]).sum()), float(chosen), float(random)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("data", [digits, made])
def test_300_chosen_of_5000_beat_300_at_random_in_8_of_10_seeds(
    data: Callable[[int], tuple[Rows, Rows, Rows]],
) -> None:
    better, chosen, random = wins(data, range(100, 110))
    print(f"{data.__name__}: {better} of 10, {chosen:.1%} against {random:.1%}")
    assert better >= 8
