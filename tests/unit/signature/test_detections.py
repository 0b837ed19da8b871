"""Detections: box forms, suppression against the plain O(n²) definition, and what a model may give that is no box."""

from typing import Any

import numpy as np
import pytest

from upwell.shared.signature import detections
from upwell.shared.signature.detections import RawBoxes, as_candidates, grouped, suppress, to_corners
from upwell.shared.signature.model_yaml import Boxes
from upwell.shared.signature.step_values import Candidates, Detections, Geometry
from upwell.shared.tensors import Array


def f32(values: Any) -> Array:
    return np.array(values, dtype=np.float32)


def f64(values: Any) -> Array:
    return np.array(values, dtype=np.float64)


def detect(op: Boxes, boxes: Array, scores: Array, classes: Array | None, geometry: Geometry | None) -> Detections:
    return detections.detect(op, RawBoxes(boxes, scores, classes), geometry)[0]


def boxes_op(**keys: Any) -> Boxes:
    return Boxes.model_validate({"format": "xyxy", "max": 5, **keys})


def suppressed_by_definition(boxes: Array, scores: Array, classes: Array, iou: float) -> list[int]:
    """Every pair compared, in Python's own numbers."""
    kept: list[int] = []
    for one in sorted(range(len(boxes)), key=lambda index: (-scores[index], index)):
        for other in kept:
            width = min(boxes[one][2], boxes[other][2]) - max(boxes[one][0], boxes[other][0])
            height = min(boxes[one][3], boxes[other][3]) - max(boxes[one][1], boxes[other][1])
            both = max(width, 0.0) * max(height, 0.0)
            areas = [(boxes[n][2] - boxes[n][0]) * (boxes[n][3] - boxes[n][1]) for n in (one, other)]
            if classes[one] == classes[other] and both > iou * (sum(areas) - both):
                break
        else:
            kept.append(one)
    return kept


@pytest.mark.parametrize("iou", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_suppression_is_its_definition(seed: int, iou: float) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 20, (120, 2))
    boxes = np.concatenate((corner, corner + rng.integers(1, 15, (120, 2))), axis=1).astype(np.float64)
    scores = rng.integers(1, 12, 120) / 12  # many equals, so that the order of equals counts
    classes = rng.integers(0, 3, 120)
    expected = suppressed_by_definition(boxes, scores, classes, iou)
    for most in (1, 7, 200):
        assert suppress(boxes, scores, classes, iou, most).tolist() == expected[:most]


def test_nothing_to_suppress() -> None:
    assert suppress(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64), 0.5, 10).tolist() == []


@pytest.mark.parametrize(("form", "box"), [("cxcywh", [3, 5, 4, 2]), ("xyxy", [1, 4, 5, 6]), ("yxyx", [4, 1, 6, 5])])
def test_box_forms(form: str, box: list[float]) -> None:
    assert to_corners(f64([box]), form).tolist() == [[1, 4, 5, 6]]


def test_slots_without_a_detection_are_zeros_with_class_minus_one() -> None:
    found = detect(boxes_op(normalized=True), np.zeros((2, 3, 4)), np.ones((2, 3, 2)), None, None).array
    assert found.dtype == np.float32
    assert found.shape == (2, 5, 6)
    assert (found == f32([0, 0, 0, 0, 0, -1])).all()


def test_pixels_of_the_model_become_fractions_of_each_original() -> None:
    geometry = Geometry(
        original=f64([[400, 200], [100, 100]]),
        size=f64([[100, 100]] * 2),
        scale=f64([[0.25, 0.25], [1, 1]]),
        offset=f64([[0, 25], [0, 0]]),
    )
    boxes = f32([[[10, 35, 60, 50]]] * 2)
    found = detect(boxes_op(max=1), boxes, f32([[[0.1, 0.9]]] * 2), None, geometry).array
    np.testing.assert_allclose(found[0], [[0.1, 0.2, 0.6, 0.5, 0.9, 1]], atol=1e-6)
    np.testing.assert_allclose(found[1], [[0.1, 0.35, 0.6, 0.5, 0.9, 1]], atol=1e-6)


def test_a_box_in_the_padding_is_no_detection_and_one_over_the_edge_is_cut() -> None:
    geometry = Geometry(f64([[100, 50]]), f64([[100, 100]]), np.ones((1, 2)), f64([[0, 25]]))
    boxes = f32([[[10, 2, 20, 20], [-10, 20, 50, 60]]])
    found = detect(boxes_op(), boxes, f32([[[0.9], [0.8]]]), None, geometry).array
    np.testing.assert_allclose(found[0, 0], [0, 0, 0.5, 0.7, 0.8, 0], atol=1e-6)
    assert found[0, 1, 5] == -1


def test_best_class_wins_and_low_scores_go() -> None:
    boxes = f32([[[0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1], [0, 0.5, 0.4, 1]]])
    scores = f32([[[0.3, 0.6, 0.6], [0.2, 0.1, 0.24], [0.25, 0, 0]]])
    found = detect(boxes_op(normalized=True), boxes, scores, None, None).array
    assert found[0, :, 5].tolist() == [1, 0, -1, -1, -1]


def test_the_background_is_never_found() -> None:
    boxes = f32([[[0, 0, 0.4, 0.4], [0.5, 0.5, 1, 1]]])
    scores = f32([[[0.9, 0.5], [0.9, 0.1]]])
    found = detect(boxes_op(normalized=True, background=0), boxes, scores, None, None).array
    assert found[0, 0, 4:].tolist() == [0.5, 1]
    assert found[0, 1, 5] == -1
    flat = detect(boxes_op(normalized=True, background=0), boxes, f32([[0.9, 0.8]]), f32([[0, 3]]), None).array
    assert flat[0, :2, 5].tolist() == [3, -1]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_make_no_detection(odd: float) -> None:
    good = [0.1, 0.1, 0.2, 0.2]
    boxes = f32([[[odd, 0, 1, 1], good, good, [0.5, 0.5, 0.5, 0.9], [0.9, 0.1, 0.5, 0.5]]])
    scores = f32([[[0.9, 0.1], [odd if odd != np.inf else np.nan] * 2, [0.8, 0.3], [1, 1], [1, 1]]])
    found = detect(boxes_op(normalized=True), boxes, scores, None, None).array
    np.testing.assert_allclose(found[0, 0], [*good, 0.8, 0], atol=1e-6)
    assert (found[0, 1:, 5] == -1).all()
    classes = f32([[0, odd, 1, 0, 0]])
    flat = detect(boxes_op(normalized=True), boxes, f32([[0.9, 0.9, 0.8, 1, 1]]), classes, None).array
    assert flat[0, :, 5].tolist() == [1, -1, -1, -1, -1]


def test_a_score_that_is_none_is_told_beside_the_candidates() -> None:
    boxes = f32([[[0, 0, 1, 1], [0, 0, 1, 1]]])
    told = [
        detect(boxes_op(normalized=True), boxes, f32([[[0.9], [odd]]]), None, None).candidates for odd in (0, np.nan)
    ]
    assert [candidates.has_nan for (candidates,) in told] == [False, True]


def test_inputs_are_left_alone() -> None:
    boxes, scores = f32([[[0, 0, 1, 1]]]), f32([[[0.9, 0.8]]])
    detect(boxes_op(normalized=True, background=0), boxes, scores, None, None)
    assert scores.tolist() == f32([[[0.9, 0.8]]]).tolist()


def test_candidates_are_what_suppression_and_the_least_score_left_out() -> None:
    box, beside, other = [0.1, 0.1, 0.3, 0.3], [0.11, 0.1, 0.3, 0.3], [0.6, 0.6, 0.8, 0.9]
    boxes = f32([[box, beside, other, other, [0.5, 0.5, 0.4, 0.9]]])
    scores = f32([[[0.9, 0], [0.6, 0], [0, 0.2], [0, 0.05], [0.9, 0.9]]])
    found = detect(boxes_op(normalized=True, min_score=0.5), boxes, scores, None, None)
    assert (found.array[0, :, 5] >= 0).sum() == 1
    (candidates,) = found.candidates
    np.testing.assert_allclose(candidates.scores, [0.9, 0.6, 0.2], atol=1e-6)
    assert candidates.classes.tolist() == [0, 0, 1]
    assert candidates.min_score == 0.5
    best, overlaps, supports, _ = grouped(candidates, 0.45)
    np.testing.assert_allclose(best, [0.9, 0.2], atol=1e-6)
    np.testing.assert_allclose(overlaps, [(0.9 + 0.6 * 0.95) / 1.5, 1], atol=1e-6)
    np.testing.assert_allclose(supports, [1.5 / 0.9, 1], atol=1e-6)


def test_a_box_supports_each_object_whose_best_box_it_overlaps() -> None:
    boxes = np.array([[left, 0.0, left + 10.0, 10.0] for left in (0.0, 3.0, 6.0)])
    chain = Candidates(boxes, np.array([0.9, 0.8, 0.1]), np.zeros(3, np.int64), 0.5)
    best, _, supports, _ = grouped(chain, 0.45)
    assert best.tolist() == [0.9, 0.1]
    np.testing.assert_allclose(supports, [1.7 / 0.9, 0.9 / 0.1])


def test_a_box_decays_by_what_better_ones_of_any_class_cover() -> None:
    better, inside, half, apart = [0, 0, 10, 10], [2, 2, 6, 6], [8, 0, 12, 10], [20, 0, 30, 10]
    scores = np.array([0.8, 0.4, 0.4, 0.4])
    made = Candidates(np.array([better, inside, half, apart], np.float64), scores, np.array([0, 1, 2, 0]), 0.5)
    *_, decays = grouped(made, 0.45)
    np.testing.assert_allclose(decays, [1, 0.4 / 0.8, 1 - 0.5 * (1 - 0.4 / 0.8), 1])


def test_a_turned_box_decays_where_a_better_one_lies() -> None:
    better, same, apart = [5.0, 5.0, 8.0, 2.0, 0.5], [5.0, 5.0, 8.0, 2.0, 0.5], [50.0, 5.0, 8.0, 2.0, 0.5]
    made = Candidates(np.array([better, same, apart]), np.array([0.8, 0.4, 0.4]), np.array([0, 1, 1]), 0.5)
    *_, decays = grouped(made, 0.45)
    np.testing.assert_allclose(decays, [1, 0.5, 1], atol=1e-3)


def test_detections_of_a_model_that_suppresses_itself_are_their_own_candidates() -> None:
    box = [0.1, 0.1, 0.3, 0.3]
    made = f32([[[*box, 0.3, 1], [*box, 0.9, 0], [*box, 0.01, 0], [0, 0, 0, 0, 0, -1], [*box[:3], np.nan, 0.8, 0]]])
    (candidates,) = as_candidates(made)
    np.testing.assert_allclose(candidates.scores, [0.9, 0.3], atol=1e-6)
    assert candidates.classes.tolist() == [0, 1]
    assert [len(column) for column in grouped(candidates, 0.45)] == [2, 2, 2, 2]


def test_a_picture_in_which_nothing_is_possible_has_no_group() -> None:
    (candidates,) = as_candidates(np.zeros((1, 0, 6), np.float32))
    assert [column.tolist() for column in grouped(candidates, 0.45)] == [[], [], [], []]
