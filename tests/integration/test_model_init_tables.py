"""`upwell model init` on what converters of scikit-learn and its kin write: the names of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import init
from upwell.shared.config.yaml import load_yaml
from upwell.shared.signature.model_yaml import ModelDescription

WINES = ("Barolo", "Dolcetto #1", "Nebbiolo: old")
WEIGHTS = [1.0, -2.0, 0.5, 1.0, -1.0, 0.25, 2.0, -0.5, -1.0]


def classifier(path: Path, classes: dict[str, Any]) -> Path:
    """Three classes of three numbers, as skl2onnx writes a linear model."""
    node = helper.make_node(
        "LinearClassifier", ["X"], ["label", "probabilities"], domain="ai.onnx.ml", coefficients=WEIGHTS,
        intercepts=[0.0, 0.1, 0.2], multi_class=1, post_transform="SOFTMAX", **classes,
    )  # fmt: skip
    kind = TensorProto.STRING if "classlabels_strings" in classes else TensorProto.INT64
    outputs = [
        helper.make_tensor_value_info("label", kind, ["N"]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 3]),
    ]
    return written(path, [node], outputs)


def written(path: Path, nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto]) -> Path:
    rows = [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 3])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", rows, outputs), opset_imports=opsets, ir_version=9), path)
    return path


def output(path: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """Kind and labels of an output."""
    description = load_yaml(path.with_name("model.yaml"), ModelDescription)
    found = description.signature.outputs[name]
    labels = path.with_name("labels.txt")
    return found.kind, tuple(labels.read_text().splitlines()) if labels.exists() else ()


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        ({"classlabels_strings": list(WINES)}, WINES),
        ({"classlabels_ints": [-7, 30, 500]}, ("-7", "30", "500")),
        ({"classlabels_ints": [0, 1, 2]}, ()),
    ],
)
def test_classes_have_the_names_that_the_classifier_gives_them(
    tmp_path: Path, in_process: InProcess, classes: dict[str, Any], labels: tuple[str, ...]
) -> None:
    model = classifier(tmp_path / "model.onnx", classes)
    report = init(in_process, model)
    assert report["check"] == report["not_known"] == []
    assert output(model, "probabilities") == ("probabilities", labels)


def test_several_classifiers_are_named_by_the_constant_that_chooses_among_them(
    tmp_path: Path, in_process: InProcess
) -> None:
    model = onnx.load(classifier(tmp_path / "model.onnx", {"classlabels_ints": [0, 1, 2]}))
    model.graph.initializer.append(numpy_helper.from_array(np.array(["x", "y", "z"], object), "classes"))
    onnx.save(model, tmp_path / "model.onnx")
    init(in_process, tmp_path / "model.onnx")
    assert output(tmp_path / "model.onnx", "probabilities")[1] == ("x", "y", "z")
