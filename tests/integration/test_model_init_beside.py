"""`upwell model init` on what lies beside a model: torchvision, Roboflow, Edge Impulse, NVIDIA TAO and OpenVINO.

The texts of torchvision 0.28 and OpenVINO 2026.4 are what these packages wrote. The others are by the published layout:
roboflow/inference (core/models/roboflow.py), edgeimpulse/inferencing-sdk-cpp (model-parameters of any export) and the
keys of DeepStream's Gst-nvinfer, which TAO's `gen_ds_config` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import (
    MEAN,
    RED,
    STD,
    answered,
    averaging,
    described,
    detecting,
    init,
    picture,
    refused,
)
from tests.models.make_described import LABELS

PRESET = """ImageClassification(
    crop_size=[8]
    resize_size=[10]
    mean=[0.485, 0.456, 0.406]
    std=[0.229, 0.224, 0.225]
    interpolation=InterpolationMode.BILINEAR
)
"""
COMPOSED = """Compose(
    Resize(size=10, interpolation=bilinear, max_size=None, antialias=True)
    CenterCrop(size=(8, 8))
    ToTensor()
    Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
)
"""
SECOND = """Compose(
      ToImage()
      Resize(size=[8, 8], interpolation=InterpolationMode.BICUBIC, antialias=True)
      ToDtype(scale=True)
      Normalize(mean=[0.5], std=[0.25], inplace=False)
)
"""
ROBOFLOW = {
    "PREPROCESSING": json.dumps(
        {"auto-orient": {"enabled": True}, "resize": {"width": 8, "height": 8, "format": "Fit (white edges) in"}}
    ),
    "CLASS_MAP": dict(zip("012", LABELS, strict=True)),
    "MODEL_NAME": "weights.onnx",
}
EI_METADATA = """#ifndef _EI_CLASSIFIER_MODEL_METADATA_H_
#define EI_CLASSIFIER_LABEL_COUNT                3
#define EI_CLASSIFIER_INPUT_WIDTH                8
#define EI_CLASSIFIER_INPUT_HEIGHT               8
#define EI_CLASSIFIER_OBJECT_DETECTION           0
#define EI_CLASSIFIER_RESIZE_MODE                EI_CLASSIFIER_RESIZE_FIT_SHORTEST
#endif
"""
EI_VARIABLES = """const char* ei_classifier_inferencing_categories_1[] = { "red", "green", "blue" };
const ei_learning_block_config_tflite_graph_t ei_learning_block_config_5 = {
    .implementation_version = 1,
    .quantized = 0,
    .image_scaling = EI_CLASSIFIER_IMAGE_SCALING_MIN1_1,
};
"""
NVINFER = """[property]
gpu-id=0
net-scale-factor=0.017507
offsets=123.675;116.280;103.53
model-color-format=0
labelfile-path=labels.txt
onnx-file=model.onnx
infer-dims=3;8;8
network-type=1
"""
XML = """<?xml version="1.0"?>
<net name="avg" version="11">
	<layers>
		<layer id="0" name="image" type="Parameter" version="opset1">
			<data shape="1,3,8,8" element_type="f32" />
		</layer>
	</layers>
	<rt_info>
		<info name="OpenVINO Runtime" value="2026.4.1-22982-e213a147257-releases/2026/4" />
		<model_info>
			<labels value="red green blue" />
			<mean_values value="123.675 116.28 103.53" />
			<model_type value="Classification" />
			<resize_type value="standard" />
			<reverse_input_channels value="YES" />
			<scale_values value="58.395 57.12 57.375" />
		</model_info>
	</rt_info>
</net>
"""
IMAGENET = (np.array(RED) / 255 - MEAN) / STD
NAMED = ("red", "green", "blue")


def put(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "source", "values", "labels", "said"),
    [
        ({"transforms.txt": PRESET, "classes.txt": "red\ngreen\nblue\n"}, "torchvision", IMAGENET, NAMED,
         "resize: {from: image, to: [10, 10], fit: cover, filter: bilinear}"),
        ({"preprocess.txt": COMPOSED}, "torchvision", IMAGENET, (), "crop: {from: image, to: [8, 8]}"),
        ({"transforms.txt": SECOND}, "torchvision", (np.array(RED) / 255 - 0.5) / 0.25, (),
         "to: [8, 8], fit: stretch, filter: bicubic"),
        ({"environment.json": json.dumps(ROBOFLOW), "model_type.json": '{"project_task_type": "classification", '
          '"model_type": "yolov8n"}'}, "Roboflow", None, LABELS, "fit: contain, filter: bilinear, fill: 255"),
        ({"model-parameters/model_metadata.h": EI_METADATA, "model-parameters/model_variables.h": EI_VARIABLES},
         "Edge Impulse", np.array(RED) / 127.5 - 1, NAMED, "fit: cover"),
        ({"nvinfer_config.txt": NVINFER, "labels.txt": "red;green;blue\n"}, "NVIDIA",
         (np.array(RED) - [123.675, 116.28, 103.53]) * 0.017507, NAMED, "fit: stretch"),
        ({"model.xml": XML}, "OpenVINO", IMAGENET, NAMED, "fit: stretch, filter: bilinear"),
    ],
)  # fmt: skip
def test_what_lies_beside_a_classifier_is_enough(
    tmp_path: Path, in_process: InProcess, files: Mapping[str, str], source: str, values: Any, labels: Any, said: str
) -> None:
    model = averaging(tmp_path / "model.onnx")
    put(tmp_path, files)
    more = ("--force",) if "labels.txt" in files else ()  # of one line, and written anew with a label a line
    report = init(in_process, model, "--try", picture(tmp_path / "photo.png"), *more)
    assert source in report["source"]
    # A list of transforms does not say that it is a classifier's.
    assert [one["line"] for one in report["check"]] == ([8] if "Compose" in "".join(files.values()) else [])
    assert report["not_known"] == []
    assert report["tried"]["found"]
    kind, found, names = answered(model)
    assert names == labels
    assert kind == ("probabilities" if source == "Edge Impulse" else "logits")
    if values is not None:
        np.testing.assert_allclose(found, [values], atol=0.03)
    assert said in model.with_name("model.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (PRESET.replace("ImageClassification", "SemanticSegmentation").replace("    crop_size=[8]\n", ""), IMAGENET),
        ("ObjectDetection()", np.array(RED) / 255),
    ],
)
def test_a_preset_that_keeps_the_shape_says_what_pixels_become(
    tmp_path: Path, in_process: InProcess, text: str, values: Any
) -> None:
    model = averaging(tmp_path / "model.onnx")
    put(tmp_path, {"transforms.txt": text})
    comments = [check["comment"] for check in init(in_process, model)["check"]]
    assert not any("0..255" in comment for comment in comments)
    assert any(comment.startswith("fit as in training") for comment in comments)
    np.testing.assert_allclose(answered(model)[1], [values], atol=0.03)


def test_labels_alone_do_not_say_what_pictures_become(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "model.onnx")
    lines = [line for line in XML.splitlines() if not re.search("mean_values|scale_values|resize_type", line)]
    put(tmp_path, {"model.xml": "\n".join(lines)})
    comments = [check["comment"] for check in init(in_process, model)["check"]]
    assert [comment.split()[0] for comment in comments] == ["fit", "0..255"]
    assert answered(model)[2] == NAMED


def test_an_onnx_file_of_otx_says_it_itself(tmp_path: Path, in_process: InProcess) -> None:
    info = {"labels": "red green blue", "mean_values": "0.0 0.0 0.0", "scale_values": "255.0 255.0 255.0",
            "resize_type": "fit_to_window_letterbox", "pad_value": "114", "reverse_input_channels": "True",
            "model_type": "Classification"}  # fmt: skip
    model = averaging(tmp_path / "model.onnx")
    described(model, {f"model_info {key}": value for key, value in info.items()})
    report = init(in_process, model)
    assert (report["check"], report["not_known"]) == ([], [])
    assert answered(model)[2] == NAMED
    assert "fit: contain, filter: bilinear, fill: 114" in model.with_name("model.yaml").read_text()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"transforms.txt": COMPOSED.replace("ToTensor()", "Grayscale(num_output_channels=1)")}, "Grayscale"),
        ({"transforms.txt": COMPOSED.replace("    CenterCrop(size=(8, 8))\n", "")}, "depends on the picture"),
        ({"transforms.txt": COMPOSED.replace("=bilinear", "=lanczos")}, "lanczos"),
        ({"transforms.txt": SECOND.replace(")\n)", ")\n    Normalize(mean=[0.1], std=[2.0])\n)")}, "this order"),
        (
            {"transforms.txt": COMPOSED.replace("Resize(size=10", "CenterCrop(size=9)\n    Resize(size=10")},
            "this order",
        ),
        ({"transforms.txt": COMPOSED.replace("ToTensor()", "Resize(size=[8, 8])")}, "this order"),
        (
            {"nvinfer_config.txt": NVINFER.replace("format=0", "format=1").replace("labels.txt", "l" * 300)},
            "blue, green, red",
        ),
        ({"nvinfer_config.txt": NVINFER + "maintain-aspect-ratio=1\n"}, "which no `fit` does"),
        ({"model.xml": XML.replace('"YES"', '"NO"')}, "red, green, blue or the reverse"),
        ({"model.xml": XML.replace('"standard"', '"fit_to_window"')}, "'fit_to_window' is not supported"),
        ({"model.xml": XML.replace("<labels", '<multilabel value="True" />\n\t\t\t<labels')}, "several of its labels"),
        ({"environment.json": json.dumps(ROBOFLOW)}, "do not say how pixel values are scaled"),
        ({"environment.json": json.dumps({"PREPROCESSING": {"grayscale": {"enabled": True}}})}, "its step 'grayscale'"),
    ],
)
def test_what_no_step_does_is_said_and_not_guessed(
    tmp_path: Path, in_process: InProcess, files: Mapping[str, str], said: str
) -> None:
    model = averaging(tmp_path / "model.onnx")
    put(tmp_path, files)
    assert any(said in note for note in init(in_process, model)["not_known"])


def test_detectors_of_others_give_their_tensors_as_they_are(tmp_path: Path, in_process: InProcess) -> None:
    for number, files in enumerate((
        {"environment.json": json.dumps(ROBOFLOW),
         "model_type.json": '{"project_task_type": "object-detection", "model_type": "rfdetr-base"}'},
        {"nvinfer_config.txt": NVINFER.replace("network-type=1", "network-type=0")},
        {"model.xml": XML.replace('"Classification"', '"ssd"')},
        {"model-parameters/model_metadata.h": EI_METADATA.replace("DETECTION           0", "DETECTION           1"),
         "model-parameters/model_variables.h": EI_VARIABLES},
    )):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        model = detecting(folder / "model.onnx", {}, np.zeros((1, 7, 10)))
        put(folder, files)
        report = init(in_process, model)
        assert any("unchanged" in note for note in report["not_known"])
        assert "kind: detections" not in model.with_name("model.yaml").read_text()


def test_a_model_with_a_side_of_four_has_no_labels_where_there_is_no_file(
    tmp_path: Path, in_process: InProcess
) -> None:
    model = detecting(tmp_path / "model.onnx", {}, np.zeros((1, 100, 4)))
    assert init(in_process, model)["source"] == ""


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


@pytest.mark.parametrize("name", ["environment.json", "transforms.txt", "nvinfer_config.txt", "model.xml",
                                  "model-parameters/model_metadata.h"])  # fmt: skip
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text("<!DOCTYPE a [" + '<!ENTITY a "aaaaaaaaaa">' * 9 + "]><net>&a;"),
        sparse,
    ],
)
def test_a_file_beside_it_that_is_damaged_or_of_a_gigabyte_is_one_line(
    tmp_path: Path, in_process: InProcess, name: str, damage: Callable[[Path], Any]
) -> None:
    model = averaging(tmp_path / "model.onnx")
    put(tmp_path, {"model-parameters/model_variables.h": EI_VARIABLES, name: ""})
    damage(tmp_path / name)
    done = in_process("model", "init", model)
    if done.code == 0:  # a text that is of none of these layouts is nobody's
        assert (tmp_path / name).read_bytes()[:1] in (b"[", b"<")
    else:
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert Path(name).name in done.err


def test_a_label_of_roboflow_is_one_line(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "model.onnx")
    put(tmp_path, {"environment.json": json.dumps({**ROBOFLOW, "CLASS_MAP": {"0": "\n a\nb", "1": "c", "2": "d"}})})
    init(in_process, model)
    assert answered(model)[2] == ("a b", "c", "d")


def test_an_xml_alone_is_refused_with_what_to_do(tmp_path: Path, in_process: InProcess) -> None:
    (tmp_path / "model.xml").write_text(XML)
    text = refused(in_process("model", "init", tmp_path / "model.xml"))
    assert "export the original model to ONNX" in text
    assert "beside" in text


def test_a_number_that_is_none_is_no_normalization(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "model.onnx")
    put(tmp_path, {"nvinfer_config.txt": NVINFER.replace("0.017507", "__import__('os')").replace("123.675", "nan")})
    init(in_process, model)
    assert "import" not in model.with_name("model.yaml").read_text()
