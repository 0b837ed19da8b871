"""Damaged models, and hostile or huge files that a model.yaml names: one error of one sentence, and no bundle."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.in_process import InProcess
from tests.integration.test_model_init_exporters import averaging
from tests.models.make_described import FOLDER

PICTURE = "pre: [{decode: image}, {resize: {to: [8, 8], fit: stretch}}, {normalize: {}}, {layout: NCHW}]\n"
SCORES = (
    "version: 1\nsignature: {inputs: {image: {kind: image}}, outputs: {logits: {kind: logits, labels: labels.txt}}}\n"
)
BOXES = (
    "version: 1\nsignature: {inputs: {image: {kind: image}}, outputs: {detections: {kind: detections}}}\n"
    + PICTURE
    + "post: [{boxes: {from: logits, axes: NCA, format: cxcywh, %s}}]\n"
)
TEXT = (
    "version: 1\nsignature: {inputs: {text: {kind: text}}, outputs: {logits: {kind: logits}}}\n"
    "pre: [{tokenize: {from: text, tokenizer: tokenizer.json}}]\npost: []\n"
)
TABLE = (
    "version: 1\nsignature: {inputs: {row: {kind: record, columns: %s}}, outputs: {logits: {kind: logits}}}\n"
    "pre: [{columns: {from: row, to: pixel_values}}]\npost: []\n"
)
SOUND = (
    "version: 1\nsignature: {inputs: {sound: {kind: tensor, dtype: FP32, shape: [-1, 16000]}}, "
    "outputs: {logits: {kind: logits}}}\n"
    "pre: [{mel: {from: sound, to: pixel_values, sample_rate: 16000, %s}}]\npost: []\n"
)


pytestmark = pytest.mark.slow


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def deep(path: Path) -> None:
    path.write_text("[" * 20_000)


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("description", "name", "damage", "said"),
    [
        (SCORES + PICTURE + "post: []\n", "labels.txt", sparse, "labels.txt"),
        (SCORES + PICTURE + "post: []\n", "labels.txt", no_text, "labels.txt"),
        (SCORES + PICTURE + "post: []\n", "labels.txt", Path.unlink, "labels.txt"),
        (SCORES + PICTURE + "post: []\n", "model.onnx", cut, "model.onnx"),
        (SCORES + PICTURE + "post: []\n", "model.yaml", sparse, "model.yaml"),
        (SCORES + PICTURE + "post: []\n", "model.yaml", deep, "model.yaml"),
        (TEXT, "tokenizer.json", cut, "tokenizer"),
        (TEXT, "tokenizer.json", deep, "tokenizer"),
        (TEXT, "tokenizer.json", sparse, "tokenizer"),
        (BOXES % "keypoints: [2, 9]", "", None, "keypoints"),
        (BOXES % "prototypes: nowhere, masks: masks", "", None, "nowhere"),
        (BOXES % "iou: 7", "", None, "iou"),
        (TABLE % "{a: {categories: 7}}", "", None, "categories"),
        (TABLE % "{}", "", None, "columns"),
        (SOUND % "n_fft: 1000000000000", "", None, "n_fft"),
        (SOUND % "high: 99999", "", None, "high"),
    ],
)
def test_what_a_model_yaml_names_may_be_anything(
    tmp_path: Path, in_process: InProcess, description: str, name: str, damage: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "model"
    averaging(folder / "model.onnx")
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "model.yaml").write_text(description)
    shutil.copy(FOLDER / "optimum_bert" / "tokenizer.json", folder)
    if name:
        damage(folder / name)
    done = in_process("model", "pack", folder, "--version", "1", "--out", tmp_path / "out.tar")
    assert (done.code in (1, 2), done.out) == (True, ""), done.err  # 1: a description that no bundle may hold
    assert done.err.startswith(("error: ", "refused "))
    assert said in done.err
    assert "Traceback" not in done.err
    assert len(done.err) < 2000
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_a_file_of_labels_of_a_gigabyte_beside_a_model_is_an_error(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "model.onnx")
    sparse(tmp_path / "classes.txt")
    done = in_process("model", "init", model)
    assert (done.code, "classes.txt" in done.err, done.err.count("\n")) == (2, True, 1)
    assert not (tmp_path / "model.yaml").exists()
