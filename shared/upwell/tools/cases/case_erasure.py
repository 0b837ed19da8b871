"""Overwrites erased data on disk, in databases that an agent may be using and in files of lines."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upwell.shared.errors import ConfigError
from upwell.shared.files import parse_json

_ROWS_AT_ONCE, _PAGES_AT_ONCE = 100, 1000
_PATIENCE_S = 10.0


def erase_rows(
    connection: sqlite3.Connection, path: Path, table: str, ids: Sequence[str | int], key: str = "id"
) -> int:
    """Delete the rows with these keys and leave no byte of them in the database or its log; return their number.

    The connection overwrites what it deletes (`secure_delete`). The write-ahead log holds older copies of the pages
    until all of it has been moved into the database, which readers delay. Raises `ConfigError` if they do so for 10
    s, and `sqlite3.Error`.
    """
    gone = 0
    for start in range(0, len(ids), _ROWS_AT_ONCE):  # in small pieces, since the agent writes in between
        connection.execute("BEGIN IMMEDIATE")
        for id in ids[start : start + _ROWS_AT_ONCE]:
            gone += connection.execute(f"DELETE FROM {table} WHERE {key} = ?", (id,)).rowcount  # noqa: S608 (our own names)
        connection.execute("COMMIT")
    while connection.execute("PRAGMA freelist_count").fetchone()[0] > 0:
        before = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
        if connection.execute("PRAGMA page_count").fetchone()[0] >= before:
            break
    until_s = time.monotonic() + _PATIENCE_S
    while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        if time.monotonic() >= until_s:
            raise ConfigError.at(path, "it is being read all the time, so older copies stay in its log; run this again")
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
