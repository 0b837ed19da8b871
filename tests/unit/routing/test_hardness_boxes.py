"""Hardness of what a detector found: each measure against its definition, and what no box and a broken box do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest

from upwell.shared.routing.box_hardness import OF_CANDIDATES, CandidateGroups, box_hardness, candidate_hardness
from upwell.shared.routing.hardness import UNCALIBRATED, UNMOVED, LogitFit, Measure, uncalibrated
from upwell.shared.tensors import Array

MEASURES: tuple[Measure, ...] = ("mean_score", "low_share", "count")
SLOTS = 5


def detections(*rows: Sequence[float]) -> Array:
    """Rows of boxes with these scores, filled up with slots that hold none."""
    made = np.zeros((len(rows), SLOTS, 6), np.float32)
    made[:, :, 5] = -1
    for row, scores in zip(made, rows, strict=True):
        for slot, score in zip(row, scores, strict=False):
            slot[:] = (0.1, 0.1, 0.4, 0.4, score, 2.0)
    return made


@pytest.mark.parametrize(
    ("measure", "expected"),
    [("mean_score", (0.75, 0.3, 0.9)), ("low_share", (0.0, 2 / 3, 0.0)), ("count", (2.0, 3.0, 1.0))],
)
def test_a_measure_is_its_definition_over_the_boxes_alone(measure: Measure, expected: tuple[float, ...]) -> None:
    found = box_hardness(detections((0.5, 1.0), (0.1, 0.2, 0.6), (0.9,)), measure, box_score=0.5)
    assert found == pytest.approx(expected)
    assert all(type(value) is float for value in found)


def test_the_score_that_is_low_is_the_one_that_was_written() -> None:
    made = detections((0.1, 0.3, 0.5, 0.7))
    shares = [box_hardness(made, "low_share", box_score=score)[0] for score in (0.0, 0.3, 0.5, 0.6, 1.0)]
    assert shares == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("made", [detections((), ()), np.zeros((2, 0, 6), np.float32)])
def test_a_picture_without_a_box_has_mean_zero_and_no_low_box(made: Array) -> None:
    for measure in MEASURES:
        assert box_hardness(made, measure, box_score=0.5) == (0.0, 0.0)


@pytest.mark.parametrize("measure", MEASURES)
def test_no_rows_have_no_values(measure: Measure) -> None:
    assert box_hardness(np.zeros((0, SLOTS, 6)), measure, box_score=0.5) == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", range(6))
@pytest.mark.parametrize("measure", MEASURES)
def test_a_number_of_a_box_that_is_not_finite_makes_its_row_nan(measure: Measure, field: int, bad: float) -> None:
    made = detections((0.5, 0.9), (0.5, 0.9))
    made[0, 1, field] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = box_hardness(made, measure, box_score=0.5)
    assert math.isfinite(second)
    if (field, bad) == (5, -math.inf):  # a negative class: no box, whatever else stands there
        assert math.isfinite(first)
    else:
        assert math.isnan(first)


@pytest.mark.parametrize("measure", MEASURES)
def test_what_stands_in_an_empty_slot_is_nobodys_concern(measure: Measure) -> None:
    clean, dirty = detections((0.8,)), detections((0.8,))
    dirty[0, 3, :5] = math.nan
    assert box_hardness(dirty, measure, box_score=0.5) == box_hardness(clean, measure, box_score=0.5)


def test_a_measure_of_scores_is_none_of_boxes() -> None:
    with pytest.raises(ValueError, match="mean_score, low_share or count"):
        box_hardness(detections((0.5,)), "margin", box_score=0.5)


# --- Of what a detector took for possible


def groups(
    scores: Sequence[float], overlaps: Sequence[float] = (), min_score: float = 0.25, decay: float = 1.0
) -> CandidateGroups:
    made = np.array(scores, np.float64)
    supports = np.array([4.0 if score < 0.5 else 9.0 for score in scores])
    agreements = np.array(overlaps or np.ones(len(made)), np.float64)
    return CandidateGroups(made, agreements, supports, np.full(len(made), decay), min_score)


def one_value(measure: Measure, made: CandidateGroups, box_score: float = 0.5, fit: LogitFit | None = None) -> float:
    fit = uncalibrated(measure) if fit is None else fit
    (value,) = candidate_hardness(detections(()), [made], measure, box_score=box_score, fit=fit)
    return value


@pytest.mark.parametrize("scores", [(0.9,), (0.2,), (0.9, 0.2, 0.95), (0.5, 0.9), (0.6, 0.6, 0.3, 0.12)])
def test_the_margin_is_the_chance_that_the_boxes_shown_are_all_that_is_there(scores: Sequence[float]) -> None:
    right = [score if score >= 0.5 else 1 - score for score in scores]
    assert one_value("margin", groups(scores), fit=UNMOVED) == pytest.approx(math.prod(right))


def test_without_a_calibration_the_doubts_lie_just_below_what_is_shown() -> None:
    shown, hidden = 1 / (1 + math.exp(-(math.log(9) + 1.5))), 1 / (1 + math.exp(-(8 * math.log(0.4 / 0.6) + 1.5)))
    assert one_value("margin", groups((0.9, 0.4))) == pytest.approx(shown * (1 - hidden))
    values = [one_value("doubtful", groups((score,))) for score in (0.49, 0.51, 0.4, 0.9, 0.2)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1 / (1 + math.exp(-(math.log(0.2 / 0.8) - 3))))


def test_a_better_box_at_its_place_makes_a_hidden_object_unlikely_and_no_shown_one() -> None:
    shown, hidden = (one_value("margin", groups((score,), decay=0.5)) for score in (0.6, 0.4))
    assert shown == one_value("margin", groups((0.6,)))
    assert hidden == pytest.approx(one_value("margin", groups((0.2,))))


def test_candidates_are_near_the_threshold_by_their_own_chances_until_a_calibration_moves_them() -> None:
    made = groups((0.9, 0.7, 0.55, 0.3, 0.1))
    assert one_value("near", made) == one_value("near", made, fit=UNMOVED) == 3
    assert one_value("near", made, fit=LogitFit(bias=1.0)) == 1


def test_a_calibration_moves_the_chances_and_not_what_the_answer_shows() -> None:
    fit = LogitFit(temperature=0.5, bias=1.0, support=-0.3, hidden_slope=3.0)
    (value,) = candidate_hardness(detections(()), [groups((0.4, 0.9))], "doubtful", box_score=0.5, fit=fit)
    shown = 1 / (1 + math.exp(-(2 * math.log(9) + 1 - 0.3 * math.log(9))))
    hidden = 1 / (1 + math.exp(-(3 * 2 * math.log(0.4 / 0.6) + 1 - 0.3 * math.log(4))))
    assert value == pytest.approx(1 - shown + hidden)


def test_many_doubtful_objects_keep_their_order_under_any_calibration() -> None:
    made = [groups([0.99] * count) for count in (99, 100)]
    found = candidate_hardness(detections((), ()), made, "margin", box_score=0.5, fit=LogitFit(0.05, -300.0))
    assert found[0] > found[1] > 0


def test_the_other_measures_of_candidates_are_their_definitions() -> None:
    made = groups((0.9, 0.6, 0.2), (1.0, 0.7, 0.5))
    assert one_value("doubtful", made, fit=UNMOVED) == pytest.approx(0.1 + 0.4 + 0.2)
    assert one_value("near", made) == 1
    assert one_value("spread", made) == pytest.approx(0.6 * 0.3 + 0.2 * 0.5)


@pytest.mark.parametrize(("box_score", "min_score", "score"), [(0.3, 0.2, 0.3), (0.5, 0.7, 0.7), (0.05, 0.0, 0.05)])
def test_a_box_on_the_threshold_that_answers_are_judged_by_is_most_doubtful(
    box_score: float, min_score: float, score: float
) -> None:
    made = groups((score,), min_score=min_score)
    assert one_value("margin", made, box_score, UNMOVED) == pytest.approx(0.5, abs=1e-5)


def test_where_nothing_is_possible_nothing_is_doubtful() -> None:
    assert one_value("margin", groups(())) == 1
    assert [one_value(measure, groups(())) for measure in ("doubtful", "near", "spread")] == [0, 0, 0]


@pytest.mark.parametrize("measure", sorted(OF_CANDIDATES))
def test_a_broken_box_makes_its_row_nan_whatever_the_candidates_say(measure: Measure) -> None:
    made = detections((0.9,), (0.9,))
    made[0, 0, 1] = math.nan
    first, second = candidate_hardness(made, [groups((0.9,))] * 2, measure, box_score=0.5, fit=UNCALIBRATED)
    assert math.isnan(first)
    assert math.isfinite(second)
