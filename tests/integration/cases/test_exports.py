"""Exports read back by other readers, labels that come back, and that an export is whole or not there at all."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from ruamel.yaml import YAML
from typer.testing import CliRunner

from tests.integration.cases.made_cases import (
    CLASSIFIER,
    NAMES,
    Made,
    as_input,
    boxes,
    encoded,
    keep,
    random_pictures,
)  # fmt: skip
from upwell.edge.case_collection.case_database import FILE_NAME
from upwell.edge.case_collection.collected_case import CaseSignature, CollectedCase
from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named
from upwell.shared.signature.picture_codec import decode
from upwell.shared.tensors import Array
from upwell.tools.cases import case_exports, case_labels, cli
from upwell.tools.cases.case_exports import FORMATS, ExportTask, LeftOut, yolo
from upwell.tools.cases.case_labels import LABELS_NAME, read_labels
from upwell.tools.cases.case_source import CaseDatabase, open_source
from upwell.tools.cases.contact_sheet import html_sheet, png_sheet
from upwell.tools.cli import build_app

ROOT = Path(__file__).parents[3]
many = pytest.mark.parametrize("number", [25, pytest.param(1000, marks=pytest.mark.slow)])


def run(*arguments: str | Path) -> Any:
    """What a command says with --json. Raises what it raises."""
    texts = [*map(str, arguments), "--json"]
    done = CliRunner().invoke(build_app(texts), texts)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def detections(folder: Path, number: int) -> dict[str, Made]:
    dice = random.Random(number)
    made = [
        Made(picture, {"found": boxes(dice)}, {"found": boxes(dice)}, tags={"who": dice.choice(NAMES)})
        for picture in random_pictures(dice, number)
    ]
    return dict(zip(keep(folder, made), made, strict=True))


def scores(best: int) -> Array:
    found = np.full((1, len(NAMES)), 0.05, np.float32)
    found[0, best] = 0.55
    return found


def wanted_boxes(made: Made) -> list[tuple[str, list[float]]]:
    """What the cloud said, as names and fractions."""
    return [(NAMES[int(b[5])], b[:4].tolist()) for b in made.cloud["found"][0].astype(float) if b[5] >= 0]


def same_boxes(found: list[tuple[str, list[float]]], wanted: list[tuple[str, list[float]]]) -> None:
    assert [name for name, _ in found] == [name for name, _ in wanted]
    for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@many
def test_pycocotools_reads_the_same_boxes_and_labels(tmp_path: Path, number: int) -> None:
    made = detections(tmp_path / "state", number)
    run("cases", "export", tmp_path / "state", "--format", "coco", "--out", tmp_path / "out")
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "out" / "annotations.json"))
    names = {one["id"]: one["name"] for one in coco.loadCats(coco.getCatIds())}
    images = coco.loadImgs(coco.getImgIds())
    assert {one["case"] for one in images} == set(made)
    for image in images:
        with Image.open(tmp_path / "out" / "images" / image["file_name"]) as opened:
            assert opened.size == (image["width"], image["height"])
        size = np.array([image["width"], image["height"]] * 2)
        found = []
        for one in coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]])):
            x, y, width, height = one["bbox"]
            found.append((names[one["category_id"]], (np.array([x, y, x + width, y + height]) / size).tolist()))
        same_boxes(found, wanted_boxes(made[image["case"]]))


@many
def test_yolo_and_label_studio_say_the_same(tmp_path: Path, number: int) -> None:
    made = detections(tmp_path / "state", number)
    run("cases", "export", tmp_path / "state", "--format", "yolo", "--out", tmp_path / "yolo")
    run("cases", "export", tmp_path / "state", "--format", "label-studio", "--out", tmp_path / "studio")
    names = YAML(typ="safe", pure=True).load(tmp_path / "yolo" / "data.yaml")["names"]
    for id, one in made.items():
        found = []
        for line in (tmp_path / "yolo" / "labels" / f"{id}.txt").read_text().splitlines():
            number_, cx, cy, width, height = line.split()
            x, y, w, h = map(float, (cx, cy, width, height))
            found.append((names[int(number_)], [x - w / 2, y - h / 2, x + w / 2, y + h / 2]))
        same_boxes(found, wanted_boxes(one))
    tasks = json.loads((tmp_path / "studio" / "tasks.json").read_text())
    assert {task["data"]["case"] for task in tasks} == set(made)
    for task in tasks:
        edge, cloud = task["predictions"]
        assert (edge["model_version"], cloud["model_version"]) == ("edge sha256:e", "cloud sha256:c")
        found = []
        for region in cloud["result"]:
            value = region["value"]
            x, y, w, h = (value[key] / 100 for key in ("x", "y", "width", "height"))
            found.append((value["rectanglelabels"][0], [x, y, x + w, y + h]))
        same_boxes(found, wanted_boxes(made[task["data"]["case"]]))
        assert task["data"]["tags"] == made[task["data"]["case"]].tags
        file = tmp_path / unquote(task["data"]["image"].partition("?d=")[2])
        assert file.parts[-3] == "studio"
        assert file.is_file()
    interface = ElementTree.parse(tmp_path / "studio" / "label-config.xml")  # noqa: S314  our own, a line above
    offered = [one.get("value") for one in interface.iter("Label")]
    assert offered == list(NAMES)


def test_classes_as_folders_tables_and_names_that_no_file_system_takes(tmp_path: Path) -> None:
    import pyarrow.parquet  # these two take more than a second, in every process that collects tests
    from sklearn.datasets import load_files

    made = [Made(encoded((5, 4), seed=n), {"scores": scores(n)}, {"scores": scores(0)}, CLASSIFIER) for n in range(10)]
    ids = keep(tmp_path / "state", made)
    for form in ("imagefolder", "csv", "parquet"):
        said = run("cases", "export", tmp_path / "state", "--format", form, "--out", tmp_path / form)
        assert (said["cases"], said["left_out"]) == (10, {})
    classes = json.loads((tmp_path / "imagefolder" / "classes.json").read_text())
    loaded = load_files(str(tmp_path / "imagefolder"))
    found = {
        Path(file).stem: (classes[loaded.target_names[target]], data)
        for file, target, data in zip(loaded.filenames, loaded.target, loaded.data, strict=True)
    }
    assert found == {id: (NAMES[n], made[n].picture) for n, id in enumerate(ids)}
    with (tmp_path / "csv" / "cases.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert {id: row["label"] for id, row in rows.items()} == dict(zip(ids, NAMES, strict=True))
    run("cases", "import", tmp_path / "state", checked(tmp_path / "csv" / "cases.csv"), "--format", "csv")
    assert [read_labels(tmp_path / "state")[id].label for id in ids] == list(NAMES)
    table = pyarrow.parquet.read_table(tmp_path / "parquet" / "cases.parquet").to_pylist()
    assert {row["id"]: row["label"] for row in table} == dict(zip(ids, NAMES, strict=True))
    assert all((tmp_path / "csv" / row["file"]).read_bytes() == made[n].picture for n, row in enumerate(rows.values()))


def test_texts_and_tensors_go_out_with_their_cases(tmp_path: Path) -> None:
    import pyarrow.parquet

    reader = CaseSignature.model_validate(
        {
            "has_rows": True,
            "inputs": [{"name": "words", "kind": "text"}, {"name": "file", "kind": "tensor"}],
            "outputs": [{"name": "scores", "kind": "logits", "labels": ["no", "yes"]}],
        }
    )
    texts, ages = ["a <b> & c\nd \U0001f600", "long " * 40_000], np.array([[0.5, 2.0]], np.float32)
    said_yes = {"scores": np.array([[0.0, 1.0]], np.float32)}
    made = [
        Made(b"", said_yes, {}, reader, inputs={"words": as_input(text.encode()), "file": ages + n})
        for n, text in enumerate(texts)
    ]
    ids = keep(tmp_path / "state", made)
    for form in ("csv", "parquet", "label-studio"):
        said = run("cases", "export", tmp_path / "state", "--format", form, "--out", tmp_path / form)
        assert (said["cases"], said["left_out"]) == (2, {})
    table = pyarrow.parquet.read_table(tmp_path / "parquet" / "cases.parquet").to_pylist()
    assert {row["id"]: row["text"] for row in table} == dict(zip(ids, texts, strict=True))
    for number, row in enumerate(table):
        with np.load(tmp_path / "parquet" / row["tensors"]) as tensors:
            np.testing.assert_array_equal(tensors["file"], ages + number)
    assert (
        run("cases", "import", tmp_path / "state", checked(tmp_path / "csv" / "cases.csv"), "--format", "csv")["labels"]
        == 2
    )
    tasks = json.loads((tmp_path / "label-studio" / "tasks.json").read_text())
    assert [task["data"]["text"] for task in tasks] == texts
    (choice,) = tasks[0]["predictions"][0]["result"]
    interface = ElementTree.parse(tmp_path / "label-studio" / "label-config.xml")  # noqa: S314  our own, a line above
    shown, control = interface.find("Text"), interface.find("Choices")
    assert shown is not None
    assert control is not None
    assert (shown.get("name"), shown.get("value")) == (choice["to_name"], "$text")
    assert (control.get("toName"), control.get("name")) == (choice["to_name"], choice["from_name"])
    assert b"a &lt;b&gt; &amp; c d" in html_sheet(one.case() for one in made)
    assert png_sheet((one.case() for one in made), 2) != png_sheet(
        (Made(b"", {}, {}, reader, inputs={"file": ages}).case() for _ in made), 2
    )


@pytest.mark.parametrize(("kind", "shape"), [("segments", (1, 2, 2, 2)), ("logits", (1, 3, 4))])
def test_answers_of_many_positions_are_no_label(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    outputs = [{"name": "found", "kind": kind, "labels": ["a", "b", "c", "d"]}]
    signature = CaseSignature.model_validate(
        {"has_rows": True, "inputs": [{"name": "image", "kind": "image"}], "outputs": outputs}
    )
    answer = np.arange(np.prod(shape), dtype=np.uint8 if kind == "segments" else np.float32).reshape(shape)
    (id,) = keep(tmp_path / "state", [Made(encoded((4, 4)), {"found": answer}, {}, signature, inclusion=0.5)])
    run("cases", "export", tmp_path / "state", "--format", "csv", "--set", "all", "--out", tmp_path / "out")
    (row,) = csv.DictReader((tmp_path / "out" / "cases.csv").read_text().splitlines())
    assert (row["cloud"], row["label"]) == ("", "")
    if kind == "logits":
        return
    with pytest.raises(ConfigError, match="only classes, boxes and numbers can be labelled"):
        run("cases", "export", tmp_path / "state", "--format", "label-studio", "--set", "all", "--out", tmp_path / "ls")
    (tmp_path / "labels.csv").write_text(f"id,value\n{id},3\n")
    with pytest.raises(ConfigError, match="gives segments; only classes, boxes and numbers can be labelled"):
        run("cases", "import", tmp_path / "state", tmp_path / "labels.csv", "--format", "csv")
    with pytest.raises(ConfigError, match="gives segments; only classes, boxes and numbers can be compared"):
        run("evaluate", tmp_path, tmp_path, "--cases", tmp_path / "state", "--cloud-is-right")


def test_pictures_of_every_size_go_out_as_they_came_or_upright(tmp_path: Path) -> None:
    large = encoded((4000, 4000), "JPEG", "L")
    turned = encoded((7, 3), "JPEG", turn=6)
    pictures = [encoded((1, 1)), encoded((9, 2), "PNG", "L"), encoded((3, 8), "WEBP"), large, turned, b"no picture"]
    dice = random.Random(1)
    ids = keep(tmp_path / "state", [Made(one, {"found": boxes(dice)}, {}) for one in pictures])
    said = run("cases", "export", tmp_path / "state", "--format", "coco", "--out", tmp_path / "out")
    assert said["left_out"] == {"no picture": 1}
    files = {path.stem: path for path in (tmp_path / "out" / "images").iterdir()}
    assert [files[id].read_bytes() == picture for id, picture in zip(ids[:4], pictures, strict=False)] == [True] * 4
    with Image.open(files[ids[4]]) as upright:
        assert upright.size == (3, 7)
        np.testing.assert_array_equal(np.asarray(upright), decode(turned, "rgb", 1000))
    sheet = tmp_path / "sheet.png"
    arguments = ["cases", "show", str(tmp_path / "state"), "--out", str(sheet)]
    assert CliRunner().invoke(build_app(arguments), arguments).exit_code == 0


def test_a_sheet_holds_one_case_at_a_time_and_a_picture_only_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(encoded((4, 4)), {"found": boxes(random.Random(1))}, {})
    alive: list[weakref.ref[CollectedCase]] = []

    def cases() -> Iterator[CollectedCase]:
        for _ in range(4):
            case = made.case()
            alive.append(weakref.ref(case))
            yield case
            del case
            assert sum(one() is not None for one in alive) <= 1

    assert html_sheet(cases()).count(b"<figure") == 4
    assert Image.open(io.BytesIO(png_sheet(cases(), 4))).size[0] > 4 * 224
    monkeypatch.setattr(cli, "_MOST_IN_A_PICTURE", 2)
    keep(tmp_path, [made] * 3)
    arguments = ["cases", "show", str(tmp_path), "--out", str(tmp_path / "sheet.png")]
    done = CliRunner().invoke(build_app(arguments), arguments)
    assert "--most: a picture has room for 2 of these 3" in str(done.exception)


def test_the_evaluation_set_stays_out_of_training_unless_asked_for(tmp_path: Path) -> None:
    dice = random.Random(2)
    made = [Made(encoded((4, 4)), {"found": boxes(dice)}, {}, inclusion=n % 2 / 2) for n in range(10)]
    ids = keep(tmp_path / "state", made)
    for which, wanted in (("training", ids[::2]), ("evaluation", ids[1::2]), ("all", ids)):
        out = tmp_path / which
        run("cases", "export", tmp_path / "state", "--format", "yolo", "--out", out, "--set", which)
        assert sorted(path.stem for path in (out / "labels").iterdir()) == sorted(wanted)
    assert set(run("cases", "select", tmp_path / "state", "--budget", "100")["cases"]) == set(ids[::2])


def studio_export(folder: Path, labels: Mapping[str, list[Any]]) -> Path:
    """What Label Studio exports once people have labelled: tasks with annotations."""
    tasks = json.loads((folder / "tasks.json").read_text())
    for task in tasks:
        if task["data"]["case"] in labels:
            task["annotations"] = [{"was_cancelled": False, "result": labels[task["data"]["case"]]}]
    path = folder.parent / "labelled.json"
    path.write_text(json.dumps(tasks))
    return path


def checked(file: Path) -> Path:
    """An exported file as someone leaves it who has looked at every label."""
    data = file.read_bytes().replace(b",False,", b",True,")
    file.write_bytes(data.replace(b'"labelled": false', b'"labelled": true'))
    return file


@pytest.mark.parametrize("form", ["label-studio", "coco", "csv"])
def test_labels_come_back_and_win_over_what_the_cloud_said(tmp_path: Path, form: str) -> None:
    state = tmp_path / "state"
    made = detections(state, 8)
    out = tmp_path / "out"
    run("cases", "export", state, "--format", form, "--out", out, "--side", "cloud")
    if form == "label-studio":
        tasks = json.loads((out / "tasks.json").read_text())
        file = studio_export(out, {task["data"]["case"]: task["predictions"][1]["result"] for task in tasks})
    else:
        file = checked(out / ("annotations.json" if form == "coco" else "cases.csv"))
    assert run("cases", "import", state, file, "--format", form)["labels"] == 8
    for id, label in read_labels(state).items():
        same_boxes([(box.label, list(box.box)) for box in label.boxes or ()], wanted_boxes(made[id]))
    run("cases", "export", state, "--format", "coco", "--out", tmp_path / "again", "--side", "edge")
    document = json.loads((tmp_path / "again" / "annotations.json").read_text())
    assert len(document["annotations"]) == sum(len(wanted_boxes(one)) for one in made.values())


@pytest.mark.parametrize(("form", "name"), [("coco", "annotations.json"), ("csv", "cases.csv")])
def test_what_a_side_said_in_place_of_a_label_does_not_come_back_as_a_persons(
    tmp_path: Path, form: str, name: str
) -> None:
    state = tmp_path / "state"
    labelled, *_ = detections(state, 3)
    (state / LABELS_NAME).write_text(json.dumps({labelled: {"boxes": []}}))
    run("cases", "export", state, "--format", form, "--out", tmp_path / "out")
    said = run("cases", "import", state, tmp_path / "out" / name, "--format", form)
    assert said == {"labels": 1, "changed": 0, "left_out": 2}
    assert set(read_labels(state)) == {labelled}
    (state / LABELS_NAME).unlink()
    run("cases", "export", state, "--format", form, "--out", tmp_path / "again")
    with pytest.raises(ConfigError, match="it contains only labels which nobody gave"):
        run("cases", "import", state, tmp_path / "again" / name, "--format", form)


def test_numbers_of_a_table_come_back(tmp_path: Path) -> None:
    outputs = [{"name": "weight", "kind": "tensor"}]
    scale = CaseSignature.model_validate({"has_rows": True, "inputs": [], "outputs": outputs})
    weights = [0.0, -1.5e-7, 1e30]
    made = [Made(encoded((4, 4)), {"weight": np.array([[one]], np.float64)}, {}, scale) for one in weights]
    ids = keep(tmp_path / "state", made)
    run("cases", "export", tmp_path / "state", "--format", "csv", "--out", tmp_path / "out")
    file = checked(tmp_path / "out" / "cases.csv")
    assert run("cases", "import", tmp_path / "state", file, "--format", "csv")["labels"] == 3
    assert [read_labels(tmp_path / "state")[id].value for id in ids] == weights


def test_boxes_of_coco_may_be_rounded_over_the_edge(tmp_path: Path) -> None:
    (id,) = detections(tmp_path / "state", 1)
    image = {"id": 5, "file_name": f"{id}.png", "width": 200, "height": 100}
    box = {"id": 1, "image_id": 5, "category_id": 9, "bbox": [-0.005, 10.0, 200.01, 90.5], "iscrowd": 0}
    document = {"images": [image], "annotations": [box], "categories": [{"id": 9, "name": "normal"}]}
    (tmp_path / "coco.json").write_text(json.dumps(document))
    run("cases", "import", tmp_path / "state", tmp_path / "coco.json", "--format", "coco")
    (found,) = read_labels(tmp_path / "state")[id].boxes or ()
    assert found.box == (0.0, 0.1, 1.0, 1.0)


def test_of_several_annotations_the_one_marked_as_ground_truth_counts(tmp_path: Path) -> None:
    made = [Made(encoded((4, 4)), {"scores": scores(0)}, {}, CLASSIFIER) for _ in range(2)]
    ids = keep(tmp_path / "state", made)
    choices = [
        {"ground_truth": is_true, "result": [{"type": "choices", "value": {"choices": [name]}}]}
        for name, is_true in (("normal", True), ("../up", False))
    ]
    tasks = [{"data": {"case": id}, "annotations": choices} for id in ids]
    tasks[1] = {**tasks[1], "annotations": [{"was_cancelled": True, "ground_truth": True, "result": []}, choices[1]]}
    (tmp_path / "labelled.json").write_text(json.dumps(tasks))
    run("cases", "import", tmp_path / "state", tmp_path / "labelled.json", "--format", "label-studio")
    assert [read_labels(tmp_path / "state")[id].label for id in ids] == ["normal", "../up"]
    (tmp_path / "labelled.json").write_text(json.dumps([{"data": {"case": ids[0]}, "annotations": [{"result": []}]}]))
    with pytest.raises(ConfigError, match="gives probabilities; expected label, got nothing"):
        run("cases", "import", tmp_path / "state", tmp_path / "labelled.json", "--format", "label-studio")


IMAGE = '"images": [{{"id": 1, "file_name": "{id}.png", "width": 9, "height": 9}}]'
BROKEN = {
    "csv": {
        "": "expected columns id and label",
        "id,label\nnobody,x\n": "there is no case 'nobody'",
        'id,label\n{id},"[{{"\n': "expected a number, or boxes as JSON",
        "id,value\n{id},nan\n": "got 'nan': Input should be a finite number",
        "id,label\n{id},normal\n": "gives detections; expected boxes, got label",
        'id,label\n{id},[]\n{id},"[{{""label"": ""normal"", ""box"": [0, 0, 1, 1]}}]"\n': "already has another label",
    },
    "coco": {
        "{{": "not JSON",
        "[]": "this is not COCO",
        "{{" + IMAGE + ', "categories": [{{"id": 1, "name": "normal"}}], "annotations": [{{"image_id": 1, '
        '"category_id": 1, "bbox": [1, 1, 1, 1' + "0" * 400 + "]}}]}}": "this is not COCO",
        "{{" + IMAGE + ', "categories": [{{"id": 1, "name": '
        '"normal"}}], "annotations": [{{"image_id": 1, "category_id": 1, "bbox": [5, 5, 9, 1]}}]}}': "is not within",
        "{{" + IMAGE + ', "categories": [{{"id": 1, "name": '
        '"odd"}}], "annotations": [{{"image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2]}}]}}': "is not a class",
        "{{" + IMAGE + ', "categories": [{{"id": 1, "name": '
        '"normal"}}], "annotations": [{{"image_id": 1, "category_id": 1, "iscrowd": 1, '
        '"bbox": [1, 1, 2, 2]}}]}}': "around a crowd",
    },
    "label-studio": {
        "{{}}": "expected a list of tasks",
        "[1]": "this is not a Label Studio task",
        '[{{"case": "{id}", "label": "normal"}}]': "not JSON-MIN",
        '[{{"data": {{"case": "{id}"}}, "annotations": [{{"result": [{{"type": "number", "value": '
        '{{"number": "three"}}}}]}}]}}]': "this is not a Label Studio task",
        '[{{"data": {{"case": "{id}"}}, "annotations": [{{"result": [{{"type": "number", "value": '
        '{{"number": 1' + "0" * 400 + "}}}}]}}]}}]": "this is not a Label Studio task",
        '[{{"data": {{"case": "{id}"}}, "annotations": [{{"result": [{{"type": "polygonlabels", "value": {{}}}}, '
        '{{"type": "relation"}}]}}]}}]': "expected rectanglelabels, choices or a number, got polygonlabels, relation",
        "[" * 10: "not JSON",
    },
}


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, texts in BROKEN.items() for text in texts])
def test_broken_labels_are_one_clear_error_and_change_nothing(tmp_path: Path, form: str, text: str) -> None:
    state = tmp_path / "state"
    id = next(iter(detections(state, 2)))
    (state / LABELS_NAME).write_text(before := json.dumps({id: {"boxes": []}}))
    file = tmp_path / "labels"
    file.write_text(text.format(id=id))
    with pytest.raises(ConfigError, match=BROKEN[form][text].replace("[", r"\[")):
        run("cases", "import", state, file, "--format", form)
    assert (state / LABELS_NAME).read_text() == before


def test_what_is_purged_is_named_where_it_was_exported(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ids = list(detections(state, 3))
    run("cases", "export", state, "--format", "yolo", "--out", tmp_path / "out")
    run("cases", "export", state, "--format", "imagefolder", "--out", tmp_path / "without any of them")
    config = tmp_path / "agent.yaml"
    config.write_text("version: 1\nagent: {state_dir: state}\nmodels: {m: {edge: {file: m.onnx}}}\n")
    said = run("cases", "purge", config, ids[0])
    assert (said["cases"], said["exports"]) == (1, [str(tmp_path / "out")])
    assert ids[0] not in (state / "case-exports.json").read_text()
    assert [facts.id for facts in open_source(config).facts()] == ids[1:]


AGENT = """
version: 1
agent: {state_dir: state, spool: {results: results}}
models: {m: {edge: {file: m.onnx}}}
"""


def exported_by_tag(folder: Path) -> list[str]:
    """An agent.yaml and three labelled cases with the tags who=0, 1, 2, which were exported to `out`; their ids."""
    (folder / "agent.yaml").write_text(AGENT)
    dice = random.Random(5)
    made = [Made(encoded((4, 4)), {"found": boxes(dice)}, {}, tags={"who": str(n)}) for n in range(3)]
    ids = keep(folder / "state", made)
    (folder / "state" / LABELS_NAME).write_text(json.dumps({id: {"boxes": []} for id in ids}))
    run("cases", "export", folder / "state", "--format", "yolo", "--out", folder / "out")
    return ids


def noted(folder: Path) -> list[list[str]]:
    """The cases that the index names for each export."""
    return [one["cases"] for one in json.loads((folder / "state" / "case-exports.json").read_text())]


def test_a_purge_names_an_export_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = exported_by_tag(tmp_path)
    said: dict[str, Any] = {}

    def purged_meanwhile(task: ExportTask, folder: Path, url: str) -> LeftOut:
        left_out = yolo(task, folder, url)
        said.update(run("cases", "purge", tmp_path / "agent.yaml", "--tag", "who=0"))
        return left_out

    monkeypatch.setitem(FORMATS, "yolo", purged_meanwhile)
    run("cases", "export", tmp_path / "state", "--format", "yolo", "--out", tmp_path / "new")
    assert said["exports"] == [str(tmp_path / "new"), str(tmp_path / "out")]
    assert noted(tmp_path) == [sorted(ids[1:])] * 2


def test_a_purge_names_an_export_that_reads_a_case_just_before_it_is_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported_by_tag(tmp_path)
    erase = CaseDatabase.erase

    def erase_late(self: CaseDatabase, ids: Sequence[str]) -> int:
        run("cases", "export", tmp_path / "state", "--format", "yolo", "--out", tmp_path / "late")
        return erase(self, ids)

    monkeypatch.setattr(CaseDatabase, "erase", erase_late)
    said = run("cases", "purge", tmp_path / "agent.yaml", "--tag", "who=0")
    assert said["exports"] == [str(tmp_path / "late"), str(tmp_path / "out")]


def test_commands_at_once_lose_no_label_and_no_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    ids = exported_by_tag(tmp_path)
    written: list[tuple[str, bool]] = []

    def probed(path: Path, data: bytes) -> None:
        is_held = True
        with path.with_name("case-labels.lock").open("ab") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = False
        written.append((path.name, is_held))
        write_named(path, data)

    for module in (case_labels, case_exports):
        monkeypatch.setattr(module, "write_named", probed)
    (tmp_path / "labels.csv").write_text(f"id,label\n{ids[1]},[]\n")
    run("cases", "import", tmp_path / "state", tmp_path / "labels.csv", "--format", "csv")
    run("cases", "export", tmp_path / "state", "--format", "yolo", "--out", tmp_path / "new")
    run("cases", "purge", tmp_path / "agent.yaml", "--tag", "who=0")
    assert {name for name, _ in written} == {LABELS_NAME, "case-exports.json"}
    assert all(is_held for _, is_held in written)


def test_a_garbled_case_loses_its_label_and_its_place_in_the_index_too(tmp_path: Path) -> None:
    ids = exported_by_tag(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as cases, cases:
        cases.execute("UPDATE cases SET facts = '[]' WHERE id = ?", (ids[0],))
    said = run("cases", "purge", tmp_path / "agent.yaml", "--tag", "who=0")
    assert (said["cases"], said["exports"]) == (1, [str(tmp_path / "out")])
    assert set(read_labels(tmp_path / "state")) == set(ids[1:])
    assert noted(tmp_path) == [sorted(ids[1:])]


def test_a_purge_that_fails_names_the_exports_too_since_no_later_one_could(tmp_path: Path) -> None:
    exported_by_tag(tmp_path)
    (tmp_path / "results").mkdir()
    with pytest.raises(ConfigError, match=r"results: cannot be written: Is a directory\n.*out: this export holds"):
        run("cases", "purge", tmp_path / "agent.yaml", "--tag", "who=0")


def test_cases_that_are_gone_by_now_are_left_out_and_counted(tmp_path: Path) -> None:
    state, listed = tmp_path / "state", tmp_path / "ids.txt"
    ids = list(detections(state, 4))
    with contextlib.closing(sqlite3.connect(state / FILE_NAME)) as cases, cases:
        cases.execute("DELETE FROM bodies WHERE id = ?", (ids[0],))  # as a running agent drops it after it was listed
        cases.execute("UPDATE bodies SET request = x'ff' WHERE id = ?", (ids[1],))
    listed.write_text("\n".join([*ids, "0" * 32]))
    said = run("cases", "export", state, "--format", "coco", "--out", tmp_path / "out", "--ids", listed)
    left_out = {"in the list of ids, but not among these cases": 1, "no longer stored, or unreadable": 2}
    assert (said["cases"], said["left_out"]) == (2, left_out)
    assert json.loads((state / "case-exports.json").read_text())[0]["cases"] == sorted(ids[2:])
    assert sorted(run("cases", "select", state, "--budget", "9")["cases"]) == sorted(ids[2:])
    listed.write_text("")
    with pytest.raises(ConfigError, match="there are no cases to export"):
        run("cases", "export", state, "--format", "coco", "--out", tmp_path / "none", "--ids", listed)


EXPORT = "import sys; from upwell.tools.cli import main; sys.argv[0] = 'upwell'; main()"


LIMIT = """\
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
"""


def exporting(state: Path, out: Path, limit_bytes: int = 0) -> subprocess.Popen[str]:
    # The program limits itself: code run between fork and exec lets gRPC's threads of the tests write to its standard
    # error.
    program = (LIMIT.format(limit_bytes) if limit_bytes else "") + EXPORT
    command = [sys.executable, "-c", program, "cases", "export", str(state), "--format", "coco", "--out", str(out)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def test_a_full_disk_leaves_no_half_export_and_one_clear_error(tmp_path: Path) -> None:
    dice = random.Random(3)
    keep(tmp_path / "state", [Made(encoded((300, 300), seed=n), {"found": boxes(dice)}, {}) for n in range(3)])
    process = exporting(tmp_path / "state", tmp_path / "out", 100_000)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.count("error:") == 1
    assert "cannot be written" in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert len(CaseDatabase(tmp_path / "state" / "cases.db").facts()) == 3


@pytest.mark.slow
def test_a_kill_amid_an_export_leaves_nothing_under_its_name(tmp_path: Path) -> None:
    dice = random.Random(4)
    keep(tmp_path / "state", [Made(encoded((200, 200), seed=n), {"found": boxes(dice)}, {}) for n in range(150)])
    kills = 0
    for attempt in range(8):
        process = exporting(tmp_path / "state", tmp_path / "out")
        until_s = time.monotonic() + 30
        while not list(tmp_path.glob(".out.*.new/images/*")) and process.poll() is None and time.monotonic() < until_s:
            time.sleep(0.002)
        time.sleep(0.01 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += not (tmp_path / "out").exists()
        assert not (tmp_path / "out").exists() or len(list((tmp_path / "out" / "images").iterdir())) == 150
        if (tmp_path / "out").exists():
            break
    assert kills >= 3
    if not (tmp_path / "out").exists():
        process = exporting(tmp_path / "state", tmp_path / "out")
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "state"]
