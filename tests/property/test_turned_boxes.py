"""Turned boxes, masks and segments against what counting says: densities on a grid, and pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.signature import detections
from upwell.shared.signature.detections import RawBoxes, corners_of, detect, overlap, probiou, suppress
from upwell.shared.signature.model_yaml import Boxes, Segmentation
from upwell.shared.signature.postprocess import UNSEEN, segments_step
from upwell.shared.signature.step_values import Geometry, ValueType
from upwell.shared.tensors import Array

sides = st.floats(1, 20)
turned = st.tuples(st.floats(-20, 20), st.floats(-20, 20), sides, sides, st.floats(-math.pi, math.pi))


def density(box: Array, x: Array, y: Array) -> Array:
    """The normal distribution with the moments of a box that is filled evenly, by numbers of its corners alone."""
    corners = corners_of(box[None])[0]
    shares = (np.arange(40) + 0.5) / 40
    along, across = corners[1] - corners[0], corners[3] - corners[0]
    inside = corners[0] + shares[:, None, None] * along + shares[:, None] * across
    points = inside.reshape(-1, 2)
    inverse = np.linalg.inv(np.cov(points.T, bias=True))
    apart = np.stack((x - points[:, 0].mean(), y - points[:, 1].mean()), axis=-1)
    weights = np.exp(-np.einsum("...i,ij,...j", apart, inverse, apart) / 2)
    return np.asarray(weights / weights.sum())


@settings(max_examples=examples(15), deadline=None)
@given(turned, turned)
def test_probiou_is_one_minus_the_hellinger_distance_of_the_densities(
    one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    x, y = np.meshgrid(np.linspace(-60, 60, 300), np.linspace(-60, 60, 300))
    first, second = np.array(one), np.array(other)
    shared = np.sqrt(density(first, x, y) * density(second, x, y)).sum()
    expected = 1 - math.sqrt(max(1 - shared, 0))
    assert probiou(first, second) == pytest.approx(expected, abs=0.04)
    assert probiou(first, second) == pytest.approx(float(probiou(second, first)), abs=1e-9)


@settings(max_examples=examples(50), deadline=None)
@given(turned)
def test_a_turned_box_is_the_same_by_any_of_its_names(box: tuple[float, ...]) -> None:
    x, y, width, height, angle = box
    names = np.array([box, (x, y, height, width, angle + math.pi / 2), (x, y, width, height, angle + math.pi)])
    np.testing.assert_allclose(probiou(names, names[0]), 1, atol=1e-3)
    for corners in corners_of(names):
        apart = np.abs(corners[:, None] - corners_of(names[:1])[0]).max(axis=2).min(axis=1)
        assert apart.max() < 1e-9
    assert suppress(names, np.array([0.9, 0.8, 0.7]), np.zeros(3, np.int64), 0.5, 5).tolist() == [0]


def test_boxes_that_are_not_turned_overlap_alike_by_both_measures() -> None:
    boxes = np.array([[0, 0, 4, 2], [0, 0, 4, 2], [1, 0, 5, 2], [4, 0, 8, 2]], np.float64)
    as_turned = np.column_stack(((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2], np.zeros(4)))
    plain, likely = overlap(boxes, boxes[0]), overlap(as_turned, as_turned[0])
    assert np.argsort(plain).tolist() == np.argsort(likely).tolist()
    np.testing.assert_allclose(likely[:2], 1, atol=1e-3)


def test_a_turned_box_lies_in_the_original_as_it_did_in_the_models_picture() -> None:
    geometry = Geometry.of([(200, 100)]).then(np.full((1, 2), 0.5), np.array([[0.0, 25.0]]), np.full((1, 2), 100.0))
    op = Boxes.model_validate({"from": "x", "format": "cxcywh", "angle": True})
    raw = RawBoxes(np.array([[[50, 50, 40, 20]]]), np.array([[[0.9]]]), None, np.array([[[math.pi / 2]]]))
    found, masks = detect(op, raw, geometry)
    assert masks is None
    x, y = found.array[0, 0, 6:].reshape(4, 2).T
    np.testing.assert_allclose([x.min(), x.max(), y.min(), y.max()], [0.4, 0.6, 0.1, 0.9], atol=1e-6)
    np.testing.assert_allclose(found.array[0, 0, :6], [0.4, 0.1, 0.6, 0.9, 0.9, 0], atol=1e-6)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_a_mask_is_where_its_prototypes_say_so_inside_the_box(seed: int, normalized: bool) -> None:
    """Against one pixel after another, on a picture that fills the model's own, so nothing lies between samples."""
    random = np.random.default_rng(seed)
    parts, size = 3, 8
    prototypes = random.standard_normal((1, parts, size, size))
    further = random.standard_normal((1, 4, parts))
    low = random.uniform(0, 0.6, (1, 4, 2))
    boxes = np.concatenate((low, low + random.uniform(0.1, 0.4, (1, 4, 2))), axis=2)
    op = Boxes.model_validate(
        {"from": "x", "format": "xyxy", "prototypes": "p", "iou": 1.0, "normalized": normalized, "max": 4}
    )
    scores = random.uniform(0.3, 1, (1, 4, 1))
    raw = RawBoxes(boxes if normalized else boxes * 32, scores, None, further, prototypes)
    _, masks = detect(op, raw, Geometry.of([(32, 32)]))
    assert masks is not None
    best_first = np.argsort(-scores[0, :, 0], kind="stable")
    for row in range(size):
        for column in range(size):
            x, y = (column + 0.5) / size, (row + 0.5) / size
            expected = 0
            for number, box in enumerate(best_first, 1):
                x1, y1, x2, y2 = boxes[0, box]
                if x1 <= x < x2 and y1 <= y < y2 and (further[0, box] * prototypes[0, :, row, column]).sum() > 0:
                    expected = number
                    break
            assert masks[0, row, column] == expected


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 5]), st.sampled_from(["NCHW", "NHWC"]))
def test_a_segment_is_the_best_class_of_each_pixel_and_its_lead(seed: int, classes: int, axes: str) -> None:
    logits = np.random.default_rng(seed).standard_normal((2, classes, 3, 4)).astype(np.float32)
    given_logits = logits if axes == "NCHW" else logits.transpose(0, 2, 3, 1)
    op = Segmentation.model_validate({"axes": axes})
    step = segments_step(op, "x", ValueType("FP32", (-1, *given_logits.shape[1:])))
    (found,) = step.run([given_logits], None)
    assert isinstance(found, np.ndarray)
    for row, y, x in np.ndindex(2, 3, 4):
        values = [0.0, *logits[row, :, y, x]] if classes == 1 else list(logits[row, :, y, x])
        chances = sorted((math.exp(value) / sum(map(math.exp, values)) for value in values), reverse=True)
        assert found[row, y, x, 0] == int(np.argmax(values))
        assert abs(found[row, y, x, 1] - 255 * (chances[0] - chances[1])) <= 0.51


def test_segments_lie_over_the_original_and_say_what_was_cut_off() -> None:
    classes = np.array([[[1, 2], [3, 4]]], np.int64)
    step = segments_step(Segmentation.model_validate({}), "x", ValueType("INT64", (-1, 2, 2)))
    covered = Geometry.of([(8, 4)]).then(np.ones((1, 2)), np.array([[-2.0, 0.0]]), np.full((1, 2), 4.0))
    (found,) = step.run([np.repeat(np.repeat(classes, 2, 1), 2, 2)], covered)
    assert isinstance(found, np.ndarray)
    assert found[0, :, :, 0].tolist() == [[UNSEEN, 1, 2, UNSEEN]] * 2 + [[UNSEEN, 3, 4, UNSEEN]] * 2
    assert (found[0, :, [0, 3], 1] == 0).all()


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ({"keypoints": [2, 3]}, 6),
        ({"keypoints": [2, 2]}, 4),
        ({"angle": True}, 1),
        ({"prototypes": "p", "from": "x"}, 3),
    ],
)
def test_a_picture_in_which_nothing_is_found_has_no_detections(keys: dict[str, object], numbers: int) -> None:
    op = Boxes.model_validate({"format": "cxcywh", "max": 4, **keys})
    prototypes = np.ones((1, 3, 8, 8)) if op.prototypes is not None else None
    raw = RawBoxes(np.ones((1, 5, 4)), np.zeros((1, 5, 2)), None, np.zeros((1, 5, numbers)), prototypes)
    found, masks = detect(op, raw, Geometry.of([(32, 32)]))
    assert (found.array[0, :, 5] == -1).all()
    assert masks is None or not masks.any()


def test_how_many_numbers_a_detection_may_have() -> None:
    assert [last for last in range(3, 20) if detections.is_detections(last)] == [6, 9, 12, 14, 15, 18]
    assert [last for last in (6, 9, 14, 57) if detections.has_keypoints(last)] == [9, 57]
