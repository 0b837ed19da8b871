"""`upwell model init` on models whose files say nothing of their scores: what their graph and tensors tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import asked, init
from tests.unit.models_for_tests import save, tensor


@pytest.mark.parametrize(
    ("operator", "kind", "labels", "doubts"),
    [("Sigmoid", "probabilities", ("no", "yes"), 1), ("Sigmoid", "probabilities", (), 1), ("Relu", "tensor", (), 0)],
)
def test_a_sigmoid_of_one_number_is_the_probability_of_the_second_class(
    tmp_path: Path, in_process: InProcess, operator: str, kind: str, labels: tuple[str, ...], doubts: int
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node(operator, ["h"], ["y"])]
    weights = {"w": np.ones((4, 1), np.float32)}
    save(tmp_path / "model.onnx", nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 1])], weights)
    if labels:
        (tmp_path / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    report = init(in_process, tmp_path / "model.onnx")
    outputs, answer = asked(tmp_path / "model.onnx", {"x": np.zeros((2, 4), np.float32)})
    assert [(one.kind, one.labels) for one in outputs] == [(kind, labels)]
    assert answer["y"].shape == (2, 1)
    assert len(report["check"]) == doubts


def test_logarithms_of_probabilities_are_logits_without_a_doubt(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("LogSoftmax", ["h"], ["y"], axis=1)]
    weights = {"w": np.arange(12, dtype=np.float32).reshape(4, 3) - 5}
    save(tmp_path / "model.onnx", nodes, [tensor("x", ["N", 4])], [tensor("y", ["N", 3])], weights)
    report = init(in_process, tmp_path / "model.onnx")
    outputs, _ = asked(tmp_path / "model.onnx", {"x": np.ones((1, 4), np.float32)})
    assert ([one.kind for one in outputs], report["check"]) == (["logits"], [])


def test_an_output_of_no_numbers_names_no_classes(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [helper.make_node("Slice", ["x", "from", "to", "axis"], ["none"]), helper.make_node("Relu", ["x"], ["y"])]
    numbers = {name: np.array([at], np.int64) for name, at in (("from", 0), ("to", 0), ("axis", 1))}
    outputs = [tensor("none", ["N", 0]), tensor("y", ["N", 4])]
    save(tmp_path / "model.onnx", nodes, [tensor("x", ["N", 4])], outputs, numbers)
    assert init(in_process, tmp_path / "model.onnx")["source"] == ""


def test_pictures_of_any_size_are_asked_about(tmp_path: Path, in_process: InProcess) -> None:
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    save(tmp_path / "model.onnx", [node], [tensor("x", ["N", 3, "H", "W"])], [tensor("y", ["N", 3, 1, 1])])
    comments = [one["comment"] for one in init(in_process, tmp_path / "model.onnx")["check"]]
    assert comments[0].startswith("any size fits")
