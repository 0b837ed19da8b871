"""Up and down between versions, without losing a case."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.spool.harness import case
from upwell.edge.spool.open_database import Migration, migrate, open_database, version_of
from upwell.edge.spool.spool_store import SCHEMA, Store
from upwell.edge.spool.spooled_request import SpoolLimits, Stored

NEXT = Migration(
    up=(
        "CREATE TABLE colours (id TEXT PRIMARY KEY REFERENCES items ON DELETE CASCADE, colour TEXT)",
        "ALTER TABLE items ADD COLUMN shade TEXT NOT NULL DEFAULT 'grey'",
    ),
    down=("DROP TABLE colours", "ALTER TABLE items DROP COLUMN shade"),
)
"""What a later version may bring."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_database(path, SCHEMA)
    yield connection
    connection.close()


def shape(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every table and index with its definition."""
    return connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name").fetchall()


def put(connection: sqlite3.Connection, id: str) -> None:
    store = Store(connection, SpoolLimits())
    with store.transaction():
        store.add(Stored.of(case(1), id, 6.0).at(5.0))


def ids(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT id FROM items JOIN bodies USING (id)")]


def test_a_new_database_has_the_newest_version(connection: sqlite3.Connection) -> None:
    assert version_of(connection) == len(SCHEMA)


def test_down_to_nothing_and_up_again(connection: sqlite3.Connection) -> None:
    before = shape(connection)
    migrate(connection, SCHEMA, target=0)
    assert [name for name, _ in shape(connection) if not name.startswith("sqlite_")] == []
    migrate(connection, SCHEMA)
    assert shape(connection) == before


def test_a_later_version_goes_up_and_we_go_down_with_every_case(path: Path, connection: sqlite3.Connection) -> None:
    before = shape(connection)
    put(connection, "a")
    migrate(connection, [*SCHEMA, NEXT])
    assert version_of(connection) == len(SCHEMA) + 1
    connection.execute("INSERT INTO colours VALUES ('a', 'red')")
    older = open_database(path, SCHEMA)  # knows nothing of the later step
    try:
        assert (version_of(older), ids(older)) == (len(SCHEMA), ["a"])
        assert shape(older) == before
        put(older, "b")
        migrate(older, [*SCHEMA, NEXT])
        assert older.execute("SELECT id, shade FROM items ORDER BY id").fetchall() == [("a", "grey"), ("b", "grey")]
    finally:
        older.close()


def test_a_step_that_fails_changes_nothing(connection: sqlite3.Connection) -> None:
    put(connection, "a")
    before = shape(connection)
    broken = Migration(up=("CREATE TABLE more (id TEXT)", "CREATE TABLE items (id TEXT)"), down=())
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [*SCHEMA, broken])
    assert (version_of(connection), shape(connection), ids(connection)) == (len(SCHEMA), before, ["a"])


@pytest.mark.parametrize("statement", ["ATTACH DATABASE '{}' AS other", "PRAGMA journal_mode = DELETE"])
def test_a_way_down_gets_no_further_than_the_file(path: Path, connection: sqlite3.Connection, statement: str) -> None:
    target = path.with_name("elsewhere")
    migrate(connection, [*SCHEMA, Migration(up=(), down=(statement.format(target),))])
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        migrate(connection, SCHEMA)
    assert version_of(connection) == len(SCHEMA) + 1
    assert not target.exists()
    connection.execute("PRAGMA user_version")  # allowed again


def test_a_version_without_a_way_down_is_no_database_of_ours(path: Path, connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA user_version = 99")
    with pytest.raises(sqlite3.DatabaseError, match="no way down from version 99"):
        open_database(path, SCHEMA)
