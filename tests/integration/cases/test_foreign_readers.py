"""Exports read by readers that are not ours: supervision, and the converter of Label Studio's own SDK."""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.integration.cases.made_cases import CLASSIFIER, NAMES, Made, encoded, keep
from tests.integration.cases.test_exports import detections, run, same_boxes, scores, wanted_boxes

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "OpenCV", UserWarning)  # it has a way without
    supervision: Any = pytest.importorskip(
        "supervision", reason="not in the sets for numpy 1 and for the lowest versions"
    )

STUDIO = Path(__file__).parents[3] / ".venv-studio/bin/python"
CONVERT = """
import sys
from label_studio_sdk.converter import Converter
config, tasks, out = sys.argv[1:]
converter = Converter(open(config, encoding="utf-8").read(), ".", download_resources=False)
converter.convert_to_coco(tasks, out, is_dir=False) if "Rectangle" in open(config, encoding="utf-8").read() else (
    converter.convert_to_json_min(tasks, out, is_dir=False))
"""
Boxes = list[tuple[str, list[float]]]
many = pytest.mark.parametrize("number", [20, pytest.param(1000, marks=pytest.mark.exhaustive)])


def read_dataset(dataset: Any) -> Iterator[tuple[str, Boxes]]:
    for path, found in dataset.annotations.items():
        with Image.open(path) as picture:
            size = np.array([*picture.size, *picture.size])
        numbers = [] if found.class_id is None else found.class_id.tolist()
        yield (
            Path(path).stem,
            [(dataset.classes[number], (box / size).tolist()) for number, box in zip(numbers, found.xyxy, strict=True)],
        )


def close_boxes(found: Boxes, wanted: Boxes) -> None:
    """Equal but for the 32 bits in which supervision keeps pixels."""
    assert [name for name, _ in found] == [name for name, _ in wanted]
    for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@many
def test_supervision_reads_the_same_boxes_and_labels(tmp_path: Path, number: int) -> None:
    made = detections(tmp_path / "state", number)
    for form in ("coco", "yolo"):
        run("cases", "export", tmp_path / "state", "--format", form, "--out", tmp_path / form)
    coco = supervision.DetectionDataset.from_coco(
        str(tmp_path / "coco/images"), str(tmp_path / "coco/annotations.json")
    )
    yolo = supervision.DetectionDataset.from_yolo(
        str(tmp_path / "yolo/images"), str(tmp_path / "yolo/labels"), str(tmp_path / "yolo/data.yaml")
    )
    for dataset in (coco, yolo):
        read = dict(read_dataset(dataset))
        assert set(read) == set(made)
        for id, found in read.items():
            close_boxes(found, wanted_boxes(made[id]))


def converted(folder: Path, out: Path) -> Path:
    """The tasks as people label them, who agree with the cloud, through Label Studio's converter. Skips the test where
    its SDK is missing (`make .venv-studio/.done`), unless UPWELL_NEEDS_STUDIO is set."""
    if not STUDIO.exists():
        if os.environ.get("UPWELL_NEEDS_STUDIO"):
            pytest.fail("there is no .venv-studio, and UPWELL_NEEDS_STUDIO is set")
        pytest.skip("there is no .venv-studio: make .venv-studio/.done")
    tasks = json.loads((folder / "tasks.json").read_text())
    for number, task in enumerate(tasks):
        annotation = {"id": number, "result": task["predictions"][1]["result"], "was_cancelled": False}
        task |= {"id": number, "annotations": [annotation]}
    (folder / "labelled.json").write_text(json.dumps(tasks))
    command = [str(STUDIO), "-c", CONVERT, *map(str, (folder / "label-config.xml", folder / "labelled.json", out))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return out / "result.json"


@pytest.mark.exhaustive
def test_the_converter_of_label_studio_reads_the_same_boxes_and_labels(tmp_path: Path) -> None:
    made = detections(tmp_path / "state", 1000)
    run("cases", "export", tmp_path / "state", "--format", "label-studio", "--out", tmp_path / "studio")
    document = json.loads(converted(tmp_path / "studio", tmp_path / "out").read_text())
    names = {one["id"]: one["name"] for one in document["categories"]}
    found: dict[int, Boxes] = {one["id"]: [] for one in document["images"]}
    sizes = {one["id"]: np.array([one["width"], one["height"]] * 2) for one in document["images"]}
    for one in document["annotations"]:
        x, y, width, height = one["bbox"]
        corners = np.array([x, y, x + width, y + height]) / sizes[one["image_id"]]
        found[one["image_id"]].append((names[one["category_id"]], corners.tolist()))
    assert len(found) == len(made)
    for one in document["images"]:
        same_boxes(found[one["id"]], wanted_boxes(made[Path(one["file_name"]).stem]))


@pytest.mark.exhaustive
def test_the_converter_of_label_studio_reads_the_same_classes(tmp_path: Path) -> None:
    made = [
        Made(encoded((5, 4), seed=n), {"scores": scores(n % len(NAMES))}, {"scores": scores(0)}, CLASSIFIER)
        for n in range(1000)
    ]
    ids = keep(tmp_path / "state", made)
    run("cases", "export", tmp_path / "state", "--format", "label-studio", "--out", tmp_path / "studio")
    document = json.loads(converted(tmp_path / "studio", tmp_path / "out").read_text())
    assert {one["case"]: one["label"] for one in document} == {
        id: NAMES[n % len(NAMES)] for n, id in enumerate(ids)
    }  # fmt: skip
