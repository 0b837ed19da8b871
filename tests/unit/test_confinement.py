"""Files whose names come from a stranger: inside their folder, plain, and never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from upwell.shared.files import LeadsOut, NoPlainFile, confined, open_plain, plain_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, and with a secret beside it."""
    (tmp_path / "b" / "more").mkdir(parents=True)
    (tmp_path / "b" / "more" / "a.txt").write_text("plain")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "b2").mkdir()
    (tmp_path / "b2" / "a.txt").write_text("secret")
    return tmp_path / "b"


def test_a_plain_file_inside_is_found_by_every_spelling(folder: Path) -> None:
    (folder / "link.txt").symlink_to("more/a.txt")
    (folder.parent / "alias").symlink_to(folder)
    for name in ("more/a.txt", "./more/../more/a.txt", str(folder / "more" / "a.txt"), "link.txt"):
        for within in (folder, folder.parent / "alias"):
            assert plain_file(within, name) == folder.resolve() / "more" / "a.txt"
            with open_plain(plain_file(within, name)) as file:
                assert file.read() == b"plain"


def test_what_leads_out_is_refused_however_it_is_spelt(folder: Path) -> None:
    (folder / "file").symlink_to("../secret")
    (folder / "folder").symlink_to("..")
    (folder / "chain").symlink_to("file")
    outside = ("../secret", "more/../../secret", str(folder.parent / "secret"), "../b2/a.txt", "/etc/hostname")
    for name in (*outside, "file", "folder/secret", "folder/b2/a.txt", "chain", "../gone"):
        with pytest.raises(LeadsOut):
            confined(folder, name)


def test_what_is_no_plain_file_is_refused_and_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    (folder / "circle").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        for name in ("pipe", "link", "socket", "more", ".", "", "gone", "circle", "a\0b", "x" * 5000):
            with pytest.raises(NoPlainFile):
                plain_file(folder, name)
        for name in ("pipe", "link", "socket", "more"):
            with pytest.raises(OSError, match="directory" if name == "more" else "expected a plain file"):
                open_plain(folder / name)
    with pytest.raises(OSError, match="expected a plain file"):
        open_plain(Path("/dev/zero"))
    with pytest.raises(FileNotFoundError):
        open_plain(folder / "gone")


def test_a_folder_may_be_relative(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    here = Path(folder.name)
    assert plain_file(here, "more/a.txt") == plain_file(here, here / "more" / "a.txt") == folder / "more" / "a.txt"
    with pytest.raises(LeadsOut):
        confined(here, Path("secret"))
