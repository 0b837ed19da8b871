"""Hardness of what a detector found: each measure against its definition, and what no box and a broken box do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest

from upwell.shared.routing.box_hardness import box_hardness
from upwell.shared.routing.hardness import Measure
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
