"""Labels for `upwell policy collect`: texts and numbers, and every problem of a file at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from upwell.shared.errors import ConfigError
from upwell.tools.policy.collect.collection_run import opened
from upwell.tools.policy.collect.input_items import MAX_LABELS_BYTES, KnownLabels, find_items, read_boxes, read_classes

NAMES = frozenset({"001.png", "002.png", "b c.png", "ü.png"})


def written(folder: Path, rows: Sequence[tuple[str, object]]) -> Path:
    path = folder / "labels.csv"
    path.write_text("file,label\n" + "".join(f"{name},{label}\n" for name, label in rows), encoding="utf-8")
    return path


def test_labels_are_texts_of_the_signature_or_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, [("001.png", "cat"), ('"b c.png"', 1), ("ü.png", " dog ")])
    assert read_classes(path, KnownLabels(NAMES, ("cat", "dog"), 2)) == {"001.png": 0, "b c.png": 1, "ü.png": 1}
    assert read_classes(written(tmp_path, [("001.png", 1)]), KnownLabels(NAMES, ("1", "0"), 2)) == {
        "001.png": 0
    }  # texts come first
    assert read_classes(written(tmp_path, [("001.png", 999)]), KnownLabels(NAMES, (), 0)) == {"001.png": 999}


def test_columns_may_stand_in_any_order_among_others_after_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("split,label,file\ntest,3,001.png\n", encoding="utf-8-sig")
    assert read_classes(path, KnownLabels(NAMES, (), 10)) == {"001.png": 3}


def test_every_problem_is_told_with_its_line(tmp_path: Path) -> None:
    rows = [
        ("001.png", "bird"), ("gone.png", 1), ("002.png", 10), ("002.png", -1), ("", 3), ("001.png", 1), ("001.png", 2),
        ("002.png", "9" * 5000),
    ]  # fmt: skip
    path = written(tmp_path, rows)
    with pytest.raises(ConfigError) as raised:
        read_classes(path, KnownLabels(NAMES, ("cat", "dog"), 10))
    said = str(raised.value).splitlines()
    expected = {
        2: "expected a label of the model or the number of a class, got 'bird'",
        3: "the data folder has no item 'gone.png'",
        4: "there is no class 10; the model has the classes 0 to 9",
        5: "got '-1'",
        6: "expected a file and its label",
        8: "'001.png' already has a label; expected one line per file",
        9: "got '9999",
    }
    for line, (number, message) in zip(said, expected.items(), strict=True):
        assert line.startswith(f"{path}:{number}: ")
        assert message in line


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a first line with the columns file,label"),
        (b"a,b\n1,2\n", "expected a first line with the columns file,label"),
        (b"file,label\n", "it contains no labels"),
        (b"file,label\n\xff,1\n", "cannot be read as CSV in UTF-8"),
        (b"file,label\n001.png\n", "expected a file and its label"),
        (b"file,label\n" + b"x" * 200_000 + b",1\n", "cannot be read as CSV"),
        (b"file,label\n" + b"gone,1\n" * 50, "and 30 more problems"),
    ],
)
def test_a_file_that_holds_no_labels_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        read_classes(path, KnownLabels(NAMES, (), 0))


def test_a_file_that_is_not_there_or_far_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_classes(tmp_path / "gone.csv", KnownLabels(NAMES, (), 0))
    with (tmp_path / "labels.csv").open("wb") as file:
        file.truncate(MAX_LABELS_BYTES + 1)
    with pytest.raises(ConfigError, match="larger than the limit of 64 MiB"):
        read_classes(tmp_path / "labels.csv", KnownLabels(NAMES, (), 0))


def test_items_are_the_files_below_by_name(tmp_path: Path) -> None:
    for name in ("b.png", "a/c.JPG", "a.npy", "notes.txt", "a/b.npz", "z.webp", "x.jpeg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "broken.png").symlink_to(tmp_path / "gone.png")
    assert [item.name for item in find_items(tmp_path)] == ["a.npy", "a/b.npz", "a/c.JPG", "b.png", "x.jpeg", "z.webp"]


OBJECTS = KnownLabels(NAMES, ("car", "dog"), 2)
COLUMNS = "file,label,x1,y1,x2,y2\n"


def coco(folder: Path, **changes: object) -> Path:
    """One picture of 200 x 100 pixels with a dog, one without anything."""
    document: dict[str, object] = {
        "images": [
            {"id": 7, "file_name": "001.png", "width": 200, "height": 100},
            {"id": 8, "file_name": "ü.png", "width": 10, "height": 10},
        ],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [20, 10, 40, 50], "iscrowd": 0}],
        "categories": [{"id": 3, "name": "dog"}],
    } | changes
    path = folder / "boxes.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_boxes_are_read_from_csv_and_a_file_alone_is_a_picture_without_objects(tmp_path: Path) -> None:
    path = tmp_path / "boxes.csv"
    rows = "001.png,dog,0.1,0.1,0.3,0.6\n001.png,0,0,0,1,1\nü.png,,,,,\n"
    path.write_text(COLUMNS + rows, encoding="utf-8")
    found = read_boxes(path, OBJECTS)
    assert set(found) == {"001.png", "ü.png"}
    assert found["ü.png"].shape == (0, 6)
    assert found["001.png"].tolist() == [[0.1, 0.1, 0.3, 0.6, 1, 1], [0, 0, 1, 1, 1, 0]]


def test_boxes_are_read_from_coco_in_fractions(tmp_path: Path) -> None:
    found = read_boxes(coco(tmp_path), OBJECTS)
    np.testing.assert_allclose(found["001.png"], [[0.1, 0.1, 0.3, 0.6, 1, 1]])
    assert found["ü.png"].shape == (0, 6)
    by_id = read_boxes(coco(tmp_path), KnownLabels(NAMES))
    assert by_id["001.png"][0, 5] == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("gone.png,dog,0,0,1,1", "has no item 'gone.png'"),
        ("001.png,bird,0,0,1,1", "expected a label of the model or the number of a class, got 'bird'"),
        ("001.png,dog,0,0,1", "expected a label and the numbers x1, y1, x2, y2, or the file alone"),
        ("001.png,,0,0,1,1", "expected a label of the model or the number of a class, got ''"),
        ("001.png,dog,10,20,50,60", "in fractions of the picture, 0 to 1, x1 < x2 and y1 < y2; got 10, 20, 50, 60"),
        ("001.png,dog,0.5,0,0.5,1", "x1 < x2"),
        ("001.png,dog,nan,0,1,1", "in fractions"),
    ],
)
def test_a_line_that_is_no_box_is_refused_with_its_number(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "boxes.csv"
    path.write_text(COLUMNS + "002.png,dog,0,0,1,1\n" + row + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as raised:
        read_boxes(path, OBJECTS)
    assert str(raised.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": []}, "names image 7 and category 3; one is missing"),
        ({"annotations": [{"image_id": 7, "category_id": 9, "bbox": [0, 0, 1, 1]}]}, "category 9; one is missing"),
        ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [0, 0, 1]}]}, "annotations.0.bbox"),
        ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [9, 9, 0, 1]}]}, "001.png: expected .* x1 < x2"),
        ({"categories": [{"id": 3, "name": "bird"}]}, "got 'bird'"),
        (
            {"images": [{"id": 1, "file_name": "gone.png", "width": 1, "height": 1}], "annotations": []},
            "none of its pictures is in the data folder; the first of 1 is 'gone.png'",
        ),
    ],
)
def test_coco_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_boxes(coco(tmp_path, **changes), OBJECTS)
    (tmp_path / "torn.json").write_text('{"images": [')
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        read_boxes(tmp_path / "torn.json", OBJECTS)
    (tmp_path / "torn.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_boxes(tmp_path / "torn.json", OBJECTS)


def test_coco_of_more_pictures_than_there_are_tells_of_those_and_leaves_crowds_out(tmp_path: Path) -> None:
    """As a part of a public set is: the file is about all of its pictures."""
    names = [*sorted(NAMES), "no"]
    images = [{"id": at, "file_name": name, "width": 10, "height": 10} for at, name in enumerate(names)]
    boxes = [(0, 0), (1, 1), (len(NAMES), 0)]
    annotations = [
        {"image_id": at, "category_id": 3, "bbox": [0, 0, 5, 5], "iscrowd": is_crowd} for at, is_crowd in boxes
    ]
    found = read_boxes(coco(tmp_path, images=images, annotations=annotations), OBJECTS)
    assert {name: len(objects) for name, objects in found.items()} == {"001.png": 1, "b c.png": 0, "ü.png": 0}


def test_two_collections_do_not_write_one_log(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with opened(tmp_path / "log.jsonl") as log:
        assert not log.former.items
        with pytest.raises(ConfigError, match="another command writes it"), opened(tmp_path / "log.jsonl"):
            pass
    with opened(tmp_path / "log.jsonl"):
        pass
