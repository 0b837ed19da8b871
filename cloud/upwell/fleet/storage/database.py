"""The database: opened, migrated to the newest schema, and used in transactions."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, Select, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from upwell.fleet.config import DatabaseSection
from upwell.fleet.errors import DatabaseUnavailable, NotFound
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file

try:
    import fcntl
except ImportError:  # Windows has no such lock
    fcntl = None  # type: ignore[assignment]

_BUSY_MS = 10_000
_MIGRATION_LOCK = 0x75707765
RETRY_S = 60.0
"""Retry time for requests refused because the database cannot be used."""

MOST_IDS = 30_000
"""Maximum number of ids in one statement, beside which it has other parameters."""

_log = logging.getLogger(__name__)


@contextmanager
def sole_service(section: DatabaseSection) -> Iterator[None]:
    """Keep other services from the SQLite file until the block or the process ends, however it ends.

    Two would each know only the devices that poll it. Raises `ConfigError` if another service has the file.
    """
    if section.postgres is not None or fcntl is None:
        yield
        return
    path, key = Path(f"{os.path.realpath(section.file)}.lock"), "fleet.database.file"
    with ConfigError.on_os_error(path, "cannot be used", key):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with ConfigError.on_os_error(path, "cannot be locked", key):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another fleet service uses it; stop that one, or let replicas share `postgres`"
                raise ConfigError.at(section.file, problem, key) from None
        yield
    finally:
        os.close(descriptor)


class Database:
    """The service's state. Thread-safe; `is_shared` says that other replicas may use it, too.

    `writes` counts the statements that changed something, a batch of rows as one. Raises `ConfigError` if it cannot
    be opened.
    """

    def __init__(self, section: DatabaseSection) -> None:
        self.is_shared = section.postgres is not None
        self.writes = 0
        self._trouble = ""
        self._engine = _postgres(section) if self.is_shared else _sqlite(section.file)
        event.listen(self._engine, "before_cursor_execute", self._count)
        try:
            self._migrate()
        except (DatabaseError, CommandError) as error:
            self._engine.dispose()
            key = "fleet.database.postgres" if self.is_shared else "fleet.database.file"
            where = None if self.is_shared else section.file
            newer = "a newer version of Upwell has changed it; expected that version or a later one"
            reason = newer if isinstance(error, CommandError) else _reason(error)
            raise ConfigError.at(where, f"the database cannot be used: {reason}", key) from None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for reading. Raises `DatabaseUnavailable`."""
        with self._usable(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: all or nothing. Raises `DatabaseUnavailable`."""
        with self._usable(), self._engine.execution_options(is_writing=True).begin() as connection:
            yield connection
        self._trouble = ""

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Log once why the database cannot be used, until it works again."""
        try:
            yield
        except OperationalError as error:
            reason = _reason(error)
            if reason != self._trouble:
                _log.error("the database cannot be used: %s", reason)
            self._trouble = reason
            text = "the database cannot be used now; the service's log says why"
            raise DatabaseUnavailable(text, retry_after_s=RETRY_S) from None

    def _migrate(self) -> None:
        with self._engine.execution_options(is_writing=True).begin() as connection:
            if self.is_shared:  # replicas that start together
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
            migrate(connection)

    def _count(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE"):
            self.writes += 1


Row: TypeAlias = Mapping[str, Any]
"""A row's values by column name."""


def one_row(connection: Connection, chosen: Select[Any]) -> Row | None:
    """The first row, or None."""
    found = connection.execute(chosen).mappings().first()
    return None if found is None else {str(name): value for name, value in found.items()}


def the_row(connection: Connection, chosen: Select[Any], what: str) -> Row:
    """The first row. Raises `NotFound` for `what`."""
    found = one_row(connection, chosen)
    if found is None:
        raise NotFound(f"no {what}")
    return found


def all_rows(connection: Connection, chosen: Select[Any]) -> list[Row]:
    """The rows."""
    return [{str(name): value for name, value in row.items()} for row in connection.execute(chosen).mappings()]


def in_batches(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids in lists short enough for one statement: SQLite takes 32,766 parameters, PostgreSQL 65,535."""
    found = list(ids)
    for start in range(0, len(found), MOST_IDS):
        yield found[start : start + MOST_IDS]


def migrate(connection: Connection, to: str = "head") -> None:
    """Migrate the schema to that step, forward or back, in the connection's transaction."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    (command.downgrade if to == "base" else command.upgrade)(config, to)


def _sqlite(path: Path) -> Engine:
    with ConfigError.on_os_error(path, "cannot be used", "fleet.database.file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": _BUSY_MS / 1e3})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={_BUSY_MS}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that begins by reading cannot be upgraded while another one writes.
        is_writing = connection.get_execution_options().get("is_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")

    return engine


def _postgres(section: DatabaseSection) -> Engine:
    key = "fleet.database.postgres"
    try:
        url = make_url(str(section.postgres)).set(drivername="postgresql+psycopg")
        if section.password_file is not None:
            url = url.set(password=read_file(section.password_file, "the password", 4096).decode().strip())
        return create_engine(url, pool_pre_ping=True, pool_size=10, connect_args={"connect_timeout": 10})
    except (ArgumentError, ValueError):
        raise ConfigError.at(None, "expected postgresql://USER@HOST/NAME", key) from None
    except ModuleNotFoundError:
        raise ConfigError.at(None, "needs the package psycopg: pip install 'upwell[fleet-postgres]'", key) from None


def _reason(error: DatabaseError) -> str:
    if isinstance(error, OperationalError):
        return " ".join(str(error.orig).split())
    return f"{type(error).__name__}: {' '.join(str(error.orig).split())[:300]}"
