"""`upwell model init` on what no exporter has written: damaged, hostile or somebody else's."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import answered, averaging, init, picture, refused, ultralytics
from tests.models.make_described import FOLDER, LABELS


@pytest.mark.parametrize(
    "names",
    ["{0: 'a', 1:", "__import__('os').system('x')", "[" * 5000, "{0: 1, 1: 2}", "x" * 2_000_000, "{0: 'a', 5: 'b'}"],
    ids=["cut", "call", "deep", "numbers", "long", "gaps"],
)
def test_names_that_are_no_labels_are_none(tmp_path: Path, in_process: InProcess, names: str) -> None:
    model = averaging(tmp_path / "m.onnx", metadata=ultralytics("classify", 8, names), name="output0")
    init(in_process, model)
    assert answered(model)[2] == ()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", "{", "not JSON"),
        ("config.json", "[]", "expected a JSON object"),
        ("config.json", '{"model_type": "x", "id2label": ' + "[" * 100_000, "config.json"),
        ("preprocessor_config.json", "x", "not JSON"),
    ],
)
def test_a_file_beside_it_that_is_wrong_is_named(
    tmp_path: Path, in_process: InProcess, name: str, text: str, said: str
) -> None:
    model = averaging(tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / name).write_text(text)
    message = refused(in_process("model", "init", model))
    assert name in message
    assert said in message
    assert not (tmp_path / "model.yaml").exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", {"architectures": 5}),
        ("config.json", {"model_type": "vit\npost: [{rename: {from: a, to: b}}]"}),
        ("config.json", {"model_type": "\x1b[2J" + "x" * 3_000_000}),
        ("preprocessor_config.json", {"rescale_factor": 10**400}),
        ("preprocessor_config.json", {"rescale_factor": 1e308}),
        ("preprocessor_config.json", {"image_mean": [0.5] * 3, "image_std": [5e-324] * 3}),
        ("preprocessor_config.json", {"image_processor_type": "ConvNext", "size": {"shortest_edge": 8},
                                      "crop_pct": 5e-324}),
        ("config.json", {"model_type": None, "pretrained_cfg": {"input_size": [3, 8, 8], "crop_mode": []}}),
        ("config.json", {"model_type": None, "pretrained_cfg": {"input_size": [3, 8, 8], "crop_pct": 5e-324}}),
    ],
)  # fmt: skip
def test_values_that_no_exporter_writes_are_not_taken(
    tmp_path: Path, in_process: InProcess, name: str, change: dict[str, Any]
) -> None:
    model = averaging(tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    (tmp_path / name).write_text(json.dumps({"model_type": "vit", **change}))
    report = init(in_process, model, "--try", picture(tmp_path / "photo.png"))
    assert all(len(line) <= 600 and line.isprintable() for line in (report["source"], *report["not_known"]))
    assert model.with_name("model.yaml").read_text().endswith("\npost: []\n")


def test_labels_of_somebody_else_are_not_replaced(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "best.onnx", metadata=ultralytics("classify", 8), name="output0")
    (tmp_path / "labels.txt").write_text("mine\n")
    assert "labels.txt: already exists" in refused(in_process("model", "init", model))
    assert not (tmp_path / "model.yaml").exists()
    init(in_process, model, "--force")
    assert answered(model)[2] == LABELS


@pytest.mark.parametrize("damage", ["cut", "zip", "none"])
def test_damaged_tflite_metadata_is_no_metadata(tmp_path: Path, in_process: InProcess, damage: str) -> None:
    data = bytearray((FOLDER / "tflite_support_fp32.tflite").read_bytes())
    if damage == "cut":
        data = data[: data.rindex(b"PK\x03\x04") + 10]
    elif damage == "zip":
        data[data.rindex(b"PK\x05\x06") + 12 : data.rindex(b"PK\x05\x06") + 16] = b"\xff\xff\xff\x7f"
    else:
        data[data.index(b"M001") : data.index(b"M001") + 4] = b"XXXX"
    (tmp_path / "model.tflite").write_bytes(data)
    init(in_process, tmp_path / "model.tflite")
    assert answered(tmp_path / "model.tflite")[2] == ()


@pytest.mark.parametrize(("block", "code"), [(b"Exif\0\0garbage!!", 0), (None, 2)])
def test_a_picture_is_tried_as_the_agent_reads_it(
    tmp_path: Path, in_process: InProcess, block: bytes | None, code: int
) -> None:
    model = averaging(tmp_path / "m.onnx", metadata=ultralytics("classify", 8), name="output0")
    data = io.BytesIO()
    Image.new("RGB", (9, 9)).save(data, "BMP" if block is None else "JPEG")
    sample = tmp_path / "sample.jpg"
    marker = b"" if block is None else b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    sample.write_bytes(data.getvalue()[:2] + marker + data.getvalue()[2:])
    ended = in_process("model", "init", model, "--try", sample)
    assert ended.code == code, ended.err
    assert ("sample.jpg" in ended.err) is (code == 2)
