"""A database is durable, private and checked before it is used."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.integration.spool.harness import case
from upwell.edge.spool import open_database as module
from upwell.edge.spool.open_database import WELL_AFTER_S, DatabaseHealth, is_damage, open_database, set_aside
from upwell.edge.spool.spool_store import SCHEMA, Store
from upwell.edge.spool.spooled_request import SpoolLimits, Stored


def test_every_commit_is_on_disk_and_what_is_deleted_is_gone(tmp_path: Path) -> None:
    connection = open_database(tmp_path / "spool.db", SCHEMA)
    try:
        found = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in (
                "journal_mode",
                "synchronous",
                "auto_vacuum",
                "secure_delete",
                "foreign_keys",
                "trusted_schema",
            )
        }
    finally:
        connection.close()
    full, incremental = 2, 2
    assert found == {
        "journal_mode": "wal",
        "synchronous": full,
        "auto_vacuum": incremental,
        "secure_delete": 1,
        "foreign_keys": 1,
        "trusted_schema": 0,
    }


def test_a_page_that_is_damaged_is_found_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    connection = open_database(path, SCHEMA)
    store = Store(connection, SpoolLimits())
    with store.transaction():
        for number in range(200):
            store.add(Stored.of(case(1), f"{number}", 0.0).at(0.0))
    connection.close()
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        open_database(path, SCHEMA)
    assert is_damage(caught.value)


def test_the_file_becomes_private_and_is_no_link(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    path.touch(0o644)
    open_database(path, SCHEMA).close()
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link.db").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        open_database(tmp_path / "link.db", SCHEMA)


def test_a_damaged_database_set_aside_has_no_log_of_an_earlier_one(tmp_path: Path) -> None:
    path, aside = tmp_path / "spool.db", tmp_path / "spool.db.damaged"
    path.write_bytes(b"damaged")
    path.with_name("spool.db-shm").write_bytes(b"of it")
    for suffix in ("", "-wal", "-shm"):
        aside.with_name(aside.name + suffix).write_bytes(b"earlier")
    set_aside("spool", path, sqlite3.DatabaseError("damaged"))
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {
        "spool.db.damaged": b"damaged",
        "spool.db.damaged-shm": b"of it",
    }


def test_a_disk_is_healthy_once_writes_have_succeeded_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(module, "time", clock)
    health = DatabaseHealth("spool", Path("spool.db"), "nothing is kept")
    health.note_failed(OSError("full"))
    for now_s, is_well in ((1.0, False), (WELL_AFTER_S - 1.0, False), (WELL_AFTER_S, True)):
        clock.monotonic = lambda at=now_s: at
        health.note_written()
        assert (health.problem == "") is is_well


def test_a_full_or_locked_disk_is_no_damage() -> None:
    assert not is_damage(sqlite3.OperationalError("database or disk is full"))
