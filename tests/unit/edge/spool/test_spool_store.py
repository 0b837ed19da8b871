"""What is kept, in which order it goes, and what makes room for what."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.spool.harness import case
from upwell.edge.spool.open_database import delete_rows, open_database, opened
from upwell.edge.spool.spool_store import SCHEMA, Store
from upwell.edge.spool.spooled_request import SpoolHeld, SpoolLimits, Stored
from upwell.shared.platform.system_clock import ForwardClock

LIMITS = SpoolLimits(max_bytes=10_000, max_result_bytes=10_000, max_age_s=100.0)


def stored(id: str, now_s: float = 0.0, **more: Any) -> Stored:
    return Stored.of(case(1, **more), id, 1e9 + now_s).at(now_s)


SIZE_BYTES = stored("a").size_bytes
FIT = LIMITS.max_bytes // SIZE_BYTES


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_database(tmp_path / "spool.db", SCHEMA)
    yield connection
    connection.close()


@pytest.fixture
def store(connection: sqlite3.Connection) -> Store:
    return Store(connection, LIMITS)


def add(store: Store, *items: Stored) -> list[bool]:
    with store.transaction():
        return [store.add(item) for item in items]


def waiting(store: Store) -> list[str]:
    """The ids in the order in which they would be sent."""
    found = []
    with store.transaction():
        while (item := store.next_due(1e6)) is not None:
            found.append(item.id)
            store.set_aside(item.id, 1, "seen")
    return found


def test_a_case_comes_back_as_it_was(store: Store) -> None:
    item = stored("a", 3.0, tags={"camera": "d\u00f6ck", "odd": "\udcff'\"\n"}, kind="audit")
    assert add(store, item) == [True]
    with store.transaction():
        found = store.next_due(3.0)
    assert found == item
    assert found.infer_request().parameters == {"upwell.spool_id": "a"}
    assert item.edge_answer


def test_only_audits_keep_the_device_s_answer_whole() -> None:
    spool, audit = stored("a"), stored("a", kind="audit")
    assert not spool.edge_answer
    assert spool.edge_answer_digest == audit.edge_answer_digest != ""
    assert stored("a", edge=None).edge_answer_digest == ""


def test_the_order_is_spooled_cases_first_and_then_by_time(store: Store) -> None:
    add(store, stored("audit", 0.0, kind="audit"), stored("later", 2.0), stored("first", 1.0), stored("also", 1.0))
    assert waiting(store) == ["first", "also", "later", "audit"]


def test_what_is_not_due_waits(store: Store) -> None:
    add(store, stored("a", 5.0))
    with store.transaction():
        assert store.next_due(4.9) is None
        assert store.next_due_s() == 5.0
        store.postpone("a", 9.0, 2, "again")
        assert store.next_due(8.0) is None
        found = store.next_due(9.0)
    assert found is not None
    assert found.attempts == 2


def test_the_oldest_make_room(store: Store) -> None:
    names = [f"{number:02}" for number in range(FIT + 3)]
    assert all(add(store, *(stored(name, float(number)) for number, name in enumerate(names))))
    assert store.counted["dropped_full"] == 3
    assert waiting(store) == names[3:]


def test_audits_make_room_first_and_never_push_out_a_case(store: Store) -> None:
    add(store, *(stored(f"{number:02}", 0.0) for number in range(FIT - 1)), stored("audit", 9.0, kind="audit"))
    assert add(store, stored("last", 10.0)) == [True]
    assert store.counted["dropped_full"] == 1
    assert add(store, stored("late audit", 11.0, kind="audit")) == [False]
    assert store.counted["refused_large"] == 1
    assert "audit" not in waiting(store)


def test_a_newer_audit_takes_the_place_of_an_older_one(store: Store) -> None:
    items = [stored(f"{number:02}", float(number), kind="audit") for number in range(FIT * 2)]
    assert all(add(store, *items))
    assert store.counted["dropped_full"] > 0
    assert waiting(store)[-1] == items[-1].id


def test_a_case_that_just_fits_is_kept(connection: sqlite3.Connection) -> None:
    store = Store(connection, SpoolLimits(max_bytes=SIZE_BYTES, max_result_bytes=10_000, max_age_s=100.0))
    assert add(store, stored("a")) == [True]


def test_a_case_larger_than_all_is_refused_and_pushes_nothing_out(store: Store) -> None:
    assert add(store, stored("a"), stored("huge", size=5000)) == [True, False]
    assert store.counted["refused_large"] == 1
    assert waiting(store) == ["a"]


def test_the_old_go(store: Store) -> None:
    add(store, stored("old", 0.0), stored("new", 50.0), stored("answered", 0.0))
    with store.transaction():
        store.finish("answered", b"x", 50.0, 0.0)
        store.expire(100.5)
        assert store.counted["dropped_old"] == 1
        assert [result.spool_id for result in store.results(0, 99)] == ["answered"]
        store.expire(150.5)
        assert store.held(150.5) == SpoolHeld()


def test_an_answer_takes_the_place_of_its_case(store: Store) -> None:
    add(store, stored("a", tags={"k": "v"}), stored("b", kind="audit"))
    with store.transaction():
        first = store.finish("a", b"answer", 1.0, 2.0)
        second = store.finish("b", b"other", 1.0, 2.0)
        assert store.finish("a", b"again", 1.0, 2.0) == 0
        assert store.finish("nobody", b"x", 1.0, 2.0) == 0
        results = store.results(0, 10**9)
    assert [result.sequence for result in results] == [first, second]
    assert second > first > 10**12  # of the time at which the database was made
    assert (results[0].spool_id, results[0].answer, results[0].tags) == ("a", b"answer", {"k": "v"})
    assert results[1].edge_response() is not None
    assert waiting(store) == []


def test_results_come_in_pieces_and_the_oldest_make_room(store: Store) -> None:
    answer = bytes(4000)
    add(store, *(stored(f"{number}") for number in range(4)))
    with store.transaction():
        for number in range(4):
            store.finish(f"{number}", answer, float(number), 0.0)
        assert store.counted["dropped_results"] == 3
        assert [result.spool_id for result in store.results(0, 1)] == ["3"]
        store.set_delivered("sink", 7)
        assert (store.delivered("sink"), store.delivered("other")) == (7, 0)


def test_no_more_go_than_must(connection: sqlite3.Connection) -> None:
    store = Store(connection, replace(LIMITS, max_bytes=3 * SIZE_BYTES))
    add(store, *(stored(f"{number}", float(number)) for number in range(4)))
    assert store.counted["dropped_full"] == 1
    assert waiting(store) == ["1", "2", "3"]


def test_times_and_numbers_are_those_of_what_waits_or_ever_came(store: Store) -> None:
    add(store, stored("a", 3.0), stored("b", 8.0), stored("c", 5.0))
    with store.transaction():
        assert (store.latest_s(), store.next_due_s()) == (8.0, 3.0)
        number = store.finish("a", b"x", 3.0, 0.0)
        store.postpone("c", 9.0, 1, "busy")
        assert store.next_due_s() == 8.0
        assert store.latest_s() == 9.0  # or c would wait from 8.0 until then where a device boots in 1970
        store.expire(200.0)
        assert (store.results(0, 99), store.last_sequence()) == ([], number)


def test_a_case_set_aside_says_why_and_after_how_many_attempts(connection: sqlite3.Connection, store: Store) -> None:
    add(store, stored("a"))
    with store.transaction():
        store.set_aside("a", 3, "no such input")
    row = connection.execute("SELECT state, attempts, error FROM items").fetchone()
    assert row == ("poisoned", 3, "no such input")


def test_results_have_a_limit_of_their_own_and_requests_that_were_answered_take_no_room(
    connection: sqlite3.Connection,
) -> None:
    store = Store(connection, replace(LIMITS, max_result_bytes=3000))
    add(store, stored("a"), stored("b"))
    with store.transaction():
        store.finish("a", bytes(1000), 0.0, 0.0)
        store.finish("b", bytes(1000), 1.0, 0.0)
        assert store.counted["dropped_results"] == 1
        assert [result.spool_id for result in store.results(0, 10**9)] == ["b"]
    assert connection.execute("SELECT request FROM bodies").fetchall() == [(b"",)]


@pytest.mark.parametrize("way", ["answered", "denied", "expired", "rolled back"])
def test_a_case_that_is_gone_leaves_its_room(store: Store, way: str) -> None:
    add(store, *(stored(f"{number:02}", float(number)) for number in range(FIT - (way == "rolled back"))))
    with suppress(sqlite3.IntegrityError), store.transaction():
        if way == "answered":
            store.finish("00", b"x", 1.0, 2.0)
        elif way == "denied":
            store.remove("00", "denied")
        elif way == "expired":
            store.expire(100.5)
        else:
            store.add(stored("new"))
            store.add(stored("00"))  # is there
    add(store, stored("one more", 90.0))
    assert store.counted["dropped_full"] == 0


def test_sums_stay_true_when_somebody_else_purges(tmp_path: Path, store: Store) -> None:
    add(store, *(stored(f"{number:02}", float(number)) for number in range(FIT)))
    other = open_database(tmp_path / "spool.db", SCHEMA)
    other.execute("DELETE FROM items")
    other.close()
    add(store, *(stored(f"new {number:02}") for number in range(FIT)))
    assert store.counted["dropped_full"] == 0


def test_an_agent_can_write_while_somebody_else_purges(
    tmp_path: Path, store: Store, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's lock goes to whoever asks first: a purge of 200 MB without rests kept it, and the agent lost cases."""
    add(store, *(stored(f"{number:02}") for number in range(5)))
    rests: list[float] = []

    def rest(duration_s: float) -> None:
        rests.append(duration_s)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")

    monkeypatch.setattr(time, "sleep", rest)
    with opened(tmp_path / "spool.db", len(SCHEMA)) as other:
        ids = [f"{number:02}" for number in range(5)]
        assert delete_rows(other, "items", ids) == 5
        assert other.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert rests
    assert waiting(store) == []


def test_a_purge_gets_on_however_long_it_waits_for_the_agent(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the lock counted as time that it was held: nothing was deleted then, and no space given back."""
    now_s: list[float] = [0.0]
    rests: list[float] = []

    class Waiting(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            now_s[0] += 0.5 if sql == "BEGIN IMMEDIATE" else 0.0
            return super().execute(sql, *parameters)

    def rest(duration_s: float) -> None:
        rests.append(duration_s)
        assert len(rests) < 10, "it would go on for ever"

    ids = [f"{number:02}" for number in range(FIT)]
    add(store, *map(stored, ids))
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Waiting))
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", rest)
    with opened(tmp_path / "spool.db", len(SCHEMA)) as other:
        assert delete_rows(other, "items", ids) == FIT
        assert other.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert waiting(store) == []


def test_nothing_is_left_of_a_transaction_that_fails(connection: sqlite3.Connection, store: Store) -> None:
    add(store, stored("a"))
    with pytest.raises(sqlite3.IntegrityError):
        add(store, stored("b"), stored("a"))
    assert not store.counted
    assert connection.execute("SELECT id FROM bodies").fetchall() == [("a",)]
    assert waiting(store) == ["a"]


def test_what_is_dropped_is_overwritten(tmp_path: Path, store: Store, connection: sqlite3.Connection) -> None:
    secret = b"only-for-the-device"
    item = stored("a", request_id=secret.decode())
    add(store, item)
    with store.transaction():
        store.remove("a", "denied")
        assert store.counted["denied"] == 1
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert all(secret not in path.read_bytes() for path in tmp_path.iterdir())


@settings(deadline=None, max_examples=25)
@given(sizes=st.lists(st.tuples(st.sampled_from(["spool", "audit"]), st.integers(1, 3000)), max_size=25))
def test_the_bound_holds_and_the_sums_are_true(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[Any, int]]
) -> None:
    connection = open_database(tmp_path_factory.mktemp("spool") / "spool.db", SCHEMA)
    try:
        store = Store(connection, LIMITS)
        oracle: list[Stored] = []
        for number, (kind, size) in enumerate(sizes):
            item = stored(f"{number}", float(number), kind=kind, size=size)
            add(store, item)
            oracle = _after(oracle, item)
            rows = connection.execute("SELECT id FROM items ORDER BY rowid").fetchall()
            assert [row[0] for row in rows] == [one.id for one in oracle]
    finally:
        connection.close()


def _after(held: list[Stored], item: Stored) -> list[Stored]:
    """The rule, plainly: add, and drop audits and then cases, oldest first, while there is too much."""
    order = sorted([*held, item], key=lambda one: (one.kind, one.kept_s))
    while sum(one.size_bytes for one in order) > LIMITS.max_bytes:
        if order.pop(0) is item:  # then nothing makes room for it
            return held
    return [one for one in [*held, item] if one in order]


def test_the_clock_stands_no_step_of_the_wall_clock() -> None:
    assert ForwardClock(0.0, 1e9, 50.0).at(51.0) == 1e9 + 1
    assert ForwardClock(1.6e9, 1.7e9, 50.0).at(51.0) == 1.7e9 + 1
    assert ForwardClock(1e9, 5.0, 50.0).at(51.0) == 1e9 + 1  # set back before the start
    assert ForwardClock(500.0, 1.7e9, 50.0).at(51.0) == 501.0  # set for the first time


@pytest.mark.parametrize("garbled", ["'{\"camera'", "'7'", "CAST(x'ff7b7d' AS TEXT)"])
def test_tags_that_the_disk_garbled_hold_up_nobody_and_their_case_stays(
    connection: sqlite3.Connection, store: Store, garbled: str
) -> None:
    add(store, stored("a", 0.0), stored("b", 1.0), stored("c", 0.0))
    with store.transaction():
        store.finish("c", b"answer", 1.0, 2.0)
    connection.execute(f"UPDATE items SET tags = {garbled} WHERE id != 'b'")  # noqa: S608 (from above)
    assert waiting(store) == ["b"]
    with store.transaction():
        assert [(result.spool_id, result.tags) for result in store.results(0, 10**9)] == [("c", {})]
    (row,) = connection.execute("SELECT state, error FROM items WHERE id = 'a'")
    assert row[0] == "poisoned"
    assert "cannot be read" in row[1]


def test_tags_take_the_room_that_they_take_on_disk(store: Store) -> None:
    long = {"note": "\u00e9" * (LIMITS.max_bytes // 6)}
    assert add(store, stored("a", tags=long), stored("b", tags={"note": "x" * 4000})) == [False, True]
    with store.transaction():
        assert store.held(0.0).size_bytes > 4000
        store.finish("b", b"answer", 1.0, 2.0)
        assert store.held(0.0).size_bytes > 4000
