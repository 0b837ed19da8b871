"""`upwell model init` on folders of Hugging Face whose models give no scores of classes for a picture or a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import answered, init
from tests.models.make_described import LABELS
from tests.unit.models_for_tests import save, tensor
from upwell.shared.config.yaml import load_yaml
from upwell.shared.signature.model_yaml import ModelDescription

PROCESSOR = {
    "image_processor_type": "SegformerImageProcessor",
    "size": {"height": 8, "width": 8},
    "do_reduce_labels": True,
}


def folder(path: Path, architecture: str, processor: dict[str, Any]) -> Path:
    config = {"model_type": "x", "architectures": [architecture], "id2label": dict(enumerate(LABELS))}
    (path / "config.json").write_text(json.dumps(config))
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def kinds(path: Path) -> dict[str, str]:
    description = load_yaml(path / "model.yaml", ModelDescription)
    return {
        name: one.kind for name, one in (*description.signature.inputs.items(), *description.signature.outputs.items())
    }


def test_the_class_of_each_pixel(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [helper.make_node("AveragePool", ["pixel_values"], ["logits"], kernel_shape=[4, 4], strides=[4, 4])]
    save(tmp_path / "model.onnx", nodes, [tensor("pixel_values", ["n", 3, 8, 8])], [tensor("logits", ["n", 3, 2, 2])])
    report = init(in_process, folder(tmp_path, "XForSemanticSegmentation", PROCESSOR))
    assert report["check"] == report["not_known"] == []
    kind, values, labels = answered(tmp_path / "model.onnx")
    assert (kind, labels) == ("segments", LABELS)
    assert (values[..., 0] == 0).all()  # the picture is red
    assert values.shape == (1, 2, 2, 2)


def test_features_of_a_picture_are_no_boxes(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "pooled_shape"], ["pooled"]),
        helper.make_node("Expand", ["pooled", "wide"], ["pooler_output"]),
        helper.make_node("Reshape", ["mean", "shape"], ["deep"]),
        helper.make_node("Expand", ["deep", "large"], ["last_hidden_state"]),
    ]
    constants = {
        "shape": np.array([1, 1, 1], np.int64), "large": np.array([1, 16, 768], np.int64),
        "pooled_shape": np.array([1, 1], np.int64), "wide": np.array([1, 768], np.int64),
    }  # fmt: skip
    outputs = [tensor("last_hidden_state", [1, 16, 768]), tensor("pooler_output", [1, 768])]
    save(tmp_path / "model.onnx", nodes, [tensor("pixel_values", [1, 3, 8, 8])], outputs, constants)
    report = init(in_process, folder(tmp_path, "ViTModel", {"size": {"height": 8, "width": 8}}))
    assert report["not_known"] == ["what ViTModel gives is not known here"]
    assert kinds(tmp_path) == {"image": "image", "last_hidden_state": "tensor", "pooler_output": "embedding"}


def test_what_becomes_of_sound_is_not_known(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [helper.make_node("Slice", ["input_values", "start", "end", "axis"], ["logits"])]
    constants = {name: np.array([value], np.int64) for name, value in (("start", 0), ("end", 3), ("axis", 1))}
    save(tmp_path / "model.onnx", nodes, [tensor("input_values", ["n", "t"])], [tensor("logits", ["n", 3])], constants)
    processor = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": True, "sampling_rate": 16000}
    report = init(in_process, folder(tmp_path, "Wav2Vec2ForSequenceClassification", processor))
    assert report["not_known"] == [
        "what Wav2Vec2FeatureExtractor makes of sound, which no step does: its inputs are tensors here"
    ]
    assert kinds(tmp_path) == {"input_values": "tensor", "logits": "logits"}
