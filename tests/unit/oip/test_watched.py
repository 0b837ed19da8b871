from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file
from upwell.shared.platform import watched_files
from upwell.shared.platform.watched_files import WatchedFiles


def number(path: Path, rest_s: float = 0.0) -> WatchedFiles[int]:
    def load() -> int:
        text = read_file(path, "the number").decode()
        if not text.isdigit():
            raise ConfigError.at(path, "expected a number")
        return int(text)

    return WatchedFiles([path], load, rest_s)


def replace(path: Path, text: str) -> None:
    """Put a new file in the old one's place, as editors, certbot and Kubernetes do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_new_contents_take_over(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    watched = number(path)
    assert watched.get() == 1
    replace(path, "2")
    assert watched.get() == 2


def test_a_link_that_points_elsewhere_is_a_change(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "link"
    link.symlink_to("1")
    watched = number(link)
    link.unlink()
    link.symlink_to("2")
    assert watched.get() == 2


def test_broken_contents_are_refused_once_and_the_former_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    watched = number(path)
    replace(path, "nonsense")
    with caplog.at_level(logging.ERROR):
        assert [watched.get(), watched.get()] == [1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        f"kept the previous {path}: {path}: expected a number"
    ]
    replace(path, "3")
    assert watched.get() == 3


def test_a_file_that_vanishes_keeps_its_last_contents(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    watched = number(path)
    path.unlink()
    assert watched.get() == 1
    path.write_text("4")
    assert watched.get() == 4


def test_at_the_start_everything_must_be_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the number: No such file"):
        number(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot read the number: Is a directory"):
        number(tmp_path)


def test_a_file_written_in_place_waits_until_it_rests_and_one_moved_there_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, now_s = tmp_path / "n", 0.0
    monkeypatch.setattr(watched_files, "time", SimpleNamespace(time=lambda: 1000.0, monotonic=lambda: now_s))
    path.write_text("1")
    watched = number(path, rest_s=2.0)
    path.write_text("22")
    assert [watched.get(), watched.get()] == [1, 1]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is being written in place: it takes effect once it has not changed for 2 s"
    ]
    now_s = 1.9
    path.write_text("333")
    assert watched.get() == 1
    now_s = 3.9
    assert watched.get() == 333
    path.write_text("4444")
    os.utime(path, (1.0, 1.0))  # changed long before anyone looked
    assert watched.get() == 4444
    replace(path, "5")
    assert watched.get() == 5


def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path, halves = tmp_path / "n", iter(["22", "333"])

    def load() -> int:
        found = int(path.read_text())
        for more in halves:
            path.write_text(more)
            break
        return found

    path.write_text("1")
    watched = WatchedFiles([path], load)
    assert [watched.get(), watched.get()] == [1, 333]
