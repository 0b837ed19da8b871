"""The controller of a share: it holds whatever the scores are, and takes in anything."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from upwell.shared.routing.estimators.offload_share import ShareController
from upwell.shared.routing.hardness import RISING, Measure, is_hard
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.tensors import Array

TARGET = 0.2
ROWS = 1000


def started(measure: Measure = "margin", threshold: float = 0.35, target: float = TARGET) -> ShareController:
    return ShareController.start(HardSettings(measure, threshold, cloud_share=target))


def sent(controller: ShareController, measure: Measure, scores: Array) -> Array:
    """Which of the rows, told one by one, were hard when they came."""
    hard = []
    for score in scores.tolist():
        hard.append(is_hard(score, measure, controller.threshold))
        controller = controller.observe(1, 0, (score,))
    return np.array(hard)


def scores(measure: Measure, skill: Array | float, seed: int, rows: int = ROWS) -> Array:
    """Scores as a model has them, the better the larger `skill` [rows] is."""
    drawn = np.random.default_rng(seed).beta(skill, 1.2, rows)
    return 1.0 - drawn if measure in RISING else drawn


MEASURES: tuple[Measure, ...] = ("margin", "max_prob", "entropy")


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("target", [0.05, 0.2, 0.5])
def test_the_share_of_independent_rows_holds_within_two_points(measure: Measure, target: float) -> None:
    for seed in range(5):
        start = float(np.quantile(scores(measure, 4.0, seed + 100), 1 - target if measure in RISING else target))
        hard = sent(started(measure, start, target), measure, scores(measure, 4.0, seed))
        assert abs(hard.mean() - target) <= 0.02


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    "skill",
    [
        np.linspace(5.0, 1.2, ROWS),
        np.linspace(1.2, 5.0, ROWS),
        np.repeat([5.0, 1.2], ROWS // 2),
        np.repeat([1.2, 5.0], ROWS // 2),
        np.repeat([5.0, 1.2, 5.0, 1.2], ROWS // 4),
    ],
    ids=["worse and worse", "better and better", "suddenly worse", "suddenly better", "to and fro"],
)
def test_the_share_holds_in_the_second_half_of_a_drift(measure: Measure, skill: Array) -> None:
    for seed in range(5):
        before = scores(measure, skill[0], seed + 100)
        start = float(np.quantile(before, 1 - TARGET if measure in RISING else TARGET))
        hard = sent(started(measure, start), measure, scores(measure, skill, seed))
        assert abs(hard[ROWS // 2 :].mean() - TARGET) <= 0.03


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_start_that_sends_everything_or_nothing_is_made_up_for(threshold: float) -> None:
    assert abs(sent(started(threshold=threshold), "margin", scores("margin", 4.0, 1)).mean() - TARGET) <= 0.02


@pytest.mark.parametrize("values", [[0.5], [0.0, 1.0], [0.1, 0.5, 0.9], [math.inf, 0.5, -math.inf]])
def test_scores_with_few_values_share_out_the_ties_over_time(values: list[float]) -> None:
    drawn = np.random.default_rng(3).choice(values, 4000)
    assert abs(sent(started(), "margin", drawn)[1000:].mean() - TARGET) <= 0.03


def test_until_there_are_scores_the_calibrated_threshold_holds() -> None:
    controller = started(threshold=0.62)
    assert controller.threshold == 0.62
    assert controller.observe(3, 0, (0.1, 0.2, 0.3)).threshold == 0.62


def test_large_rows_count_as_sent() -> None:
    """A tenth is large, so of the scored rows only as many go up as make the share of all rows whole."""
    rng = np.random.default_rng(5)
    controller, up = started(), 0
    for score in rng.random(4000).tolist():
        if rng.random() < 0.1:
            up += 1
            controller = controller.observe(1, 1, ())
        else:
            up += is_hard(score, "margin", controller.threshold)
            controller = controller.observe(1, 0, (score,))
    assert abs(up / 4000 - TARGET) <= 0.01


def test_rows_without_a_score_count_as_hard() -> None:
    drawn = np.random.default_rng(6).random(3000)
    drawn[::10] = np.nan
    hard = sent(started(), "margin", drawn)
    assert hard[::10].all()
    assert abs(hard.mean() - TARGET) <= 0.01


def test_more_large_rows_than_the_share_leave_no_debt_behind() -> None:
    """While a third is sent for other reasons nothing else is; once that ends the share is back soon."""
    controller = started()
    rng = np.random.default_rng(7)
    for score in rng.random(3000).tolist():
        controller = controller.observe(3, 1, (score, score))
    assert controller.threshold == -math.inf
    assert abs(sent(controller, "margin", rng.random(1500))[200:].mean() - TARGET) <= 0.03


def test_rows_of_one_request_are_told_at_once() -> None:
    rng = np.random.default_rng(8)
    controller, up = started(), 0
    for _ in range(200):
        batch = tuple(rng.beta(4, 1.2, 32).tolist())
        up += sum(is_hard(score, "margin", controller.threshold) for score in batch)
        controller = controller.observe(32, 0, batch)
    assert abs(up / 6400 - TARGET) <= 0.01


def test_a_request_larger_than_the_window_is_taken_in() -> None:
    controller = started().observe(5000, 0, tuple(np.linspace(0, 1, 5000).tolist()))
    assert len(controller.recent) == len(controller.ordered) == 250
    assert controller.ordered == tuple(sorted(controller.recent))


def test_it_knows_the_settings_that_it_was_started_for() -> None:
    hard = HardSettings("margin", 0.35, cloud_share=TARGET, scope="defaults/digits")
    controller = ShareController.start(hard).observe(1, 0, (0.2,))
    assert controller.fits(replace(hard, scope="models.digits/digits", temperature=2.0))
    for change in ({"cloud_share": 0.3}, {"threshold": 0.4}, {"measure": "max_prob"}, {"cloud_share": math.nan}):
        assert not controller.fits(replace(hard, **change))


def test_nothing_told_changes_nothing() -> None:
    controller = started()
    assert controller.observe(0, 0, ()) is controller


def test_an_observation_costs_microseconds() -> None:
    """A generous limit of this thread's own time: 20 µs are asked for, and about 5 are taken."""
    controller = started()
    drawn = np.random.default_rng(9).random(3000).tolist()
    begin_s = time.thread_time()
    for score in drawn:
        controller = controller.observe(1, 0, (score,))
    assert (time.thread_time() - begin_s) / len(drawn) < 200e-6
