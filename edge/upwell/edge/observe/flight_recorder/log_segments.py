"""A bounded log of lines on disk: append-only files, of which the oldest is deleted whole."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

SEGMENTS = 8
"""Number of full files of equal length, besides the one being written."""

_NAME = re.compile(r"(\d{1,15})\.jsonl", re.ASCII)
_CHUNK_BYTES = 1 << 16


class Segments:
    """Writes the log. One writer at a time; readers do not need this object.

    At least the last `limit` lines are kept unless they exceed `limit_bytes`. There is no fsync: a power failure may
    lose the last seconds and leave a truncated line, which readers skip.
    """

    def __init__(self, folder: Path, limit: int, limit_bytes: int) -> None:
        """Touch no file yet."""
        self._folder = folder
        self._most_lines = max(1, -(-limit // SEGMENTS))
        self._most_bytes = max(1, limit_bytes // (SEGMENTS + 1))
        self._file = -1
        self._number = 0
        self._lines = self._bytes = 0

    def append(self, lines: list[bytes]) -> None:
        """Append lines, each with its line feed. Raises `OSError`; the next call continues the log."""
        try:
            if self._file < 0:
                self._resume()
            while lines:
                if self._lines >= self._most_lines or self._bytes >= self._most_bytes:
                    self._begin(self._number + 1)
                    self._prune()
                batch = _fitting(lines, self._most_lines - self._lines, self._most_bytes - self._bytes)
                _write_all(self._file, b"".join(batch))
                self._lines += len(batch)
                self._bytes += sum(map(len, batch))
                lines = lines[len(batch) :]
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _resume(self) -> None:
        """Continue the newest file; a truncated line there is ended, so that it spoils no other line."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = _numbers(self._folder)
        self._begin(numbers[-1] if numbers else 1)
        written = (self._folder / _name(self._number)).read_bytes() if self._bytes <= 2 * self._most_bytes else b""
        self._lines = written.count(b"\n")
        if written and not written.endswith(b"\n"):
            _write_all(self._file, b"\n")
        self._prune()

    def _begin(self, number: int) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(self._folder / _name(number), flags, 0o600)
        self._number, self._lines, self._bytes = number, 0, os.fstat(self._file).st_size

    def _prune(self) -> None:
        for number in _numbers(self._folder)[: -SEGMENTS - 1]:
            (self._folder / _name(number)).unlink(missing_ok=True)


def newest_lines(folder: Path) -> Iterator[bytes]:
    """The lines of the log, newest first, also while it is being written. A missing folder is an empty log.

    Raises `OSError` if an existing file cannot be read.
    """
    try:
        numbers = _numbers(folder)
    except FileNotFoundError:
        return
    for number in reversed(numbers):
        try:
            content = (folder / _name(number)).read_bytes()
        except FileNotFoundError:  # the writer has just deleted it
            continue
        complete, _, _ = content.rpartition(b"\n")
        yield from reversed(complete.split(b"\n"))


def _numbers(folder: Path) -> list[int]:
    """The numbers of the files, in order."""
    found = (_NAME.fullmatch(entry.name) for entry in os.scandir(folder))
    return sorted(int(match[1]) for match in found if match)


def _name(number: int) -> str:
    return f"{number:08}.jsonl"


def _fitting(lines: list[bytes], most_lines: int, most_bytes: int) -> list[bytes]:
    """The first lines that fit, at least one."""
    count, size = 1, len(lines[0])
    while count < min(len(lines), most_lines) and size + len(lines[count]) <= most_bytes:
        size += len(lines[count])
        count += 1
    return lines[:count]


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
