"""The recorder: bounded, quick, never in the way, and to be read beside the writer."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.edge.request_traces import request_trace
from upwell.edge.observe import flight_recorder as recorder_module
from upwell.edge.observe.flight_recorder import (
    MOST_PENDING,
    SEGMENTS,
    FlightRecorder,
    Segments,
    UnknownRequest,
    find,
    last,
    newest_lines,
)
from upwell.edge.observe.request_trace import to_line


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[FlightRecorder]:
    made = FlightRecorder(tmp_path / "flights", limit=100)
    yield made
    made.close()


def ids(folder: Path) -> list[str]:
    return [json.loads(line)["id"] for line in newest_lines(folder) if line]


def test_a_flight_is_found_as_soon_as_it_was_noted(recorder: FlightRecorder) -> None:
    for index in range(20):
        recorder.note(request_trace(f"request-{index}"))
    assert recorder.find("request-7")["id"] == "request-7"
    assert recorder.find("request-12")["policy"]["digest"] == "sha256:of-the-policy"
    assert [one["id"] for one in recorder.last(3)] == ["request-19", "request-18", "request-17"]
    assert (recorder.dropped, recorder.failed) == (0, 0)


def test_a_prefix_is_enough_where_it_is_unique(recorder: FlightRecorder) -> None:
    for name in ("abcd", "abce", "b", "bb"):
        recorder.note(request_trace(name))
    assert recorder.find("abcd")["id"] == "abcd"
    assert recorder.find("b")["id"] == "b"
    assert recorder.find("bb")["id"] == "bb"
    with pytest.raises(UnknownRequest, match="2 recorded ids begin with 'abc', such as abce, abcd"):
        recorder.find("abc")
    with pytest.raises(UnknownRequest, match="no request '' is recorded"):
        recorder.find("")


def test_an_unknown_id_says_how_far_back_it_goes(recorder: FlightRecorder) -> None:
    with pytest.raises(UnknownRequest, match="no request 'x' is recorded: the recorder is empty"):
        recorder.find("x")
    recorder.note(request_trace("a"))
    with pytest.raises(UnknownRequest, match=r"has the last 1 requests, back to 2026-09-2\d "):
        recorder.find("x")


def test_of_one_id_the_newest_is_found(recorder: FlightRecorder) -> None:
    recorder.note(request_trace("a", edge_s=1.0))
    recorder.note(request_trace("a", edge_s=2.0))
    assert recorder.find("a")["edge_s"] == 2.0


def test_the_last_are_kept_and_no_more_than_the_bound(recorder: FlightRecorder, tmp_path: Path) -> None:
    for index in range(1000):
        recorder.note(request_trace(str(index)))
        if index % 50 == 0:
            recorder.last(1)
    kept = [one["id"] for one in recorder.last(10_000)]
    assert kept == [str(index) for index in range(999, 999 - len(kept), -1)]
    assert 100 <= len(kept) < 120


def test_the_bytes_are_bounded_too(tmp_path: Path) -> None:
    size_bytes = len(to_line(request_trace("000")))
    recorder = FlightRecorder(tmp_path, limit=1000, limit_bytes=50 * size_bytes)
    for index in range(300):
        recorder.note(request_trace(f"{index:03}"))
    recorder.close()
    kept = recorder.last(1000)
    assert 40 <= len(kept) <= 55
    assert kept[0]["id"] == "299"


def test_files_are_the_owner_s_alone(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "flights")
    recorder.note(request_trace("a"))
    recorder.close()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "flights", *(tmp_path / "flights").iterdir())]
    assert modes == [0o700, 0o600]


def test_a_restart_goes_on_where_the_last_ended(tmp_path: Path) -> None:
    for start in range(30):
        recorder = FlightRecorder(tmp_path, limit=100)
        for index in range(2):
            recorder.note(request_trace(f"{start}-{index}"))
        recorder.close()
    assert ids(tmp_path)[0] == "29-1"
    assert len(ids(tmp_path)) == 60
    assert len([*tmp_path.iterdir()]) <= SEGMENTS + 1


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path)
    recorder.note(request_trace("before"))
    recorder.close()
    with next(tmp_path.iterdir()).open("ab") as file:
        file.write(to_line(request_trace("torn"))[:50])
    assert find(newest_lines(tmp_path), "before")["id"] == "before"
    recorder = FlightRecorder(tmp_path)
    recorder.note(request_trace("after"))
    recorder.close()
    assert [one["id"] for one in last(newest_lines(tmp_path), 9)] == ["after", "before"]


def test_foreign_files_and_lines_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "00000001.jsonl").write_bytes(
        b'[]\nnull\n{"id": 1}\n{"id": "a"}\n\xff\xfe\n' + to_line(request_trace("good"))
    )
    assert [one["id"] for one in last(newest_lines(tmp_path), 9)] == ["good"]
    segments = Segments(tmp_path, 8, 1 << 20)
    for index in range(100):
        segments.append([to_line(request_trace(str(index)))])
    segments.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_disk_that_is_full_costs_no_answer_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on the size of files stands for the disk: writing fails in the middle of a line."""
    monkeypatch.setattr(recorder_module, "RETRY_S", 0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    recorder = FlightRecorder(tmp_path)
    recorder.note(request_trace("first"))
    recorder.last(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(to_line(request_trace("first"))) + 100, hard))
    try:
        recorder.note(request_trace("second"))
        recorder.last(1)
        recorder.note(request_trace("third"))
        recorder.last(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert recorder.failed == 2
    recorder.note(request_trace("fourth"))
    recorder.close()
    assert [one["id"] for one in last(newest_lines(tmp_path), 9)] == ["fourth", "first"]


def test_a_folder_that_cannot_be_made_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    recorder = FlightRecorder(tmp_path / "file" / "flights")
    for index in range(10):
        recorder.note(request_trace(str(index)))
    recorder.close()
    assert recorder.failed == 10
    assert len(caplog.records) == 1
    assert os.strerror(errno.ENOTDIR) in caplog.text


def test_flights_that_come_too_fast_are_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "PAUSE_S", 3600.0)
    recorder, one = FlightRecorder(tmp_path), request_trace("a")
    for _ in range(MOST_PENDING + 7):
        recorder.note(one)
    recorder.close()
    assert recorder.dropped == 7
    assert len(recorder.last(10_000)) == MOST_PENDING
    recorder.note(one)
    assert recorder.dropped == 8


def test_a_flight_that_cannot_be_written_costs_the_others_nothing(recorder: FlightRecorder) -> None:
    recorder.note(request_trace("broken", hardness={0: object()}))
    recorder.note(request_trace("good"))
    assert recorder.find("good")["id"] == "good"
    with pytest.raises(UnknownRequest):
        recorder.find("broken")
    assert recorder.failed == 1


def test_many_write_while_others_read(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path, limit=200)
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        while not stop.is_set():
            found = [one["id"] for one in last(newest_lines(tmp_path), 50)]
            problems.extend(id for id in found if not id.startswith("w"))

    def write(name: str) -> None:
        for index in range(300):
            recorder.note(request_trace(f"w{name}-{index}"))

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(str(index),)) for index in range(4)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    recorder.close()
    assert not problems
    assert recorder.dropped == recorder.failed == 0
    assert len(ids(tmp_path)) >= 200


def test_closing_twice_is_harmless(recorder: FlightRecorder) -> None:
    recorder.close()
    recorder.close()


def test_a_limit_of_nothing_keeps_nothing(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "flights", limit=0)
    recorder.note(request_trace("a"))
    assert recorder.last(9) == []
    recorder.close()
    assert [*tmp_path.iterdir()] == []
    assert recorder.dropped == recorder.failed == 0
