import numpy as np
import pytest

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.class_labels import infer_classified, top_classes
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.tensors import DTYPES, Array


def test_the_highest_come_first_and_not_a_number_last() -> None:
    scores = np.array([[0.25, np.nan, 0.75, 0.25], [-1, -2, -3, -4]], np.float32)
    found = top_classes("y", scores, ("a", "b", "c"), 3)
    assert found.tolist() == [
        [b"0.750000:2:c", b"0.250000:0:a", b"0.250000:3"],
        [b"-1.000000:0:a", b"-2.000000:1:b", b"-3.000000:2:c"],
    ]


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        (np.array([1, 200], np.uint8), 9, [b"200.000000:1", b"1.000000:0"]),
        (np.zeros((0, 4), np.float32), 2, []),
        (np.array([1, 2]).astype(DTYPES["BF16"]), 1, [b"2.000000:1"]),
        (np.arange(4.0).reshape(1, 2, 2), 1, [[b"3.000000:3"]]),
    ],
)
def test_any_shape_of_numbers_has_classes(scores: Array, count: int, expected: list[object]) -> None:
    assert top_classes("y", scores, (), count).tolist() == expected


def test_others_of_the_answer_stay_as_they_are() -> None:
    given: dict[str, Array] = {"fp32": np.array([[0.5, 2]], np.float32), "int8": np.array([7], np.int8)}
    answer = infer_classified(FakeDataplane(), InferRequest("echo", given, classes={"fp32": 1}), Call())
    assert answer.outputs["fp32"].tolist() == [[b"2.000000:1"]]
    assert answer.outputs["int8"].tolist() == [7]
    assert not [key for key in answer.parameters if key.startswith("upwell.labels")]


def test_texts_have_no_classes() -> None:
    with pytest.raises(InvalidRequest, match="'y' has no numbers"):
        top_classes("y", np.array([b"a"], object), (), 1)


def test_more_classes_than_a_message_may_have_texts_are_refused_before_any_is_made() -> None:
    scores = np.zeros((513, 512), np.float32)
    with pytest.raises(InvalidRequest, match="'y' has 262656 classes to send; at most 262144 are allowed"):
        top_classes("y", scores, (), 2**62)
    assert top_classes("y", scores, (), 1).shape == (513, 1)
