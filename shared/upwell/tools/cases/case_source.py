"""Where cases are stored, and how they are erased: the database of an agent, which may run, or a folder.

Erased data is overwritten on disk, in databases that an agent may be using and in files of lines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from upwell.edge.case_collection.case_database import FILE_NAME, READ, SCHEMA, read_case, read_facts
from upwell.edge.case_collection.case_file_encryption import MAX_PARCEL_BYTES, read_key, unpack
from upwell.edge.case_collection.collected_case import CaseFacts, CaseSignature, CollectedCase
from upwell.edge.config import state_dir_of
from upwell.edge.spool.open_database import connect, delete_rows, opened, version_of
from upwell.shared.errors import ConfigError, Problem, UpwellError, printable
from upwell.shared.files import lock_file, parse_json
from upwell.shared.opamp import CASE_SUFFIX
from upwell.shared.units import count_of

_PATIENCE_S = 10.0
_LOCK_NAME = "case-labels.lock"


def erase_rows(
    connection: sqlite3.Connection, path: Path, table: str, ids: Sequence[str | int], key: str = "id"
) -> int:
    """Delete the rows with these keys and leave no byte of them in the database or its log; return their number.

    Readers delay the checkpoint of the log. Raises `ConfigError` if they do so for 10 s, and `sqlite3.Error`.
    """
    gone = delete_rows(connection, table, ids, key)
    until_s = time.monotonic() + _PATIENCE_S
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= until_s:
            raise ConfigError.at(
                path, "another program keeps reading it, so deleted data is still in its log; run this again"
            )
        time.sleep(0.05)
    return gone


def erase_lines(path: Path, is_meant: Callable[[Mapping[str, Any]], bool], left: Callable[[Any], Any]) -> int:
    """Overwrite the selected lines of a file of JSON objects in place; return their number.

    `left` gives what remains of a line, None for nothing. It is padded with spaces to the old length, so concurrent
    appends lose nothing. A missing file has no lines. Raises `ConfigError` if the file cannot be written.
    """
    erased = 0
    try:
        with path.open("r+b") as file:
            start = 0
            for line in file:
                end = start + len(line)
                document = _object(line)
                if document is not None and is_meant(document):
                    rest = left(document)
                    text = b"" if rest is None else json.dumps(rest).encode()
                    length = len(line.rstrip(b"\r\n"))
                    _overwrite(file.fileno(), start, text.ljust(length)[:length])
                    erased += 1
                start = end
            if erased:
                os.fsync(file.fileno())
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ConfigError.at(path, f"cannot be written: {error.strerror or error}") from None
    return erased


def _object(line: bytes) -> Mapping[str, Any] | None:
    try:
        document = parse_json(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _overwrite(descriptor: int, at: int, data: bytes) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold off other commands that change the labels or the index of exports in this folder.

    On a full disk, or a share that knows no locks, they are not held off.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            lock_file(held.enter_context((folder / _LOCK_NAME).open("ab")).fileno(), waits=True)
        yield


NO_FOLDER = "without a folder the agent collects no cases; expected agent.state_dir"
KEY_VARIABLE = "UPWELL_CASES_KEY_FILE"

_SHOWN = 20
_log = logging.getLogger(__name__)


class CaseLost(UpwellError):
    """A case that no longer exists or cannot be read."""


ReadCase: TypeAlias = Callable[[str], CollectedCase]


class CaseSource(Protocol):
    """A store of cases."""

    @property
    def folder(self) -> Path:
        """The folder for files about the cases, such as labels."""

    def facts(self) -> Sequence[CaseFacts]:
        """The facts of each case, oldest first. Raises `ConfigError` if the store, or everything in it, cannot be
        read.
        """

    def unreadable(self) -> Sequence[Path]:
        """Files whose case cannot be determined."""

    def reading(self) -> AbstractContextManager[ReadCase]:
        """Gives what reads a case with its tensors by its id, any number of them, or raises `CaseLost`."""

    def erase(self, ids: Sequence[str]) -> int:
        """Erase these cases; return their number. Raises `ConfigError` if that failed."""


@dataclass(frozen=True)
class CaseDatabase:
    """The cases of an agent on this machine."""

    path: Path

    @property
    def folder(self) -> Path:
        """The agent's state folder."""
        return self.path.parent

    def facts(self) -> Sequence[CaseFacts]:
        """The facts of each case, oldest first. Those that cannot be read are logged and left out."""
        if not self._is_begun():
            return []
        query = "SELECT facts, text FROM cases JOIN signatures ON signature = number ORDER BY kept_s, cases.rowid"
        with self._connection() as connection:
            rows = connection.execute(query).fetchall()
        signature_of = cache(CaseSignature.model_validate_json)
        found = []
        for facts, signature in rows:
            with contextlib.suppress(ValueError):
                found.append(read_facts(facts, signature_of(signature)))
        if lost := len(rows) - len(found):
            _log.warning("left out: %s: %s cannot be read", printable(self.path), count_of(lost, "case"))
        return found

    def unreadable(self) -> Sequence[Path]:
        """None: a row that cannot be read still has its tags, by which it is erased."""
        return ()

    @contextlib.contextmanager
    def reading(self) -> Iterator[ReadCase]:
        """One connection serves all cases; it is opened with the first."""
        with contextlib.ExitStack() as stack:
            connection = cache(lambda: stack.enter_context(self._connection()))
            yield lambda id: self._read(connection(), id)

    def _read(self, connection: sqlite3.Connection, id: str) -> CollectedCase:
        with self._errors():
            row = connection.execute(f"{READ} WHERE cases.id = ?", (id,)).fetchone()
        if row is None:
            raise CaseLost(f"case {id} no longer exists")
        try:
            return read_case(row)
        except ValueError as error:
            raise CaseLost(f"case {id} cannot be read: {error}") from None

    def erase(self, ids: Sequence[str]) -> int:
        """Overwrite these cases in the database and its log."""
        if not self._is_begun():
            return 0
        with self._connection() as connection:
            return erase_rows(connection, self.path, "cases", ids)

    def _is_begun(self) -> bool:
        """Whether the agent has created its tables yet."""
        if not self.path.exists():
            return False
        with self._errors(), contextlib.closing(connect(self.path)) as connection:
            return version_of(connection) > 0

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigError.at(self.path, f"the cases cannot be used: {error}") from None

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), opened(self.path, len(SCHEMA)) as connection:
            yield connection


@dataclass(frozen=True)
class CaseFolder:
    """Cases that devices sent to a folder, of one agent or of many. A sealed one is opened with the key in the
    environment variable `KEY_VARIABLE`.
    """

    path: Path

    @property
    def folder(self) -> Path:
        """The folder itself."""
        return self.path

    def facts(self) -> Sequence[CaseFacts]:
        """The facts of each case, oldest first. Unreadable files are logged and skipped, unless all are unreadable."""
        found, unreadable = self._found()
        problems = _by_reason(unreadable)
        if problems and not found:
            raise ConfigError(problems[:_SHOWN])
        for problem in problems:
            _log.warning("left out: %s", printable(str(problem)))
        return sorted(found, key=lambda facts: facts.created_unix_s)

    def unreadable(self) -> Sequence[Path]:
        """Files that are damaged, or sealed with another key."""
        return [*self._found()[1]]

    def _found(self) -> tuple[list[CaseFacts], dict[Path, str]]:
        """The facts of each readable case, and why each other file is none."""
        found: list[CaseFacts] = []
        unreadable: dict[Path, str] = {}
        for path in self._files().values():
            try:
                found.append(self._unpacked(path).facts)
            except (OSError, ValueError) as error:
                unreadable[path] = (isinstance(error, OSError) and error.strerror) or str(error)
        return found, unreadable

    @contextlib.contextmanager
    def reading(self) -> Iterator[ReadCase]:
        """The folder is searched once, for all cases."""
        files = self._files()
        yield lambda id: self._read(files.get(id), id)

    def _read(self, path: Path | None, id: str) -> CollectedCase:
        if path is None:
            raise CaseLost(f"case {id} no longer exists")
        try:
            return self._unpacked(path)
        except (OSError, ValueError) as error:
            raise CaseLost(f"case {id} cannot be read: {error}") from None

    def erase(self, ids: Sequence[str]) -> int:
        """Overwrite and delete these files, in every folder: a device with a new name may have sent a case again."""
        wanted = set(ids)
        doomed = [path for path in self._paths() if path.stem in wanted]
        for path in doomed:
            with ConfigError.on_os_error(path, "cannot be erased"):
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())
                path.unlink()
        return len({path.stem for path in doomed})

    def _files(self) -> dict[str, Path]:
        return {path.stem: path for path in self._paths()}

    def _paths(self) -> list[Path]:
        return [path for path in sorted(self.path.rglob(f"*{CASE_SUFFIX}")) if path.is_file()]

    def _unpacked(self, path: Path) -> CollectedCase:
        key_file = os.environ.get(KEY_VARIABLE)
        if path.stat().st_size > MAX_PARCEL_BYTES:
            raise ValueError(f"it is larger than {MAX_PARCEL_BYTES >> 20} MiB")
        return unpack(path.read_bytes(), path.stem, None if key_file is None else read_key(Path(key_file)))


def _by_reason(unreadable: Mapping[Path, str]) -> list[Problem]:
    """A problem for each reason, at its first file: without the key it is the same for every file."""
    files: dict[str, list[Path]] = {}
    for path, reason in unreadable.items():
        files.setdefault(reason, []).append(path)
    found = []
    for reason, (first, *others) in files.items():
        like = f" (the same with {count_of(len(others), 'other file')})" if others else ""
        found.append(Problem(first, None, None, "", f"it is not a readable case: {reason}{like}"))
    return found


def open_source(path: Path) -> CaseSource:
    """The cases of an agent.yaml, of an agent's state folder, or of a folder that devices sent them to.

    Raises `ConfigError`.
    """
    if path.is_dir() and not (path / FILE_NAME).exists() and next(path.rglob(f"*{CASE_SUFFIX}"), None) is not None:
        return CaseFolder(path)
    if path.is_dir():
        return CaseDatabase(path / FILE_NAME)
    return CaseDatabase(state_dir_of(path, NO_FOLDER) / FILE_NAME)


@dataclass(frozen=True)
class CaseFilter:
    """Selects cases: those with all of `tags`, of one of `models` and kept for one of `whys`, if given."""

    tags: Mapping[str, str]
    models: Sequence[str] = ()
    whys: Sequence[str] = ()

    def chooses(self, facts: CaseFacts) -> bool:
        """Whether the case is selected. As in rules, a missing tag is the empty text."""
        return (
            all(facts.tags.get(name, "") == value for name, value in self.tags.items())
            and (not self.models or facts.model in self.models)
            and (not self.whys or bool(set(self.whys) & set(facts.why)))
        )
