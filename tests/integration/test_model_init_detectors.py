"""`upwell model init` on detectors whose files say nothing: what their tensors and a run of them tell, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import init
from tests.unit.models_for_tests import save, tensor
from upwell.shared.config.yaml import load_yaml
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.tensors import Array

CHANCE = np.random.default_rng(0)
CORNERS = np.sort(CHANCE.uniform(0, 1, (1, 200, 2, 2)), axis=2).reshape(1, 200, 4).astype(np.float32)
"""x1, y1, x2, y2 in fractions of the picture."""
CENTERS = np.concatenate([CHANCE.uniform(0.3, 0.7, (1, 200, 2)), CHANCE.uniform(0, 0.3, (1, 200, 2))], axis=2).astype(
    np.float32
)
SCORES = CHANCE.uniform(0, 1, (1, 200, 3)).astype(np.float32)


def finding(path: Path, found: Mapping[str, Array], shapes: Mapping[str, list[object]] | None = None) -> Path:
    """A model of pictures of 64 x 64 that gives the same in each."""
    nodes = [helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0)]
    nodes.append(helper.make_node("Mul", ["mean", "nothing"], ["none"]))
    for name, array in found.items():
        nodes.append(helper.make_node("Constant", [], [f"{name}_"], value=numpy_helper.from_array(array)))
        if array.dtype == np.float32:
            nodes.append(helper.make_node("Add", [f"{name}_", "none"], [name]))
        else:
            nodes.append(helper.make_node("Identity", [f"{name}_"], [name]))
    kinds = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}
    outputs = [
        tensor(name, (shapes or {}).get(name, list(one.shape)), kinds[one.dtype.name]) for name, one in found.items()
    ]
    save(path, nodes, [tensor("images", [1, 3, 64, 64])], outputs, {"nothing": np.zeros(1, np.float32)})
    return path


def boxes_step(path: Path) -> Mapping[str, object]:
    description = load_yaml(path.with_name("model.yaml"), ModelDescription)
    (step,) = description.post
    keys: Mapping[str, object] = step.model_dump(exclude_unset=True, by_alias=True)["boxes"]
    return keys


def test_sizes_that_the_file_leaves_open_are_those_of_a_run(tmp_path: Path, in_process: InProcess) -> None:
    raw = np.concatenate([CENTERS * 64, SCORES], axis=2)
    path = finding(tmp_path / "model.onnx", {"output0": raw}, {"output0": [None, None, None]})
    init(in_process, path)
    assert boxes_step(path) == {"from": "output0", "axes": "NAC", "format": "cxcywh"}
    few = finding(tmp_path / "few.onnx", {"output0": raw[:, :5]}, {"output0": [None, None, None]})
    init(in_process, few, "--out", tmp_path / "few.yaml")
    assert load_yaml(tmp_path / "few.yaml", ModelDescription).post == ()


@pytest.mark.parametrize(
    ("boxes", "written"),
    [
        (CORNERS, {"format": "xyxy", "normalized": True}),
        (CORNERS * 64, {"format": "xyxy"}),
        (CENTERS, {"format": "cxcywh", "normalized": True}),
        (CENTERS * 64, {"format": "cxcywh"}),
    ],
)
@pytest.mark.parametrize("layout", ["raw", "raw transposed", "apart"])
def test_how_boxes_are_written_is_seen_in_a_run(
    tmp_path: Path, in_process: InProcess, boxes: Array, written: Mapping[str, object], layout: str
) -> None:
    raw = np.concatenate([boxes, SCORES], axis=2)
    found = {
        "raw": {"output0": raw.swapaxes(1, 2).copy()},
        "raw transposed": {"output0": raw},
        "apart": {"pred_scores": SCORES, "pred_boxes": boxes},
    }[layout]
    model = finding(tmp_path / "model.onnx", found)
    init(in_process, model)
    keys = boxes_step(model)
    assert {key: keys[key] for key in ("format", "normalized") if key in keys} == written


def test_scores_after_a_softmax_have_a_background(tmp_path: Path, in_process: InProcess) -> None:
    shares = SCORES / SCORES.sum(axis=2, keepdims=True)
    model = finding(tmp_path / "model.onnx", {"boxes": CORNERS, "scores": shares})
    report = init(in_process, model)
    assert boxes_step(model)["background"] == 0
    assert any("background" in check["comment"] for check in report["check"])


NUMBERS = CHANCE.integers(1, 3, (1, 200)).astype(np.float32)


@pytest.mark.parametrize("order", [("scores", "classes"), ("classes", "scores")])
@pytest.mark.parametrize("names", [{}, {"classes": "detection_classes", "scores": "detection_scores"}])
def test_classes_and_scores_are_told_apart(
    tmp_path: Path, in_process: InProcess, order: tuple[str, str], names: Mapping[str, str]
) -> None:
    given = {"classes": NUMBERS, "scores": SCORES[:, :, 0]}
    called = {kind: names.get(kind, f"out_{index}") for index, kind in enumerate(order)}
    model = finding(tmp_path / "model.onnx", {"boxes": CORNERS} | {called[kind]: given[kind] for kind in order})
    init(in_process, model)
    keys = boxes_step(model)
    assert {kind: keys[kind] for kind in order} == called


def test_classes_of_whole_numbers_are_no_scores(tmp_path: Path, in_process: InProcess) -> None:
    found = {"det_boxes": CORNERS * 64, "det_scores": SCORES[:, :, 0], "det_classes": NUMBERS.astype(np.int32)}
    model = finding(tmp_path / "model.onnx", found)
    init(in_process, model)
    keys = boxes_step(model)
    assert (keys["classes"], keys["format"], keys.get("normalized", False)) == ("det_classes", "xyxy", False)


@pytest.mark.parametrize(
    "found",
    [
        {"dets": CENTERS, "labels": SCORES * 12 - 6},  # logits
        {"boxes": CORNERS - 0.5, "scores": SCORES - 2},  # offsets of anchors
        {"output0": np.concatenate([CENTERS * 64, SCORES, CENTERS * 64], axis=2).swapaxes(1, 2).copy()},  # keypoints
        {"loc": CORNERS, "conf": SCORES, "landms": SCORES},
    ],
)
def test_what_only_looks_like_a_detector_is_given_as_it_is(
    tmp_path: Path, in_process: InProcess, found: Mapping[str, Array]
) -> None:
    model = finding(tmp_path / "model.onnx", found)
    report = init(in_process, model)
    assert "some look like boxes" in report["not_known"][0]
    description = load_yaml(model.with_name("model.yaml"), ModelDescription)
    assert {one.kind for one in description.signature.outputs.values()} == {"tensor"}


def test_as_many_boxes_as_there_are_belong_to_one_picture(tmp_path: Path, in_process: InProcess) -> None:
    found = {"boxes": CORNERS[0], "labels": NUMBERS[0].astype(np.int64), "scores": SCORES[0, :, 0]}
    shapes: dict[str, list[object]] = {"boxes": ["n", 4], "labels": ["n"], "scores": ["n"]}
    model = finding(tmp_path / "model.onnx", found, shapes)
    report = init(in_process, model)
    assert "some look like boxes" in report["not_known"][0]
    signature = load_yaml(model.with_name("model.yaml"), ModelDescription).signature
    assert ({one.kind for one in signature.outputs.values()}, signature.rows) == ({"tensor"}, False)


@pytest.mark.parametrize("shape", [(1, 197, 768), (1, 64, 64)])
def test_features_and_maps_are_no_boxes(tmp_path: Path, in_process: InProcess, shape: tuple[int, ...]) -> None:
    model = finding(tmp_path / "model.onnx", {"output": np.ones(shape, np.float32)})
    report = init(in_process, model)
    assert "meaning of its outputs is not known" in report["not_known"][0]
    signature = load_yaml(model.with_name("model.yaml"), ModelDescription).signature
    assert signature.outputs["output"].kind == "tensor"


@pytest.mark.parametrize("name", ["out put: 0", 'a "b"', "a\x01b", "null", "ünï"])
def test_a_tensor_may_have_any_name(tmp_path: Path, in_process: InProcess, name: str) -> None:
    model = finding(tmp_path / "model.onnx", {name: np.concatenate([CORNERS, SCORES], axis=2)})
    init(in_process, model)
    keys = boxes_step(model)
    assert (keys["from"], keys["format"]) == (name, "xyxy")
