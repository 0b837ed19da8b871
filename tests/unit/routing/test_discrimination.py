"""How well a measure tells requests apart: AUROC by its definition, what shares buy, and the warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from upwell.shared.routing.calibration.discrimination import Discrimination, auroc, discrimination
from upwell.shared.routing.calibration.threshold_choice import Sample
from upwell.shared.routing.hardness import LogitFit, hardness, uncalibrated
from upwell.shared.routing.request_log_line import LogLine


def line(hardness: Mapping[str, float], *, wrong: bool) -> LogLine:
    return LogLine(t_s=0, model="m", size_bytes=1, hardness=hardness, edge_correct=not wrong, cloud_correct=True)


def found(values: Mapping[str, list[float]], wrong: list[bool], measure: str) -> Discrimination:
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    lines = [line(row, wrong=one) for row, one in zip(rows, wrong, strict=True)]
    return discrimination(lines, Sample(np.array(values[measure]), np.array(wrong, float)), measure, uncalibrated)


def test_other_measures_are_judged_as_they_would_be_calibrated() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 0.1, (200, 3))
    lines = [
        LogLine(t_s=n, model="m", size_bytes=1, hardness={"entropy": 0.5}, logits=tuple(row), edge_correct=n % 2 == 0,
                cloud_correct=True)
        for n, row in enumerate(logits.tolist())
    ]  # fmt: skip
    wrong = np.arange(200) % 2 == 1
    said = discrimination(lines, Sample(rng.random(200), wrong.astype(float)), "count", lambda _: LogitFit(0.05))
    expected = auroc(np.array(hardness(logits, "entropy", logits=True, temperature=0.05)), wrong)
    assert said.others == {"entropy": pytest.approx(expected)}
    as_logged = auroc(np.array(hardness(logits, "entropy", logits=True, temperature=1.0)), wrong)
    assert expected != pytest.approx(as_logged, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_the_area_is_the_chance_that_a_loss_scores_higher(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, losses = rng.integers(0, 9, 60).astype(float), rng.random(60) < 0.3
    pairs = [(bad > good) + (bad == good) / 2 for bad in scores[losses] for good in scores[~losses]]
    assert auroc(scores, losses) == pytest.approx(np.mean(pairs))


def test_too_few_of_either_kind_say_nothing() -> None:
    assert math.isnan(auroc(np.arange(20.0), np.arange(20) < 7))
    assert found({"count": [1.0] * 10}, [True] * 10, "count").warnings("count") == ()


def test_a_measure_no_better_than_chance_is_told_with_the_one_that_is() -> None:
    rng = np.random.default_rng(3)
    wrong = (rng.random(400) < 0.2).tolist()
    good = [float(one) + rng.normal(0, 0.5) for one in wrong]
    poor = rng.normal(0, 1, 400).tolist()
    worth = found({"count": poor, "doubtful": good, "mean_score": [-one for one in good]}, wrong, "count")
    assert not worth.is_better_than_chance
    (warning,) = worth.warnings("count")
    assert "count is no better than chance" in warning
    assert "`measure: doubtful` has" in warning
    assert worth.others["mean_score"] == pytest.approx(worth.others["doubtful"])  # it falls where the other rises
    assert found({"count": poor, "doubtful": good}, wrong, "doubtful").warnings("doubtful") == ()


def test_a_share_buys_the_losses_among_the_hardest_and_at_random_its_part() -> None:
    wrong = [True] * 10 + [False] * 90
    worth = found({"count": [float(one) for one in wrong]}, wrong, "count")
    at_5, at_10 = worth.bought[:2]
    assert [at_5.risk, at_5.random_risk] == pytest.approx([0.05, 0.095])  # half of those that are tied
    assert [at_10.share, at_10.risk] == pytest.approx([0.1, 0])
    assert [at_5.best_risk, at_10.best_risk] == pytest.approx([0.05, 0])
