"""Labels for `upwell policy collect`: texts and numbers, and every problem of a file at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from upwell.shared.errors import ConfigError
from upwell.tools.policy.collect.items import MAX_LABELS_BYTES, find_items, read_labels

NAMES = ("001.png", "002.png", "b c.png", "ü.png")


def written(folder: Path, rows: Sequence[tuple[str, object]]) -> Path:
    path = folder / "labels.csv"
    path.write_text("file,label\n" + "".join(f"{name},{label}\n" for name, label in rows), encoding="utf-8")
    return path


def test_labels_are_texts_of_the_signature_or_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, [("001.png", "cat"), ('"b c.png"', 1), ("ü.png", " dog ")])
    assert read_labels(path, NAMES, ("cat", "dog"), 2) == {"001.png": 0, "b c.png": 1, "ü.png": 1}
    assert read_labels(written(tmp_path, [("001.png", 1)]), NAMES, ("1", "0"), 2) == {"001.png": 0}  # texts come first
    assert read_labels(written(tmp_path, [("001.png", 999)]), NAMES, (), 0) == {"001.png": 999}


def test_columns_may_stand_in_any_order_among_others_after_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("split,label,file\ntest,3,001.png\n", encoding="utf-8-sig")
    assert read_labels(path, NAMES, (), 10) == {"001.png": 3}


def test_every_problem_is_told_with_its_line(tmp_path: Path) -> None:
    rows = [
        ("001.png", "bird"), ("gone.png", 1), ("002.png", 10), ("002.png", -1), ("", 3), ("001.png", 1), ("001.png", 2),
        ("002.png", "9" * 5000),
    ]  # fmt: skip
    path = written(tmp_path, rows)
    with pytest.raises(ConfigError) as raised:
        read_labels(path, NAMES, ("cat", "dog"), 10)
    said = str(raised.value).splitlines()
    expected = {
        2: "expected a label of the model or the number of a class, got 'bird'",
        3: "the data folder holds no item 'gone.png'",
        4: "there is no class 10; the model has the classes 0 to 9",
        5: "got '-1'",
        6: "expected a file and its label",
        8: "'001.png' has a label already; expected one line per file",
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
        (b"file,label\n", "no label in it"),
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
        read_labels(path, NAMES, (), 0)


def test_a_file_that_is_not_there_or_far_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_labels(tmp_path / "gone.csv", NAMES, (), 0)
    with (tmp_path / "labels.csv").open("wb") as file:
        file.truncate(MAX_LABELS_BYTES + 1)
    with pytest.raises(ConfigError, match="larger than the 64 MiB"):
        read_labels(tmp_path / "labels.csv", NAMES, (), 0)


def test_items_are_the_files_below_by_name(tmp_path: Path) -> None:
    for name in ("b.png", "a/c.JPG", "a.npy", "notes.txt", "a/b.npz", "z.webp", "x.jpeg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "broken.png").symlink_to(tmp_path / "gone.png")
    assert [item.name for item in find_items(tmp_path)] == ["a.npy", "a/b.npz", "a/c.JPG", "b.png", "x.jpeg", "z.webp"]
