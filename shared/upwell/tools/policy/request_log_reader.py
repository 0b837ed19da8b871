"""Reads a request log: one JSON object per line, each a `LogLine`. Every invalid line is reported; nothing is
guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from upwell.shared.errors import ConfigError, Problem
from upwell.shared.routing.request_log_line import LONGEST_LINE_BYTES, LogLine
from upwell.shared.units import count_of

MAX_LOG_BYTES = 512 << 20
"""Maximum size of a log, whose content must fit into memory (bytes)."""

MAX_LINES = 500_000
_SHOWN_PROBLEMS = 20


def read_log(path: Path) -> list[LogLine]:
    """The requests in the file at `path`, in the file's order; blank lines are skipped.

    Raises `ConfigError` for a file that cannot be read, is too large or holds no request, and for invalid lines, with
    the line number and the fault of the first 20.
    """
    lines: list[LogLine] = []
    problems: list[Problem] = []
    wrong = 0
    for number, text in _numbered(path):
        try:
            lines.append(LogLine.model_validate_json(text))
        except ValidationError as error:
            wrong += 1
            if len(problems) < _SHOWN_PROBLEMS:
                problems.append(_problem(path, number, text, error))
    if (more := wrong - len(problems)) > 0:
        says = "1 more line is wrong" if more == 1 else f"{more} more lines are wrong"
        problems.append(Problem(path, None, None, "", says))
    if problems:
        raise ConfigError(problems)
    if not lines:
        raise ConfigError.at(path, "it contains no requests; expected one JSON object per line")
    return lines


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Line number and content of each line that is not blank, with bounds on the bytes read."""
    read_bytes = 0
    try:
        with path.open("rb") as file:
            _check_size(path, os.fstat(file.fileno()).st_size)
            number = 0
            while text := file.readline(LONGEST_LINE_BYTES + 1):
                number += 1
                read_bytes += len(text)  # a pipe reports a size of 0
                _check_size(path, read_bytes)
                if len(text) > LONGEST_LINE_BYTES:
                    problem = f"longer than {LONGEST_LINE_BYTES} bytes; expected one request"
                    raise ConfigError.at(path, problem, line=number)
                if number > MAX_LINES:
                    raise ConfigError.at(path, f"more than {MAX_LINES} lines; use a part of the log")
                if text.strip():
                    yield number, text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
    except FileNotFoundError:
        raise ConfigError.at(path, "no such file") from None
    except IsADirectoryError:
        raise ConfigError.at(path, "this is a folder; expected a request log (JSON lines)") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError.at(path, f"cannot be read: {reason}") from None


def _check_size(path: Path, size_bytes: int) -> None:
    if size_bytes > MAX_LOG_BYTES:
        raise ConfigError.at(path, f"larger than {MAX_LOG_BYTES >> 20} MiB; use a part of the log")


def _problem(path: Path, number: int, text: bytes, error: ValidationError) -> Problem:
    """The first fault of one line, and the number of others."""
    first, *others = error.errors(include_url=False, include_input=False)
    key = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        message = "this key is missing"
    elif first["type"] == "json_invalid":
        is_cut = not text.endswith(b"\n")
        message = "truncated; remove this line" if is_cut else "not JSON; expected a JSON object"
    elif first["type"] == "extra_forbidden":
        message = f"unknown key; expected one of {', '.join(LogLine.model_fields)}"
    more = f" (and {count_of(len(others), 'more problem')} in this line)" if others else ""
    return Problem(path, number, None, key, message + more)
