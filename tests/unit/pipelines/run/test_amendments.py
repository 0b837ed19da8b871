"""Late answers find their own events, whatever comes first, and after a restart."""

from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from upwell.edge.spool.result_sinks import TakeLater
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.pipelines.run import late_answers
from upwell.pipelines.run.late_answers import Amendments, WaitingEvent


def event(number: int, row: int = 0, pipeline: str = "dock") -> WaitingEvent:
    return WaitingEvent(pipeline, f"event-{number}", "entered", 1.5, "digits", row, {"label": "card", "zones": ["a"]})


def result(spool_id: str, kind: Any = "spool") -> SpoolResult:
    return SpoolResult(1, spool_id, "request", kind, "digits", "digits-large", {}, "hard", 0.0, 1.0, "", b"", b"")


@pytest.fixture
def emitted() -> list[tuple[str, str]]:
    return []


class Recording:
    """Amendments as they are emitted."""

    def __init__(self, emitted: list[tuple[str, str]]) -> None:
        self._emitted = emitted

    def __call__(self, waiting: WaitingEvent, answer: SpoolResult) -> bool:
        self._emitted.append((waiting.event_id, answer.spool_id))
        return True


def open_at(path: Path | None, emitted: list[tuple[str, str]]) -> Amendments:
    return Amendments(path, Recording(emitted))


def wait_for(late: Amendments, spool_id: str, waiting: WaitingEvent) -> None:
    """Keep an event that waits for the case, amended at once where that is answered."""
    for answered in late.expect([(spool_id, waiting)]):
        late._emit(*answered)
    late.settle([(spool_id, waiting)], are_kept=True)


@pytest.mark.parametrize("kept", [True, False])
def test_a_result_amends_every_event_of_its_case_and_no_other(
    tmp_path: Path, emitted: list[tuple[str, str]], kept: bool
) -> None:
    late = open_at(tmp_path / "late.db" if kept else None, emitted)
    for number in range(4):
        wait_for(late, f"case-{number % 2}", event(number))
    late.take(result("case-1"))
    assert emitted == [("event-1", "case-1"), ("event-3", "case-1")]
    late.take(result("nobody's"))
    late.take(result("case-0", "audit"))
    assert len(emitted) == 2
    late.close()


def test_a_result_that_comes_before_its_event_amends_it_too(emitted: list[tuple[str, str]]) -> None:
    late = open_at(None, emitted)
    late.take(result("case"))
    wait_for(late, "case", event(1))
    wait_for(late, "case", event(2))  # a track's answer holds for events of later frames
    assert emitted == [("event-1", "case"), ("event-2", "case")]
    late.close()


def test_what_is_waited_for_survives_a_restart(tmp_path: Path, emitted: list[tuple[str, str]]) -> None:
    path = tmp_path / "late.db"
    first = open_at(path, emitted)
    wait_for(first, "case", event(7, row=3))
    first.close()
    assert path.stat().st_mode & 0o777 == 0o600
    found: list[WaitingEvent] = []
    second = Amendments(path, lambda waiting, _: not found.append(waiting))  # type: ignore[func-returns-value]  # and kept
    second.take(result("case"))
    second.take(result("case"))
    assert found == [event(7, row=3)]
    second.close()


def test_old_and_too_many_are_forgotten(
    tmp_path: Path, emitted: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_answers, "MAX_WAITING", 3)
    monkeypatch.setattr(late_answers, "_FORGET_EVERY_S", 0.0)
    late = open_at(tmp_path / "late.db", emitted)
    for number in range(5):
        wait_for(late, f"case-{number}", event(number))
    with sqlite3.connect(tmp_path / "late.db") as connection:
        connection.execute("UPDATE waiting SET kept_wall_s = 0 WHERE spool_id = 'case-2'")
    connection.close()
    wait_for(late, "case-5", event(5))
    for number in range(6):
        late.take(result(f"case-{number}"))
    assert [one for one, _ in emitted] == ["event-3", "event-4", "event-5"]
    late.close()


def test_a_disk_that_fails_costs_the_amendment_alone(
    tmp_path: Path, emitted: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    late = open_at(tmp_path / "late.db", emitted)
    with sqlite3.connect(tmp_path / "late.db") as connection:
        connection.execute("DROP TABLE waiting")
    connection.close()
    for number in range(3):
        wait_for(late, "case", event(number))
    late.take(result("case"))
    assert emitted == []
    assert caplog.text.count("cannot be written") == 1
    late.close()


def test_from_many_threads_each_event_is_amended_once(tmp_path: Path, emitted: list[tuple[str, str]]) -> None:
    late = open_at(tmp_path / "late.db", emitted)

    def work(part: int) -> None:
        for number in range(part, 200, 4):
            if number % 2:
                late.take(result(f"case-{number}"))
            wait_for(late, f"case-{number}", event(number))
            if not number % 2:
                late.take(result(f"case-{number}"))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(emitted) == sorted((f"event-{number}", f"case-{number}") for number in range(200))
    late.close()


def test_a_damaged_file_is_set_aside_and_begun_anew(tmp_path: Path, emitted: list[tuple[str, str]]) -> None:
    path = tmp_path / "late.db"
    path.write_text("no database" * 100)
    late = open_at(path, emitted)
    wait_for(late, "case", event(1))
    late.close()
    again = open_at(path, emitted)
    again.take(result("case"))
    again.close()
    assert emitted == [("event-1", "case")]
    assert (tmp_path / "late.db.damaged").exists()


def test_where_no_file_can_be_made_they_are_remembered_in_memory(
    tmp_path: Path, emitted: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "late.db").mkdir()
    late = open_at(tmp_path / "late.db", emitted)
    wait_for(late, "case", event(1))
    late.take(result("case"))
    late.close()
    assert emitted == [("event-1", "case")]
    assert caplog.text.count("cannot be written") == 1


def test_what_is_cut_short_while_it_amends_is_amended_at_the_next_start(
    tmp_path: Path, emitted: list[tuple[str, str]]
) -> None:
    def dies(waiting: WaitingEvent, answer: SpoolResult) -> bool:
        raise KeyboardInterrupt

    first = Amendments(tmp_path / "late.db", dies)
    wait_for(first, "case", event(1))
    with pytest.raises(KeyboardInterrupt):
        first.take(result("case"))
    first.close()
    second = open_at(tmp_path / "late.db", emitted)
    second.take(result("case"))
    second.close()
    assert emitted == [("event-1", "case")]


def test_an_event_that_another_version_wrote_costs_its_amendment_alone(
    tmp_path: Path, emitted: list[tuple[str, str]]
) -> None:
    late = open_at(tmp_path / "late.db", emitted)
    wait_for(late, "case", event(1))
    wait_for(late, "other", event(2))
    with sqlite3.connect(tmp_path / "late.db") as connection:
        connection.execute("UPDATE waiting SET body = '{\"unknown\": 1}' WHERE spool_id = 'case'")
    connection.close()
    late.take(result("case"))
    late.take(result("other"))
    late.close()
    assert emitted == [("event-2", "other")]


def test_a_clock_that_learns_the_time_makes_nothing_old(
    tmp_path: Path, emitted: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without a battery wakes in 1970."""
    monkeypatch.setattr(late_answers, "_FORGET_EVERY_S", 0.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    late = open_at(tmp_path / "late.db", emitted)
    wait_for(late, "case", event(1))
    monkeypatch.undo()
    monkeypatch.setattr(late_answers, "_FORGET_EVERY_S", 0.0)
    wait_for(late, "other", event(2))
    late.take(result("case"))
    late.close()
    assert emitted == [("event-1", "case")]


def test_early_answers_are_bounded_by_their_bytes(
    emitted: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_answers, "_MAX_EARLY_BYTES", 250)
    late = open_at(None, emitted)
    for number in range(4):
        late.take(replace(result(f"case-{number}"), answer=bytes(100)))
        late.take(replace(result(f"case-{number}"), answer=bytes(100)))  # handed over again
    for number in range(4):
        wait_for(late, f"case-{number}", event(number))
    late.close()
    assert [one for one, _ in emitted] == ["event-2", "event-3"]


def test_an_event_that_was_never_kept_is_not_amended(tmp_path: Path, emitted: list[tuple[str, str]]) -> None:
    """A kill comes after the note that it waits, and before the outbox has it."""
    first = open_at(tmp_path / "late.db", emitted)
    kept, lost = replace(event(1), sequence=7), replace(event(2), sequence=8)
    first.expect([("case", kept), ("case", lost)])
    first.close()
    second = open_at(tmp_path / "late.db", emitted)
    second.forget_unkept({"dock": 7})
    second.take(result("case"))
    second.close()
    assert emitted == [("event-1", "case")]


def test_an_answer_waits_until_its_event_is_kept_and_amends_none_that_is_not(emitted: list[tuple[str, str]]) -> None:
    late = open_at(None, emitted)
    expected = [("kept", event(1)), ("lost", event(2))]
    late.expect(expected)
    threads = [threading.Thread(target=late.take, args=(result(case),)) for case, _ in expected]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert emitted == []
    late.settle(expected[:1], are_kept=True)
    late.settle(expected[1:], are_kept=False)
    for thread in threads:
        thread.join()
    late.close()
    assert emitted == [("event-1", "kept")]


def test_an_amendment_that_cannot_be_kept_is_put_off(tmp_path: Path, emitted: list[tuple[str, str]]) -> None:
    full = Amendments(tmp_path / "late.db", lambda waiting, _: waiting.event_id == "event-1")
    wait_for(full, "case", event(1))
    wait_for(full, "case", event(2))
    with pytest.raises(TakeLater):
        full.take(result("case"))
    full.close()
    again = open_at(tmp_path / "late.db", emitted)
    again.take(result("case"))
    again.close()
    assert emitted == [("event-2", "case")]
