"""Sinks on the device's own disk: whole lines, rotated, and a folder of pictures that does not grow for ever."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.pipelines.sinks.outboxes import message
from upwell.pipelines.sinks.base import Poisonous, SinkUnavailable
from upwell.pipelines.sinks.file_sinks import JsonlFile, PictureFolder, picture_name
from upwell.pipelines.sinks.sink_settings import JsonlSettings, PicturesSettings


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["sequence"] for line in path.read_text().splitlines()]


def test_lines_are_appended_and_private(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "events.jsonl"
    sink = JsonlFile(JsonlSettings(path))
    sink.deliver([message(0), message(1)])
    sink.deliver([message(2)])
    assert path.read_bytes() == b"".join(message(number).body + b"\n" for number in range(3))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pipe_is_refused_before_anything_is_written_to_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    os.mkfifo(path)
    sink = JsonlFile(JsonlSettings(path))
    with pytest.raises(SinkUnavailable, match="expected a plain file"):
        sink.deliver([message(number) for number in range(1000)])  # more than a pipe holds


def test_a_torn_line_is_cut_at_the_start_and_the_whole_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(message(0).body + b"\n" + message(1).body[:10])
    sink = JsonlFile(JsonlSettings(path))
    assert path.read_bytes() == message(0).body + b"\n"
    sink.deliver([message(1)])
    assert numbers(path) == [0, 1]


def test_a_body_of_several_lines_is_one_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    JsonlFile(JsonlSettings(path)).deliver([replace(message(0), body=b'{\n  "sequence": 7\n}\n')])
    assert numbers(path) == [7]
    assert path.read_bytes().count(b"\n") == 1


def test_the_file_is_rotated_within_a_batch_and_the_two_are_never_larger_than_they_may_be(tmp_path: Path) -> None:
    path, limit_bytes = tmp_path / "events.jsonl", 1000
    sink = JsonlFile(JsonlSettings(path, limit_bytes))
    for first in range(0, 60, 20):
        sink.deliver([message(number) for number in range(first, first + 20)])
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= limit_bytes
    before = numbers(tmp_path / "events.jsonl.1")
    assert before + numbers(path) == list(range(before[0], 60))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1"]


def test_a_line_that_no_file_may_hold_is_poisonous_and_those_before_it_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with pytest.raises(Poisonous) as caught:
        JsonlFile(JsonlSettings(path, 1000)).deliver([message(0), message(1, padding_bytes=600), message(2)])
    assert caught.value.index == 1
    assert numbers(path) == [0]


def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.mkdir()
    sink = JsonlFile(JsonlSettings(path))
    with pytest.raises(SinkUnavailable, match="Is a directory"):
        sink.deliver([message(0)])
    path.rmdir()
    sink.deliver([message(0)])
    assert numbers(path) == [0]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX's")
def test_a_line_that_the_disk_took_in_part_is_cut_and_written_whole_when_there_is_room(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "events.jsonl"
    sink = JsonlFile(JsonlSettings(path))
    sink.deliver([message(0)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        with pytest.raises(SinkUnavailable, match="File too large"):
            sink.deliver([message(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert numbers(path) == [0]
    sink.deliver([message(1)])
    assert numbers(path) == [0, 1]


def test_a_picture_is_named_by_time_event_and_id(tmp_path: Path) -> None:
    sink = PictureFolder(PicturesSettings(tmp_path))
    sink.deliver([message(0, picture=b"jpeg"), message(1)])  # the second has none
    [path] = tmp_path.iterdir()
    assert path.name == "20231114T221320.000Z-count-dock-0.jpg"
    assert path.read_bytes() == b"jpeg"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["../../etc/passwd", "a/b", "", "." * 300, "\0", "Tür " * 200, "\ud800"])
def test_a_name_stays_in_the_folder_whatever_the_event_is_called(tmp_path: Path, text: str) -> None:
    odd = replace(message(0, picture=b"jpeg"), event=text, key=text)
    PictureFolder(PicturesSettings(tmp_path)).deliver([odd])
    assert [path.name for path in tmp_path.iterdir()] == [picture_name(odd)]
    assert len(picture_name(odd)) < 240


def test_long_names_that_begin_alike_do_not_collide() -> None:
    assert picture_name(replace(message(0), key="x" * 200)) != picture_name(replace(message(0), key="x" * 201))


@pytest.mark.parametrize("body", [b"{}", b"[]", b"no JSON", b'{"captured_unix_s": "x"}', b'{"captured_unix_s": 1e300}'])
def test_without_a_time_a_picture_is_the_oldest(body: bytes) -> None:
    assert picture_name(replace(message(0), body=body)).startswith("19700101T000000.000Z-")


def test_a_second_delivery_replaces_the_first(tmp_path: Path) -> None:
    sink = PictureFolder(PicturesSettings(tmp_path, 10))
    for _ in range(3):
        sink.deliver([message(0, picture=b"12345678")])
    assert len(list(tmp_path.iterdir())) == 1


def test_the_oldest_pictures_are_removed_also_those_of_an_earlier_run(tmp_path: Path) -> None:
    settings = PicturesSettings(tmp_path, 100)
    (tmp_path / "mine.txt").write_bytes(b"x" * 1000)
    PictureFolder(settings).deliver([message(number, picture=b"x" * 30) for number in range(3)])
    sink = PictureFolder(settings)
    sink.deliver([message(number, picture=b"x" * 30) for number in (3, 4)])
    left = sorted(path.name[-10:-4] for path in tmp_path.glob("*.jpg"))
    assert left == ["dock-2", "dock-3", "dock-4"]
    assert (tmp_path / "mine.txt").exists()


def test_what_somebody_removed_is_not_missed_and_what_was_left_unfinished_goes(tmp_path: Path) -> None:
    settings = PicturesSettings(tmp_path, 100)
    sink = PictureFolder(settings)
    sink.deliver([message(0, picture=b"x" * 60)])
    (tmp_path / picture_name(message(0))).unlink()
    sink.deliver([message(1, picture=b"x" * 60)])
    (tmp_path / f".{picture_name(message(2))}.0123abcd.new").write_bytes(b"half")
    PictureFolder(settings).deliver([message(3, picture=b"x" * 30)])
    assert sorted(os.listdir(tmp_path)) == [picture_name(message(1)), picture_name(message(3))]


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    sink = PictureFolder(PicturesSettings(folder, 100))
    sink.deliver([message(0, picture=b"x" * 60)])
    shutil.rmtree(folder)
    sink.deliver([message(number, picture=b"x" * 60) for number in (1, 2)])
    assert os.listdir(folder) == [picture_name(message(2))]


def test_a_picture_larger_than_the_folder_may_be_is_poisonous(tmp_path: Path) -> None:
    with pytest.raises(Poisonous) as caught:
        PictureFolder(PicturesSettings(tmp_path, 10)).deliver([message(0), message(1, picture=b"x" * 11)])
    assert caught.value.index == 1
