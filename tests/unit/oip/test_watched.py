from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file
from upwell.shared.platform.watched_files import WatchedFiles


def number(path: Path) -> WatchedFiles[int]:
    def load() -> int:
        text = read_file(path, "the number").decode()
        if not text.isdigit():
            raise ConfigError.at(path, "expected a number")
        return int(text)

    return WatchedFiles([path], load)


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
