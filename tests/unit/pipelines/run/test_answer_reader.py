"""What models say, as objects and as the facts of an event."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upwell.pipelines.run.infer_step import AnswerReader
from upwell.shared.signature.signature import LogicalOutput, Signature
from upwell.shared.tensors import Array, TensorSpec


def reader(*outputs: tuple[str, str, tuple[int, ...], tuple[str, ...]], has_rows: bool = True) -> AnswerReader:
    logical = tuple(
        LogicalOutput(name, kind, TensorSpec(name, "FP32", shape), labels)  # type: ignore[arg-type]  # the case's
        for name, kind, shape, labels in outputs
    )
    return AnswerReader(Signature((), logical, has_rows))


def rows(*values: object) -> Array:
    return np.asarray(values, np.float32)


LABELS = ("none", "helmet")


@pytest.mark.parametrize(
    ("kind", "values", "label", "score"),
    [
        ("probabilities", [0.2, 0.8], "helmet", 0.8),
        ("logits", [math.log(3), 0.0], "none", 0.75),
        ("logits", [1000.0, -1000.0], "none", 1.0),
        ("probabilities", [0.9], "helmet", 0.9),
        ("probabilities", [0.1], "none", 0.9),
        ("logits", [-2000.0], "none", 1.0),
    ],
)
def test_classes_are_a_label_and_its_probability(kind: str, values: list[float], label: str, score: float) -> None:
    facts = reader(("scores", kind, (-1, len(values)), LABELS)).facts({"scores": rows(values)})
    assert facts == {"label": label, "score": pytest.approx(score, abs=1e-4)}


def test_a_class_without_a_name_is_its_number_and_a_score_that_is_none_has_no_label() -> None:
    of = reader(("scores", "logits", (-1, 3), ()))
    assert of.facts({"scores": rows([0, 9, 0])})["label"] == "1"
    assert of.facts({"scores": rows([0, math.nan, 0])}) == {"label": "", "score": None}


def test_boxes_are_objects_and_slots_without_one_are_left_out() -> None:
    boxes = rows(
        [[0.1, 0.2, 0.3, 0.4, 0.9, 1], [0, 0, 0, 0, 0, -1], [math.nan, 0, 1, 1, 0.5, 0], [0, 0, 1, 1, 0.5, 7]],
        [[0, 0, 0, 0, 0, -1]] * 4,
    )
    of = reader(("found", "detections", (-1, 4, 6), LABELS))
    assert of.finds_objects
    helmet, unnamed = of.objects({"found": boxes}, 0)
    assert (helmet.label, unnamed.label, of.objects({"found": boxes}, 1)) == ("helmet", "7", ())
    assert helmet.box == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert [one["label"] for one in of.facts({"found": boxes})["objects"]] == ["helmet", "7"]


def test_short_tensors_are_written_and_long_ones_are_not() -> None:
    assert reader(("speed", "tensor", (-1, 1), ())).facts({"speed": rows([2.5])}) == {"value": 2.5}
    assert reader(("speeds", "tensor", (-1, 2), ())).facts({"speeds": rows([2.5, 1])}) == {"values": [2.5, 1.0]}
    assert reader(("face", "embedding", (-1, 128), ())).facts({"face": rows(np.ones(128))}) == {}


def test_of_several_outputs_the_first_of_classes_stands_at_the_top() -> None:
    of = reader(("speed", "tensor", (1,), ()), ("scores", "probabilities", (2,), LABELS), has_rows=False)
    facts = of.facts({"speed": rows(2.5), "scores": rows(1, 0)})
    assert facts == {"speed": {"value": 2.5}, "label": "none", "score": 1.0}
