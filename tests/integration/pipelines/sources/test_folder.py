"""Folders of pictures: order, what becomes of answered and of broken files, and files that are still being written."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.pipelines_media import number_of, numbered, until
from upwell.pipelines.frame import Frame
from upwell.pipelines.sources import folder
from upwell.pipelines.sources.base import SourceEnded, SourceState
from upwell.pipelines.sources.folder import PictureFolder
from upwell.pipelines.sources.source_settings import FolderSettings


def put(place: Path, name: str, number: int = 0, age_s: float = 60.0) -> Path:
    """A picture that was written some time ago."""
    path = place / name
    Image.fromarray(numbered(number)).save(path)
    aged(path, age_s)
    return path


def aged(path: Path, age_s: float = 60.0) -> None:
    """Have it that the file was written some time ago."""
    written_s = time.time() - age_s
    os.utime(path, (written_s, written_s))


def rest_of(source: PictureFolder) -> list[Frame]:
    """Every frame until the folder is over, each answered."""
    frames: list[Frame] = []
    while True:
        try:
            frame = source.next(5)
        except SourceEnded:
            return frames
        assert frame is not None
        source.done(frame)
        frames.append(frame)


def test_pictures_come_in_the_order_of_their_names_and_are_moved_when_answered(tmp_path: Path) -> None:
    for number, name in enumerate(["a.jpg", "b.png", "c.webp", "d.JPEG"]):
        put(tmp_path, name, number)
    for other in ("notes.txt", ".hidden.jpg", "e.jpg.part"):
        (tmp_path / other).write_bytes(b"x")
    (tmp_path / "folder.jpg").mkdir()
    source = PictureFolder(FolderSettings(tmp_path, watch=False))
    frames = rest_of(source)
    assert [number_of(frame.pixels) for frame in frames] == [0, 1, 2, 3]
    assert [frame.number for frame in frames] == [1, 2, 3, 4]
    assert [frame.path for frame in frames] == [tmp_path / name for name in ("a.jpg", "b.png", "c.webp", "d.JPEG")]
    assert all(frame.luma.shape == (120, 160) and frame.luma.dtype == np.uint8 for frame in frames)
    assert sorted(os.listdir(tmp_path / "done")) == ["a.jpg", "b.png", "c.webp", "d.JPEG"]
    assert sorted(os.listdir(tmp_path)) == [".hidden.jpg", "done", "e.jpg.part", "folder.jpg", "notes.txt"]
    status = source.status
    assert (status.state, status.captured, status.given, status.decoder) == (SourceState.ENDED, 4, 4, "folder")
    source.close()


def test_what_is_no_picture_or_too_large_goes_to_failed_and_is_counted(tmp_path: Path) -> None:
    put(tmp_path, "b.jpg", 7)
    put(tmp_path, "d.jpg").write_bytes(put(tmp_path, "d.jpg").read_bytes()[:500])
    Image.fromarray(numbered(1, 400, 300)).save(tmp_path / "e.png")
    (tmp_path / "a.jpg").write_bytes(b"no picture at all")
    (tmp_path / "c.png").write_bytes(bytes(3000))
    for path in tmp_path.iterdir():
        aged(path)
    source = PictureFolder(FolderSettings(tmp_path, watch=False, max_pixels=300 * 200, max_bytes=2500))
    frames = rest_of(source)
    assert [(number_of(frame.pixels), frame.number) for frame in frames] == [(7, 2)]
    assert sorted(os.listdir(tmp_path / "failed")) == ["a.jpg", "c.png", "d.jpg", "e.png"]
    status = source.status
    assert (status.captured, status.given, status.undecodable) == (5, 1, 4)
    source.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_that_the_disk_does_not_give_goes_to_failed_and_the_folder_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "b.jpg", 7)
    (tmp_path / "a.jpg").symlink_to("/proc/self/mem")  # a regular file, of which no first byte can be read
    source = PictureFolder(FolderSettings(tmp_path, watch=False, settle_s=0.01))
    assert [number_of(frame.pixels) for frame in rest_of(source)] == [7]
    assert os.listdir(tmp_path / "failed") == ["a.jpg"]
    assert (source.status.given, source.status.undecodable) == (1, 1)
    assert "a.jpg cannot be read: Input/output error" in caplog.text
    source.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_picture_on_a_share_that_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def is_away(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "a.jpg").symlink_to("/proc/self/mem")
    source = PictureFolder(FolderSettings(tmp_path, settle_s=0.0))
    assert source.next(0) is None  # one failure may pass
    assert os.listdir(tmp_path) == ["a.jpg"]
    with monkeypatch.context() as patched:
        patched.setattr(folder, "_move", is_away)
        assert source.next(0.1) is None
    os.unlink(tmp_path / "a.jpg")
    put(tmp_path, "a.jpg", 7)
    frame = source.next(5)
    assert frame is not None
    assert number_of(frame.pixels) == 7
    assert (source.status.captured, source.status.undecodable) == (1, 0)
    assert caplog.text.count("cannot be read") == 1
    source.close()


def test_a_link_to_nothing_keeps_no_other_picture_from_being_read(tmp_path: Path) -> None:
    put(tmp_path, "b.jpg", 7)
    for name, to in (("a.jpg", "nowhere"), ("c.jpg", "c.jpg")):
        (tmp_path / name).symlink_to(to)
    source = PictureFolder(FolderSettings(tmp_path))
    frame = source.next(5)
    assert frame is not None
    assert number_of(frame.pixels) == 7
    source.close()


def test_a_file_whose_status_cannot_be_read_is_told_and_what_was_given_is_not_given_again(tmp_path: Path) -> None:
    put(tmp_path, "b.jpg")
    source = PictureFolder(FolderSettings(tmp_path, answered="leave", settle_s=0.01))
    assert source.next(5) is not None
    os.replace(tmp_path / "b.jpg", tmp_path / "kept")
    (tmp_path / "b.jpg").symlink_to("x" * 300)  # the system refuses to look up a name of this length
    assert source.next(0) is None
    assert (source.status.state, source.status.explained) == (SourceState.LOST, "b.jpg: File name too long")
    once = PictureFolder(FolderSettings(tmp_path, watch=False))
    with pytest.raises(SourceEnded, match=r"has ended: b\.jpg: File name too long"):
        once.next(5)
    os.replace(tmp_path / "kept", tmp_path / "b.jpg")
    put(tmp_path, "c.jpg", 7)
    frame = source.next(5)
    assert frame is not None
    assert number_of(frame.pixels) == 7
    assert (source.status.state, source.status.reconnects) == (SourceState.LIVE, 1)
    source.close()


def test_a_folder_that_vanishes_during_the_scan_does_not_end_as_if_all_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = tmp_path / "in"
    inbox.mkdir()
    put(inbox, "a.jpg")

    def is_picture(name: str) -> bool:
        (inbox / name).unlink()
        inbox.rmdir()
        return True

    monkeypatch.setattr(folder, "_is_picture", is_picture)
    source = PictureFolder(FolderSettings(inbox, watch=False, settle_s=0.01))
    with pytest.raises(SourceEnded, match="there is no such folder"):
        source.next(5)


def test_a_file_that_stays_is_given_once(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jpg")
    settings = FolderSettings(tmp_path, answered="leave", settle_s=0.01)
    source = PictureFolder(settings)
    frame = source.next(5)
    assert frame is not None
    source.done(frame)
    assert source.next(0.3) is None
    put(tmp_path, "b.jpg", 1)
    frame = source.next(5)
    assert frame is not None
    assert frame.path == tmp_path / "b.jpg"
    source.close()
    assert path.exists()
    again = PictureFolder(settings).next(0)
    assert again is not None
    assert again.path == path


def test_a_name_that_was_answered_before_is_moved_beside_the_other(tmp_path: Path) -> None:
    source = PictureFolder(FolderSettings(tmp_path))
    for number in range(3):
        put(tmp_path, "a.jpg", number)
        frame = source.next(5)
        assert frame is not None
        assert number_of(frame.pixels) == number
        source.done(frame)
    source.close()
    assert sorted(os.listdir(tmp_path / "done")) == ["a-1.jpg", "a-2.jpg", "a.jpg"]


def test_a_picture_that_took_the_name_of_the_answered_one_is_read_and_not_moved_unread(tmp_path: Path) -> None:
    """As from a camera that overwrites its last picture while that is being answered."""
    put(tmp_path, "a.jpg", 1)
    source = PictureFolder(FolderSettings(tmp_path, settle_s=0.01))
    first = source.next(5)
    assert first is not None
    put(tmp_path, "a.jpg", 2, age_s=30.0)
    source.done(first)
    second = source.next(5)
    assert second is not None
    assert number_of(second.pixels) == 2
    source.done(second)
    source.close()
    assert os.listdir(tmp_path / "done") == ["a.jpg"]


def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    whole = put(tmp_path, "whole.png", 5).read_bytes()
    os.unlink(tmp_path / "whole.png")
    source = PictureFolder(FolderSettings(tmp_path, settle_s=0.3))
    path = tmp_path / "a.png"
    is_writing = threading.Event()

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(whole), len(whole) // 8):
                file.write(whole[start : start + len(whole) // 8])
                is_writing.wait(0.05)  # a slow writer

    writing = threading.Thread(target=write)
    writing.start()
    frame = source.next(10)
    read_s = time.time()
    writing.join()
    assert frame is not None
    assert number_of(frame.pixels) == 5
    assert read_s - path.stat().st_mtime >= 0.3
    assert source.status.undecodable == 0
    source.close()


def test_a_picture_whose_upload_stalls_is_waited_for_and_one_that_stays_broken_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "a.png", 5)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    source = PictureFolder(FolderSettings(tmp_path, settle_s=0.01))
    assert source.next(0.2) is None
    path.write_bytes(whole)
    frame = source.next(5)
    assert frame is not None
    assert number_of(frame.pixels) == 5
    assert (source.status.captured, source.status.undecodable) == (1, 0)
    monkeypatch.setattr(folder, "_UNFINISHED_S", 0.2)
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    until(lambda: source.next(0.1) is None and source.status.undecodable == 1, "it is given up")
    assert os.listdir(tmp_path / "failed") == ["b.png"]
    source.close()


def test_a_new_file_is_seen_at_once_while_the_source_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_SCAN_S", 60.0)  # so that only the change itself tells
    source = PictureFolder(FolderSettings(tmp_path, settle_s=0.05))
    assert source.next(0) is None

    def put_later() -> None:
        until(lambda: source.status.state is SourceState.LIVE, "it waits")
        put(tmp_path.parent, "moved.jpg", 3, age_s=0).rename(tmp_path / "moved.jpg")

    putting = threading.Thread(target=put_later)
    putting.start()
    frame = source.next(10)
    putting.join()
    assert frame is not None
    assert number_of(frame.pixels) == 3
    source.close()


def test_where_the_system_gives_no_more_watches_the_folder_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:  # as watchfiles does
        raise RuntimeError("Error creating recommended watcher: Too many open files (os error 24)")

    monkeypatch.setattr("watchfiles.watch", fail)
    source = PictureFolder(FolderSettings(tmp_path, settle_s=0.01))
    assert source.next(0.3) is None
    put(tmp_path, "a.jpg", 3)
    frame = source.next(10)
    assert frame is not None
    assert number_of(frame.pixels) == 3
    source.close()


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    later = tmp_path / "mounted later"
    source = PictureFolder(FolderSettings(later, settle_s=0.01))
    assert source.next(0) is None
    assert (source.status.state, source.status.explained) == (SourceState.LOST, "there is no such folder")
    assert "there is no such folder" in caplog.text
    later.mkdir()
    put(later, "a.jpg")
    assert source.next(5) is not None
    assert (source.status.state, source.status.explained) == (SourceState.LIVE, "")
    source.close()
    once = PictureFolder(FolderSettings(tmp_path / "never", watch=False))
    with pytest.raises(SourceEnded, match="there is no such folder"):
        once.next(0)


def test_where_the_latest_is_kept_the_last_picture_of_those_that_are_there_is_read(tmp_path: Path) -> None:
    source = PictureFolder(FolderSettings(tmp_path, answered="leave", keep="latest", settle_s=0.01))
    for first in (0, 4):
        for number in range(first, first + 4):
            put(tmp_path, f"{number}.png", number)
        frame = source.next(5)
        assert frame is not None
        assert number_of(frame.pixels) == first + 3
        assert frame.number == first + 4
    assert source.next(0.05) is None
    assert (source.status.captured, source.status.given, source.status.superseded) == (8, 2, 6)
    source.close()


def test_pictures_are_read_no_faster_than_the_rate(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, f"{number}.png", number)
    source = PictureFolder(FolderSettings(tmp_path, watch=False, fps=20.0))
    began_s = time.monotonic()
    assert [number_of(frame.pixels) for frame in rest_of(source)] == [0, 1, 2, 3]
    assert time.monotonic() - began_s >= 3 / 20
    source.close()


def test_close_ends_a_wait_for_the_rate(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    source = PictureFolder(FolderSettings(tmp_path, fps=0.001))
    put(tmp_path, "b.png")
    assert source.next(5) is not None
    assert source.next(0) is None  # the second is not due
    closing = threading.Timer(0.1, source.close)
    closing.start()
    with pytest.raises(SourceEnded):
        source.next(60)
    closing.join()


def test_close_ends_a_wait(tmp_path: Path) -> None:
    source = PictureFolder(FolderSettings(tmp_path))
    closing = threading.Timer(0.1, source.close)
    closing.start()
    with pytest.raises(SourceEnded):
        source.next(60)
    closing.join()
    source.close()
    assert source.status.state is SourceState.ENDED
