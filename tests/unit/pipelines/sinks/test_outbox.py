"""The outbox: what is put is delivered once it can be, in order, and what is not delivered is counted."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.pipelines_media import until
from tests.unit.pipelines.sinks.outboxes import FAST, WAIT_S, RecordingSink, message, outbox
from upwell.edge.spool.open_database import migrate, open_database
from upwell.pipelines.sinks import outbox_database
from upwell.pipelines.sinks.base import Message, Poisonous, SinkUnavailable
from upwell.pipelines.sinks.outbox import Outbox, SinkCounts
from upwell.pipelines.sinks.outbox_store import SCHEMA
from upwell.shared.errors import ConfigError


def holds(box: Outbox, name: str = "recording") -> SinkCounts:
    """The counts of the sink, whose sum is what it must be."""
    found = box.counts()[name]
    ends = ("waiting", "delivered", "denied", "poisoned", "dropped_size", "dropped_age", "removed", "damaged")
    assert found.resumed + found.put == sum(asdict(found)[end] for end in ends)
    return found


def refuse(_: Sequence[Message]) -> None:
    raise SinkUnavailable("not now")


def await_fresh_batch(sink: RecordingSink) -> None:
    """Wait until the sink has refused a batch that was read after this was called.

    The first one may have been read before; the next is read once that one was refused.
    """
    refused = threading.Semaphore(0)

    def count_and_refuse(_: Sequence[Message]) -> None:
        refused.release()
        raise SinkUnavailable("not now")

    sink.behaviour = count_and_refuse
    for _ in range(2):
        assert refused.acquire(timeout=WAIT_S)


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(folder / "outbox.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_each_sink_gets_what_its_pipelines_put_in_order_and_nothing_stays(tmp_path: Path) -> None:
    one, both = RecordingSink("one"), RecordingSink("both")
    with outbox(tmp_path, {"dock": [one, both], "gate": [both]}) as box:
        for number in range(300):
            box.put([message(number), message(number, "gate")])
        assert box.flush(WAIT_S)
        assert holds(box, "one").delivered == 300
        assert holds(box, "both").delivered == 600
    assert one.taken == [message(number) for number in range(300)]
    for pipeline in ("dock", "gate"):
        assert [key for key in both.keys if key.startswith(pipeline)] == [f"{pipeline}-{n}" for n in range(300)]
    assert one.closed.is_set()
    assert both.closed.is_set()
    assert rows(tmp_path, "SELECT count(*) FROM messages") == [(0,)]


def test_what_waits_survives_a_restart_and_goes_on_in_order(tmp_path: Path) -> None:
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(number) for number in range(10)])
        assert sink.called.wait(WAIT_S)
        assert not box.flush(0.0)
        assert holds(box).waiting == 10
    again = RecordingSink()
    with outbox(tmp_path, {"dock": [again]}) as box:
        box.put([message(10)])
        assert box.flush(WAIT_S)
        assert (holds(box).resumed, holds(box).put, holds(box).delivered) == (10, 1, 11)
    assert again.keys == [f"dock-{number}" for number in range(11)]
    assert sink.taken == []


def test_sequences_rise_over_restarts(tmp_path: Path) -> None:
    with outbox(tmp_path, {"dock": [RecordingSink()], "silent": []}) as box:
        assert [box.next_sequence("dock") for _ in range(3)] == [1, 2, 3]
        assert box.next_sequence("silent") == 1
        box.put([message(3), message(1, "silent")])
    with outbox(tmp_path, {"dock": [RecordingSink()], "silent": []}) as box:
        assert box.next_sequence("dock") == 4
        assert box.next_sequence("silent") == 2


def test_a_failing_sink_is_given_the_same_again_and_does_not_hold_up_another(tmp_path: Path) -> None:
    ill, well = RecordingSink("ill"), RecordingSink("well")
    failures = iter([SinkUnavailable("down")] * 3 + [SinkUnavailable("half", taken=2), ValueError("a defect")])

    def fail(messages: Sequence[Message]) -> None:
        if (error := next(failures, None)) is not None:
            if isinstance(error, SinkUnavailable):
                ill.taken += messages[: error.taken]
            raise error

    ill.behaviour = fail
    with outbox(tmp_path, {"dock": [ill, well]}) as box:
        box.put([message(number) for number in range(5)])
        assert box.flush(WAIT_S)
        assert holds(box, "ill").failures == 5
        assert holds(box, "well").failures == 0
    assert ill.keys == well.keys == [f"dock-{number}" for number in range(5)]


def test_a_sink_that_asks_for_time_is_left_alone_for_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RecordingSink()
    calls: list[int] = []

    def ask_for_time(messages: Sequence[Message]) -> None:
        calls.append(len(messages))
        raise SinkUnavailable("busy", retry_after_s=3600)

    sink.behaviour = ask_for_time
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(0)])
        assert sink.called.wait(WAIT_S)
        box.put([message(1)])  # which wakes it for nothing
        assert not box.flush(0.3)  # six of its longest pauses
    assert calls == [1]


def test_a_poisonous_message_is_set_aside_and_the_others_pass(tmp_path: Path) -> None:
    sink = RecordingSink()

    def choke(messages: Sequence[Message]) -> None:
        for index, one in enumerate(messages):
            if one.sequence in (3, 4, 9):
                sink.taken += messages[:index]
                raise Poisonous(index, "not found")

    sink.behaviour = choke
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(number) for number in range(10)])
        assert box.flush(WAIT_S)
        assert (holds(box).delivered, holds(box).poisoned) == (7, 3)
    assert sink.keys == [f"dock-{number}" for number in (0, 1, 2, 5, 6, 7, 8)]
    found = rows(tmp_path, "SELECT key, sink, error, body FROM poisoned")
    assert found == [(f"dock-{n}", "recording", "not found", message(n).body) for n in (3, 4, 9)]


def test_a_sink_that_rejects_all_is_a_problem_and_is_logged_once_until_it_accepts_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def choke(messages: Sequence[Message]) -> None:
        if messages[0].sequence < 5:
            raise Poisonous(0, "it answered 422")

    sink = RecordingSink()
    sink.behaviour = choke
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(number) for number in range(5)])
        assert box.flush(WAIT_S)
        problem = "the sink recording rejects events, which are set aside: it answered 422"
        assert box.problems() == [problem]
        assert [record.getMessage() for record in caplog.records] == [f"{problem} (the first is dock-0)"]
        box.put([message(5)])
        assert box.flush(WAIT_S)
        assert box.problems() == []


def test_what_is_set_aside_takes_a_tenth_of_the_room_at_most(tmp_path: Path) -> None:
    sink = RecordingSink()

    def choke(_: Sequence[Message]) -> None:
        raise Poisonous(0, "never")

    sink.behaviour = choke
    with outbox(tmp_path, {"dock": [sink]}, replace(FAST, limit_bytes=100_000)) as box:
        for number in range(20):
            box.put([message(number, padding_bytes=2000)])
        assert box.flush(WAIT_S)
        assert holds(box).poisoned == 20
    kept = [key for (key,) in rows(tmp_path, "SELECT key FROM poisoned")]
    assert kept == ["dock-17", "dock-18", "dock-19"]


def test_of_an_event_that_another_machine_refuses_no_picture_is_set_aside(tmp_path: Path) -> None:
    def choke(_: Sequence[Message]) -> None:
        raise Poisonous(0, "never")

    here, away = RecordingSink("here"), RecordingSink("away", leaves_device=True)
    here.behaviour = away.behaviour = choke
    with outbox(tmp_path, {"dock": [here, away]}) as box:
        box.put([message(0, picture=b"x")])
        assert box.flush(WAIT_S)
    assert sorted(rows(tmp_path, "SELECT sink, picture FROM poisoned")) == [("away", b""), ("here", b"x")]


def test_what_the_former_version_set_aside_is_taken_over_and_given_back(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "outbox.db", SCHEMA[:2])) as former:
        for number in (1, 2):
            one = message(number)
            former.execute(
                "INSERT INTO poisoned VALUES (?, 'recording', 'no', 9, ?, 'dock', 'count', ?, ?, x'')",
                (number, one.key, number, one.body),
            )
            former.execute("INSERT INTO retries VALUES (?, 'people', '{\"camera\": \"7\"}', ?)", (number, number - 1))
    sink = RecordingSink()
    with outbox(tmp_path, {"dock": [sink]}) as box:
        until(lambda: bool(sink.taken), "what was asked for again")
        assert sink.taken == [message(2)], "a person had asked for it, and its model and tags are known"

        def choke(_: Sequence[Message]) -> None:
            raise Poisonous(0, "never")

        sink.behaviour = choke
        box.put([message(3)])
        assert box.flush(WAIT_S)
        assert holds(box).poisoned == 1
    with closing(open_database(tmp_path / "outbox.db", SCHEMA)) as newest:
        migrate(newest, SCHEMA, target=2)
        kept = newest.execute("SELECT key, tags, is_ordered FROM poisoned JOIN retries USING (number)").fetchall()
    assert kept == [("dock-1", '{"camera": "7"}', 0), ("dock-3", '{"camera": "7"}', 0)]


def test_the_policy_is_asked_again_when_a_message_leaves_and_not_for_one_that_stays(tmp_path: Path) -> None:
    leaving, reachable = RecordingSink("leaving", leaves_device=True), RecordingSink("staying")
    leaving.behaviour = refuse
    denied: set[int] = set()
    asked: list[Message] = []

    def may_send(one: Message) -> bool:
        asked.append(one)
        return one.sequence not in denied

    with outbox(tmp_path, {"dock": [leaving, reachable]}, FAST, may_send) as box:
        box.put([message(number) for number in range(6)])
        assert leaving.called.wait(WAIT_S)
        denied |= {0, 3, 5}  # since it was put, and since it was tried first
        leaving.behaviour = lambda _: None
        assert box.flush(WAIT_S)
        assert (holds(box, "leaving").delivered, holds(box, "leaving").denied) == (3, 3)
        assert holds(box, "staying").delivered == 6
    assert leaving.keys == ["dock-1", "dock-2", "dock-4"]
    assert (asked[0].model, asked[0].tags) == ("people", {"camera": "7"})


def test_where_the_policy_cannot_be_asked_nothing_leaves(tmp_path: Path) -> None:
    sink = RecordingSink(leaves_device=True)
    asked: list[list[str]] = []

    def may_send(_: Message) -> bool:
        asked.append(sink.keys)
        if len(asked) == 1:
            raise ValueError("a defect")
        return True

    with outbox(tmp_path, {"dock": [sink]}, FAST, may_send) as box:
        box.put([message(0)])
        assert box.flush(WAIT_S)
    assert asked == [[], []]
    assert sink.keys == ["dock-0"]


def test_a_sink_of_another_machine_gets_one_message_after_each_question_and_no_picture(tmp_path: Path) -> None:
    """It may take long over each, and what the policy says by then counts."""
    far, near = RecordingSink("far", leaves_device=True), RecordingSink("near")
    denied: set[int] = set()
    far.behaviour = lambda messages: denied.update({3, 4, 5} if messages[0].sequence == 2 else ())
    with outbox(tmp_path, {"dock": [near, far]}, FAST, lambda one: one.sequence not in denied) as box:
        box.put([message(number, picture=b"of the whole frame") for number in range(8)])
        assert box.flush(WAIT_S)
        assert (holds(box, "far").delivered, holds(box, "far").denied) == (5, 3)
    assert far.keys == ["dock-0", "dock-1", "dock-2", "dock-6", "dock-7"]
    assert {one.picture for one in far.taken} == {b""}
    assert {one.picture for one in near.taken} == {b"of the whole frame"}


def test_the_policy_is_asked_again_for_what_was_given_with_a_message_that_is_set_aside(tmp_path: Path) -> None:
    """A sink connects anew after that, which takes time."""

    class Broker(RecordingSink):
        sends_together = True

    sink, denied = Broker(leaves_device=True), set[int]()

    def choke(messages: Sequence[Message]) -> None:
        index = next((index for index, one in enumerate(messages) if one.sequence == 2), None)
        if index is not None:
            sink.taken += messages[:index]
            denied.update({3, 5})
            raise Poisonous(index, "never")

    sink.behaviour = choke
    with outbox(tmp_path, {"dock": [sink]}, FAST, lambda one: one.sequence not in denied) as box:
        box.put([message(number) for number in range(7)])
        assert box.flush(WAIT_S)
        assert (holds(box).delivered, holds(box).poisoned, holds(box).denied) == (4, 1, 2)
    assert sink.keys == ["dock-0", "dock-1", "dock-4", "dock-6"]


def test_a_sink_that_waits_for_its_connection_does_so_before_the_policy_is_asked(tmp_path: Path) -> None:
    class Away(RecordingSink):
        sends_together = True

        def get_ready(self) -> None:
            denied.add(1)  # while it waits

    sink, denied = Away(leaves_device=True), set[int]()
    with outbox(tmp_path, {"dock": [sink]}, FAST, lambda one: one.sequence not in denied) as box:
        box.put([message(number) for number in range(3)])
        assert box.flush(WAIT_S)
        assert (holds(box).delivered, holds(box).denied) == (2, 1)
    assert sink.keys == ["dock-0", "dock-2"]


def test_beyond_its_size_the_oldest_are_dropped_and_counted_for_those_who_had_them_not(tmp_path: Path) -> None:
    ill, well = RecordingSink("ill"), RecordingSink("well")
    ill.behaviour = refuse
    with outbox(tmp_path, {"dock": [ill, well]}, replace(FAST, limit_bytes=20_000)) as box:
        for number in range(30):
            box.put([message(number, padding_bytes=1400)])
        box.put([message(30, padding_bytes=30_000)])  # which has no room at all
        kept = holds(box, "ill").waiting
        assert 5 < kept < 15
        assert holds(box, "ill").dropped_size == 31 - kept
        await_fresh_batch(ill)
        ill.behaviour = lambda _: None
        assert box.flush(WAIT_S)
        assert holds(box, "ill").delivered == kept
        assert holds(box, "well").delivered + holds(box, "well").dropped_size == 31
    assert ill.keys == [f"dock-{number}" for number in range(30 - kept, 30)]


def test_a_picture_takes_no_room_once_all_sinks_that_get_pictures_have_it(tmp_path: Path) -> None:
    here, slow, away = RecordingSink("here"), RecordingSink("slow"), RecordingSink("away", leaves_device=True)
    away.behaviour = refuse
    with outbox(tmp_path, {"dock": [here, slow, away]}, replace(FAST, limit_bytes=200_000)) as box:
        for number in range(50):
            box.put([message(number, picture=b"x" * 20_000)])
            assert box.flush(WAIT_S, ["here", "slow"])
        assert (holds(box, "away").waiting, holds(box, "away").dropped_size) == (50, 0)
        slow.behaviour = refuse
        box.put([message(50, picture=b"y" * 20_000)])
        assert box.flush(WAIT_S, ["here"])
        slow.behaviour = lambda _: None
        assert box.flush(WAIT_S, ["slow"])
    assert all(one.picture for sink in (here, slow) for one in sink.taken)
    assert len(slow.taken) == 51


def test_a_picture_that_is_set_aside_takes_no_room_among_those_that_wait(tmp_path: Path) -> None:
    def choke(_: Sequence[Message]) -> None:
        raise Poisonous(0, "it is too large")

    here, away = RecordingSink("here"), RecordingSink("away", leaves_device=True)
    here.behaviour, away.behaviour = choke, refuse
    with outbox(tmp_path, {"dock": [here, away]}) as box:
        box.put([message(0, picture=b"x")])
        assert box.flush(WAIT_S, ["here"])
    assert rows(tmp_path, "SELECT picture FROM poisoned") == [(b"x",)]
    assert rows(tmp_path, "SELECT picture FROM messages") == [(b"",)]


def test_what_another_process_purges_takes_no_room_and_waits_no_longer(tmp_path: Path) -> None:
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}, replace(FAST, limit_bytes=20_000)) as box:
        for number in range(12):
            box.put([message(number, padding_bytes=1000)])
        assert holds(box).waiting == 12
        with closing(sqlite3.connect(tmp_path / "outbox.db")) as purging, purging:
            purging.execute("DELETE FROM messages WHERE number <= 10")
        for number in range(12, 18):
            box.put([message(number, padding_bytes=1000)])
        assert (holds(box).waiting, holds(box).removed, holds(box).dropped_size) == (8, 10, 0)
        await_fresh_batch(sink)
        sink.behaviour = lambda _: None
        assert box.flush(WAIT_S)
    assert sink.keys == [f"dock-{number}" for number in range(10, 18)]


def test_what_is_dropped_while_it_is_being_delivered_arrives_and_is_counted_as_dropped(tmp_path: Path) -> None:
    sink = RecordingSink()
    is_full = threading.Event()
    sink.behaviour = lambda _: None if is_full.wait(WAIT_S) else refuse(())
    with outbox(tmp_path, {"dock": [sink]}, replace(FAST, limit_bytes=20_000)) as box:
        box.put([message(0)])
        assert sink.called.wait(WAIT_S)
        for number in range(1, 30):
            box.put([message(number, padding_bytes=1400)])
        kept = holds(box).waiting
        assert holds(box).dropped_size == 30 - kept > 0
        is_full.set()
        assert box.flush(WAIT_S)
        assert (holds(box).delivered, holds(box).dropped_size) == (kept, 30 - kept)
    assert sink.keys == ["dock-0", *(f"dock-{number}" for number in range(30 - kept, 30))]


def test_beyond_its_age_a_message_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_database, "_EXPIRE_S", 0.0)
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}, replace(FAST, max_age_s=0.05)) as box:
        box.put([message(number) for number in range(4)])
        assert box.flush(WAIT_S)  # the tries of the sink bring it about
        assert holds(box).dropped_age == 4
    assert sink.taken == []


def test_a_set_back_clock_drops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(0)])
    now_s = time.time()
    for moved_s in (-40 * 365 * 86400.0, 40 * 365 * 86400.0 - now_s):
        monkeypatch.setattr(time, "time", lambda moved_s=moved_s: max(0.0, now_s + moved_s))
        with outbox(tmp_path, {"dock": [sink]}) as box:
            box.put([message(1)])
            assert holds(box).dropped_age == 0


def test_a_damaged_database_is_set_aside_and_said_and_sequences_go_on_above(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outbox.db").write_bytes(b"no database" * 1000)
    sink = RecordingSink()
    with caplog.at_level(logging.ERROR), outbox(tmp_path, {"dock": [sink]}) as box:
        assert box.next_sequence("dock") > 1_000_000_000_000
        box.put([message(0)])
        assert box.flush(WAIT_S)
    assert sink.keys == ["dock-0"]
    assert (tmp_path / "outbox.db.damaged").read_bytes().startswith(b"no database")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_damage_that_shows_while_it_runs_costs_what_waited_and_no_more(tmp_path: Path) -> None:
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(number, padding_bytes=50_000) for number in range(1, 101)])  # more than SQLite's cache
    with outbox(tmp_path, {"dock": [sink]}) as box:
        assert holds(box).waiting == 100
        last = box.next_sequence("dock")
        size_bytes = (tmp_path / "outbox.db").stat().st_size
        with (tmp_path / "outbox.db").open("r+b") as file:
            file.write(b"\xff" * size_bytes)
        sink.behaviour = lambda _: None
        assert box.flush(WAIT_S)
        assert holds(box).damaged > 0
        box.put([message(101)])
        assert box.flush(WAIT_S)
        assert box.next_sequence("dock") > last
    assert sink.keys[-1] == "dock-101"


def test_what_the_disk_refuses_is_counted_and_said_once_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outbox.db").mkdir()
    with caplog.at_level(logging.INFO), outbox(tmp_path, {"dock": [RecordingSink()]}) as box:
        for number in range(3):
            box.put([message(number), message(number)])
        assert holds(box).refused == 6
        assert holds(box).put == 0
        assert box.next_sequence("dock") < box.next_sequence("dock")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_full_disk_refuses_what_is_put_and_what_was_there_is_still_delivered(tmp_path: Path) -> None:
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(number) for number in range(5)])
        store = box._database._store
        assert store is not None
        pages = store._number("PRAGMA page_count")
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        box.put([message(5, padding_bytes=100_000)])
        assert holds(box).refused == 1
        assert any("cannot be written; events are lost until it can" in one for one in box.problems())
        sink.behaviour = lambda _: None
        assert box.flush(WAIT_S)
        assert holds(box).delivered == 5
    assert sink.keys == [f"dock-{number}" for number in range(5)]


def test_what_waits_leaves_half_of_a_small_disk_to_the_log_that_lets_it_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_bytes = 16 << 20

    def taken_bytes() -> int:
        return sum(one.stat().st_size for one in tmp_path.iterdir())

    monkeypatch.setattr(outbox_database.OutboxDatabase, "_free_bytes", lambda _: max(0, disk_bytes - taken_bytes()))
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}) as box:
        for number in range(300):
            assert box.put([message(number, padding_bytes=100_000)])
            assert taken_bytes() < disk_bytes
        counts = holds(box)
        assert counts.waiting + counts.dropped_size == 300
        assert 60 <= counts.waiting <= 80  # half of the disk, less what the log took
        sink.behaviour = lambda _: None
        assert box.flush(WAIT_S)
    assert sink.keys == [f"dock-{number}" for number in range(300 - counts.waiting, 300)]


def test_an_event_too_large_for_a_small_disk_drops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_database.OutboxDatabase, "_free_bytes", lambda _: 3 << 20)
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(number) for number in range(5)])
        box.put([message(5, padding_bytes=2 << 20)])
        assert (holds(box).waiting, holds(box).dropped_size) == (5, 1)


def test_what_was_delivered_while_nothing_could_be_written_is_not_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upwell.pipelines.sinks.outbox.REOPEN_S", 0.01)
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(number) for number in range(100)])
        store = box._database._store
        assert store is not None
        store._connection.execute("PRAGMA query_only = ON")
        delivered = threading.Event()
        sink.behaviour = lambda messages: delivered.set() if messages[-1].sequence == 99 else None
        assert delivered.wait(WAIT_S)
        assert not box.flush(0.1)  # ten tries to write it down
        box._database.ask(lambda store: store._connection.execute("PRAGMA query_only = OFF"))
        assert box.flush(WAIT_S)
        assert holds(box).delivered == 100
    assert sink.keys == [f"dock-{number}" for number in range(100)]


def test_what_is_sent_again_arrives_once_though_that_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upwell.pipelines.sinks.outbox.REOPEN_S", 0.01)
    sink, second = RecordingSink(), threading.Event()

    def choke(_: Sequence[Message]) -> None:
        raise Poisonous(0, "not found")

    sink.behaviour = choke
    with outbox(tmp_path, {"dock": [sink]}) as box:
        box.put([message(0)])
        assert box.flush(WAIT_S)
        sink.behaviour = refuse
        box._database.ask(lambda store: store._connection.execute("UPDATE poisoned SET is_ordered = 1"))
        box._relays["recording"].wake()
        until(lambda: "accepts no events" in str(box.problems()), "it is tried")
        box._database.ask(lambda store: store._connection.execute("PRAGMA query_only = ON"))
        sink.behaviour = lambda _: second.set() if sink.taken else None
        until(lambda: bool(sink.taken), "it is taken")
        assert not second.wait(0.2)  # twenty tries to write it down
        assert "accepts no events" not in str(box.problems())
        box._database.ask(lambda store: store._connection.execute("PRAGMA query_only = OFF"))
        until(lambda: rows(tmp_path, "SELECT count(*) FROM poisoned") == [(0,)], "it is written down")
    assert sink.keys == ["dock-0"]


def test_a_new_sink_gets_what_comes_from_then_on_and_for_one_that_is_gone_nothing_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = RecordingSink("gone"), RecordingSink("stays")
    gone.behaviour = stays.behaviour = refuse
    with outbox(tmp_path, {"dock": [gone, stays], "gate": [gone]}) as box:
        box.put([message(0), message(0, "gate")])
    new, stays = RecordingSink("new"), RecordingSink("stays")
    with caplog.at_level(logging.WARNING), outbox(tmp_path, {"dock": [stays, new]}) as box:
        box.put([message(1)])
        assert box.flush(WAIT_S)
    assert (stays.keys, new.keys) == (["dock-0", "dock-1"], ["dock-1"])
    assert "2 waiting events are dropped, since the sink gone" in caplog.text
    assert rows(tmp_path, "SELECT count(*) FROM messages") == [(0,)]


def test_puts_from_many_threads_are_all_kept_and_each_thread_s_in_order(tmp_path: Path) -> None:
    sink = RecordingSink()
    with outbox(tmp_path, {f"camera-{index}": [sink] for index in range(4)}) as box:

        def put(pipeline: str) -> None:
            for _ in range(100):
                box.put([message(box.next_sequence(pipeline), pipeline)])

        threads = [threading.Thread(target=put, args=(f"camera-{index}",)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert box.flush(WAIT_S)
    for index in range(4):
        found = [one.sequence for one in sink.taken if one.pipeline == f"camera-{index}"]
        assert found == list(range(1, 101))


def test_its_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    sink = RecordingSink()
    sink.behaviour = refuse
    with outbox(folder, {"dock": [sink]}) as box:
        box.put([message(0)])
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"outbox.db": 0o600, "outbox.db-wal": 0o600, "outbox.db-shm": 0o600}
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_two_sinks_of_one_name_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="jsonl:here appears twice"),
        outbox(tmp_path, {"dock": [RecordingSink("jsonl:here")], "gate": [RecordingSink("jsonl:here")]}),
    ):
        pass


def test_after_its_end_it_takes_nothing_and_raises_nothing(tmp_path: Path) -> None:
    with outbox(tmp_path, {"dock": [RecordingSink()]}) as box:
        pass
    box.put([message(0)])
    box.close()
    assert holds(box).refused == 1


def test_sinks_and_pipelines_come_and_go_and_those_that_stay_go_on(tmp_path: Path) -> None:
    reachable, leaving, coming = (RecordingSink(name) for name in ("staying", "leaving", "coming"))
    leaving.behaviour = refuse
    with outbox(tmp_path, {"dock": [reachable, leaving], "gate": [reachable]}) as box:
        box.put([message(0), message(0, "gate")])
        box.change({"dock": [reachable, coming], "yard": [reachable]})
        assert leaving.closed.wait(WAIT_S)
        assert not reachable.closed.is_set()
        box.put([message(1), message(1, "yard"), message(1, "gate")])
        assert box.flush(WAIT_S)
        assert holds(box, "staying").waiting == holds(box, "coming").waiting == 0
    assert {"dock-0", "dock-1", "yard-1"} <= {*reachable.keys} <= {"dock-0", "dock-1", "yard-1", "gate-0"}
    assert coming.keys == ["dock-1"]
    again = RecordingSink("leaving")
    with outbox(tmp_path, {"dock": [reachable, again]}) as box:
        box.put([message(2)])
        assert box.flush(WAIT_S)
    assert again.keys == ["dock-2"]


def test_sinks_that_come_and_go_on_a_full_disk_do_so_once_it_takes_events_again(tmp_path: Path) -> None:
    leaving, coming = RecordingSink("leaving"), RecordingSink("coming")
    leaving.behaviour = refuse
    with outbox(tmp_path, {"dock": [leaving]}) as box:
        box.put([message(0)])
        box._database.ask(lambda store: store._connection.execute("PRAGMA query_only = ON"))
        box.change({"dock": [coming], "gate": [coming]})
        assert not box.put([message(1)])
        box._database.ask(lambda store: store._connection.execute("PRAGMA query_only = OFF"))
        assert box.put([message(2)])
        assert box.put([message(1, "gate")])
        assert box.flush(WAIT_S)
        assert (holds(box, "coming").delivered, holds(box, "coming").refused) == (2, 1)
    assert sorted(coming.keys) == ["dock-2", "gate-1"]
    assert rows(tmp_path, "SELECT DISTINCT sink FROM cursors") == [("coming",)]


def test_a_sink_that_takes_the_place_of_one_of_its_name_gets_what_waits(tmp_path: Path) -> None:
    former, later = RecordingSink("one"), RecordingSink("one")
    former.behaviour = refuse
    with outbox(tmp_path, {"dock": [former]}) as box:
        box.put([message(0)])
        assert former.called.wait(WAIT_S)
        box.end(["one"])
        assert former.closed.wait(WAIT_S)
        box.put([message(1)])
        box.change({"dock": [later]})
        assert box.flush(WAIT_S)
    assert later.keys == ["dock-0", "dock-1"]
