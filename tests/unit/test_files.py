"""Files that are read within a limit, and those that are there whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from upwell.shared.errors import ConfigError
from upwell.shared.files import new_folder, read_file, remove_drafts, replacing, write_named, write_whole

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_up_to_the_limit_is_read_and_no_larger_one(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_text("1" * 10)
    assert read_file(path, "the number", max_bytes=10) == b"1" * 10
    path.write_text("1" * 11)
    with pytest.raises(ConfigError, match="the number is larger than 10 bytes"):
        read_file(path, "the number", max_bytes=10)


def test_nobody_sees_a_part_of_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"former")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"former"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["state"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_failure_in_between_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "state"
    for there in ([], ["state"]):
        with pytest.raises(error), replacing(path) as file:  # noqa: PT012  the block is what is tested
            file.write(b"new")
            raise error
        assert names(tmp_path) == there
        path.write_bytes(b"former")
    assert path.read_bytes() == b"former"


@POSIX
def test_a_new_file_has_the_usual_permissions_or_those_wanted_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    usual, wanted, old = tmp_path / "usual", tmp_path / "wanted", tmp_path / "old"
    old.touch()
    old.chmod(0o640)
    former = os.umask(0o027)
    try:
        write_whole(usual, b"")
        write_whole(wanted, b"", 0o644)
        write_whole(old, b"", 0o600)
    finally:
        os.umask(former)
    assert [mode_of(path) for path in (usual, wanted, old)] == [0o640, 0o644, 0o640]


@POSIX
def test_a_draft_is_never_open_to_more_than_the_file_will_be(tmp_path: Path) -> None:
    with replacing(tmp_path / "secret", 0o600):
        (draft,) = tmp_path.iterdir()
        assert mode_of(draft) == 0o600


@POSIX
def test_where_nobody_may_set_permissions_a_file_is_written_none_the_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a USB stick that is mounted for all users, and belongs to another one."""

    def denied(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", denied)
    write_whole(tmp_path / "case", b"x", 0o600)
    assert (names(tmp_path), (tmp_path / "case").read_bytes()) == (["case"], b"x")


@POSIX
def test_a_file_is_as_open_as_the_one_it_is_made_from(tmp_path: Path) -> None:
    (tmp_path / "policy").touch()
    (tmp_path / "policy").chmod(0o600)
    write_named(tmp_path / "copy", b"x", like=tmp_path / "policy")
    assert mode_of(tmp_path / "copy") == 0o600


@POSIX
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for aim in ("there/file", "there/none"):
        link = tmp_path / Path(aim).name
        link.symlink_to(aim)
        write_whole(link, aim.encode())
        assert link.is_symlink()
        assert (tmp_path / aim).read_bytes() == aim.encode()
    assert names(tmp_path / "there") == ["file", "none"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "Is a directory"),
        pytest.param(lambda path: os.mkfifo(path), "it is a device or a pipe", marks=POSIX),
        pytest.param(lambda path: path.symlink_to("/dev/null"), "it is a device or a pipe", marks=POSIX),
        pytest.param(lambda path: path.symlink_to(path), "Too many levels of symbolic links", marks=POSIX),
    ],
)
def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "path"
    make(path)
    before = path.lstat()
    with pytest.raises(ConfigError, match=f"--out: cannot be written: {said}"):
        write_named(path, b"x", "--out")
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert names(tmp_path) == ["path"]


def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none/file: cannot be written: No such file or directory"):
        write_named(tmp_path / "none" / "file", b"x")


def test_what_a_power_cut_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "models" / "state.json"
    path.parent.mkdir()
    with replacing(path) as file:
        file.write(b"whole")
        (draft,) = path.parent.iterdir()
    draft.write_bytes(b"half")
    others = [tmp_path / "notes.new", tmp_path / ".hidden.new"]
    for other in others:
        other.touch()
    remove_drafts(tmp_path)
    assert {one for one in tmp_path.rglob("*") if one.is_file()} == {path, *others}


def test_a_folder_that_can_neither_be_replaced_nor_put_back_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "split"
    folder.mkdir()
    (folder / "kept").write_text("the only copy")
    rename = Path.rename

    def broken(self: Path, target: Path) -> Path:
        if target == folder:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(ConfigError, match="cannot be written"), new_folder(folder, "--out", replaces=True):
        pass
    assert [one.read_text() for one in tmp_path.glob(".split.*.old/kept")] == ["the only copy"]


def test_what_was_left_of_a_folder_is_removed_but_not_what_is_made_of_another(tmp_path: Path) -> None:
    left = tmp_path / ".cases.0123abcd.new"
    left.mkdir()
    with new_folder(tmp_path / "cases.v2") as other:
        (other / "kept").touch()
        with new_folder(tmp_path / "cases"):
            assert not left.exists()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cases", "cases.v2"]
    assert (tmp_path / "cases.v2" / "kept").exists()
