"""When an answer is right: classes against labels and against the cloud, and boxes that show the same objects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.errors import ConfigError
from upwell.shared.signature.answer_agreement import IOU, Judge, same_objects
from upwell.shared.signature.signature import LogicalInput, LogicalOutput, OutputKind, Signature
from upwell.shared.tensors import Array, TensorSpec


def judge(kind: OutputKind, shape: tuple[int, ...], *, with_labels: bool = False, has_rows: bool = True) -> Judge:
    inputs = (LogicalInput("x", "tensor", TensorSpec("x", "FP32", (-1, 2))),)
    outputs = (LogicalOutput("y", kind, TensorSpec("y", "FP32", shape)),)
    return Judge(Signature(inputs, outputs, has_rows), box_score=0.5, with_labels=with_labels)


def of(*values: object) -> dict[str, Array]:
    return {"y": np.array([values], np.float32)}


def test_the_class_is_that_of_the_highest_score() -> None:
    one = judge("probabilities", (-1, 3), with_labels=True)
    assert one.classes == 3
    assert [one.is_label(of(0.2, 0.5, 0.3), label) for label in range(3)] == [False, True, False]


@pytest.mark.parametrize(("kind", "border"), [("probabilities", 0.5), ("logits", 0.0)])
def test_a_single_score_is_that_of_the_second_class(kind: OutputKind, border: float) -> None:
    one = judge(kind, (-1, 1), with_labels=True)
    assert one.classes == 2
    assert [one.is_label(of(border), label) for label in range(2)] == [False, True]
    assert [one.is_label(of(border - 0.01), label) for label in range(2)] == [True, False]


def test_a_score_that_is_not_finite_is_never_right() -> None:
    one = judge("logits", (-1, 3))
    broken = of(9.0, math.nan, 0.0)
    assert not one.is_label(broken, 0)
    assert not one.agrees(broken, of(9.0, 0.0, 0.0))
    assert not one.agrees(of(9.0, 0.0, 0.0), broken)
    assert not one.agrees(broken, broken)


def test_several_positions_must_all_agree() -> None:
    one = judge("probabilities", (-1, 2, 2))
    assert one.agrees(of((0.9, 0.1), (0.4, 0.6)), of((0.6, 0.4), (0.1, 0.9)))
    assert not one.agrees(of((0.9, 0.1), (0.4, 0.6)), of((0.6, 0.4), (0.6, 0.4)))


def test_a_model_without_rows_is_judged_whole() -> None:
    one = judge("logits", (2, 2), has_rows=False)
    values = {"y": np.array([[1.0, 0.0], [0.0, 1.0]])}
    assert one.agrees(values, values)
    assert not one.agrees(values, {"y": np.array([[1.0, 0.0], [1.0, 0.0]])})


@pytest.mark.parametrize(
    ("kind", "shape", "with_labels", "message"),
    [
        ("embedding", (-1, 8), False, r"this model gives 'y' \(embedding\), which cannot be compared"),
        ("tensor", (-1, 1), True, "an output of probabilities, logits, detections or segments"),
        ("detections", (-1, 9, 6), True, "a label is one class per item, but 'y' is more than that"),
        ("probabilities", (-1, 60, 10), True, "a label is one class per item"),
        ("probabilities", (-1, -1, 10), True, "a label is one class per item"),
    ],
)
def test_what_nobody_can_judge_is_refused(
    kind: OutputKind, shape: tuple[int, ...], with_labels: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        judge(kind, shape, with_labels=with_labels)


def boxes(*made: tuple[float, float, float, float, float, float]) -> Array:
    """Boxes in ten slots, the rest of which hold none."""
    found = np.zeros((10, 6))
    found[:, 5] = -1
    found[: len(made)] = np.array(made).reshape(-1, 6)
    return found


CAR, FAR, CAT = (0.0, 0.0, 0.4, 0.4, 0.9, 1.0), (0.6, 0.6, 0.9, 0.9, 0.8, 1.0), (0.1, 0.5, 0.3, 0.9, 0.7, 2.0)
NEAR_CAR = (0.05, 0.0, 0.42, 0.4, 0.6, 1.0)
DOUBTFUL = (0.5, 0.0, 0.7, 0.2, 0.3, 1.0)


@pytest.mark.parametrize(
    ("edge", "cloud", "same"),
    [
        ((CAR, FAR, CAT), (CAT, CAR, FAR), True),
        ((NEAR_CAR,), (CAR,), True),
        ((), (), True),
        ((DOUBTFUL,), (), True),  # what is not sure on either side is no object
        ((CAR, DOUBTFUL), (CAR,), True),
        ((CAR,), (CAR, FAR), False),
        ((CAR, FAR), (CAR,), False),
        ((CAR,), (), False),
        ((CAR,), (FAR,), False),
        (((*CAR[:5], 2.0),), (CAR,), False),
        ((CAR, NEAR_CAR), (CAR, FAR), False),  # two boxes on one object do not make two objects
    ],
)
def test_the_same_objects_pair_off(
    edge: Sequence[tuple[float, ...]], cloud: Sequence[tuple[float, ...]], same: bool
) -> None:
    ours, theirs = boxes(*edge), boxes(*cloud)  # type: ignore[arg-type]  # six numbers each
    assert same_objects(ours, theirs, 0.5) is same
    one = judge("detections", (-1, 10, 6))
    assert one.agrees({"y": ours[None]}, {"y": theirs[None]}) is same
    labelled = np.array([(*box[:4], 1.0, box[5]) for box in cloud if box[4] >= 0.5]).reshape(-1, 6)
    assert one.has_found({"y": ours[None]}, labelled) is same


def test_a_box_with_a_number_that_is_not_finite_is_never_right() -> None:
    broken = boxes(CAR)
    broken[0, 2] = math.nan
    assert not same_objects(broken, boxes(CAR), 0.5)
    assert not same_objects(boxes(CAR), broken, 0.5)


corners = st.tuples(*[st.integers(0, 8)] * 4, st.sampled_from([0.4, 0.6, 0.9]), st.integers(-1, 1))


def overlap(one: Sequence[float], two: Sequence[float]) -> float:
    width = max(0.0, min(one[2], two[2]) - max(one[0], two[0]))
    height = max(0.0, min(one[3], two[3]) - max(one[1], two[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    together = sum(areas) - width * height
    return width * height / together if together > 0 else 0.0


@given(st.lists(corners, max_size=4), st.lists(corners, max_size=4))
def test_what_pairs_off_has_a_pairing(edge: list[tuple[float, ...]], cloud: list[tuple[float, ...]]) -> None:
    """Greedy pairing never claims a pairing that brute force does not find."""
    solid = [[box for box in side if box[2] > box[0] and box[3] > box[1]] for side in (edge, cloud)]
    sure = [[box for box in side if box[5] >= 0 and box[4] >= 0.5] for side in solid]
    arrays = [np.array(side, np.float64).reshape(-1, 6) for side in solid]
    if same_objects(arrays[0], arrays[1], 0.5):
        assert len(sure[0]) == len(sure[1])
        assert any(
            all(one[5] == two[5] and overlap(one, two) >= IOU for one, two in zip(sure[0], order, strict=True))
            for order in itertools.permutations(sure[1])
        )
    assert same_objects(arrays[0], arrays[0], 0.5)


def test_segments_agree_where_their_classes_overlap_in_the_mean() -> None:
    one = judge("segments", (-1, 4, 4, 2))
    cloud = np.zeros((1, 4, 4, 2), np.uint8)
    cloud[0, :2, :, 0] = 1
    for moved, agrees in ((0, True), (2, True), (3, False)):  # of 8 pixels: 6/8 and 8/10, then 5/8 and 8/11
        edge = cloud.copy()
        edge[0, 0, :moved, 0] = 0
        assert one.agrees({"y": edge}, {"y": cloud}) is agrees
    unseen = cloud.copy()
    unseen[0, 0, :, 0] = 255
    assert one.agrees({"y": unseen}, {"y": cloud})
    assert not one.agrees({"y": np.full_like(cloud, 255)}, {"y": cloud})
    assert one.answer({"y": cloud}) == one.answer({"y": cloud.copy()}) != one.answer({"y": unseen})
