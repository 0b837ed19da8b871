"""The log that `upwell policy collect` writes, line by line, so that it can be interrupted and continued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from upwell.edge.observe.request_log import append_line, encode_line, open_log
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.routing.log_line import LogLine

ITEM = "item"
"""The tag with the item's name."""

CLOUD_TRUTH = MappingProxyType({"truth": "cloud"})
"""The additional tag of lines in which the cloud's answers count as correct."""

_START = b'{"t_s":'
"""The start of each of our lines: an incomplete last line of another file is never removed."""


class LogNotWritten(UpwellError):
    """The log cannot be written to disk."""


@dataclass(frozen=True)
class Former:
    """The former contents of a log: its items, its last instant, and one of its lines to compare with."""

    items: frozenset[str] = frozenset()
    last_s: float = 0.0
    line: LogLine | None = None


class LogFile:
    """An open log. `former` is what it held when it was opened."""

    def __init__(self, path: Path, file: int, former: Former) -> None:
        self.former = former
        self._path = path
        self._file = file

    def append(self, line: LogLine) -> None:
        """Write one line, atomically. Raises `LogNotWritten`."""
        try:
            append_line(self._file, encode_line(line))
        except OSError as error:
            raise LogNotWritten(f"{self._path}: cannot be written: {error.strerror}") from None


@contextmanager
def opened(path: Path) -> Iterator[LogFile]:
    """The log at `path`, created if missing, with an unfinished last line cut off. Raises `ConfigError`."""
    if path.exists() and not path.is_file():
        raise ConfigError.at(path, "not a file; expected a log to write or to continue", "--out")
    former = _read(path) if path.exists() else Former()
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_log(path))
        except OSError as error:
            raise ConfigError.at(path, f"cannot be written: {error.strerror}", "--out") from None
        yield LogFile(path, file, former)


def _read(path: Path) -> Former:
    """The contents of the log, without an unfinished last line. Raises `ConfigError` for another file."""
    items: set[str] = set()
    last_s, first = 0.0, None
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n") and _START.startswith(text[: len(_START)]):
                    break
                line = _parsed(path, number, text)
                first = first or line
                last_s = max(last_s, line.t_s)
                if ITEM in line.tags:
                    items.add(line.tags[ITEM])
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror}", "--out") from None
    return Former(frozenset(items), last_s, first)


def _parsed(path: Path, number: int, text: bytes) -> LogLine:
    try:
        return LogLine.model_validate_json(text)
    except ValidationError:
        raise ConfigError.at(
            path, "this is not a line of a request log; --out names a new file or a log to continue", line=number
        ) from None
