"""What the commands share at a terminal: common options, consoles, numbers, text without control characters, silence.

`quiet` keeps the output of libraries off the terminal, whether Python or C++ wrote it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from upwell.shared.errors import ConfigError, printable
from upwell.shared.units import parse_share

T = TypeVar("T")

PIPE_COLUMNS = 1 << 16
"""The width of standard output that is no terminal: more than any table needs."""

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
PolicyArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="POLICY", help="The policy file (YAML).", show_default=False)
]


def parsed(option: str, text: Any, parse: Callable[[Any], T]) -> T:
    """The option's text parsed by `parse`. Raises `ConfigError` for its `ValueError`."""
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError.at(None, str(error), option) from None


def share(option: str, text: str) -> float:
    """`20%` or `0.2` -> 0.2. Raises `ConfigError`."""
    value: str | float = text
    with contextlib.suppress(ValueError):
        value = float(text)
    return parsed(option, value, parse_share)


def key_values(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """`["a=1"]` -> `{"a": "1"}`; a value may hold further equals signs. Raises `ConfigError`."""
    parts = [text.partition("=") for text in texts or ()]
    for key, equals, value in parts:
        if not key or not equals:
            raise ConfigError.at(None, f"expected KEY=VALUE, got {key + equals + value!r}", option)
    return {key: value for key, _, value in parts}


def stdout_console() -> Console:
    """Standard output. Only a terminal has a width that tables must fit: a pipe or a file gets every line whole."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def stderr_console() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def progress(*columns: ProgressColumn, console: Console | None = None) -> Progress:
    """A bar on standard error with these columns beside it, by default the number done; silent outside a terminal."""
    shown = console or stderr_console()
    beside = columns or (MofNCompleteColumn(), TimeRemainingColumn())
    named = TextColumn("{task.description}", markup=False)
    return Progress(named, BarColumn(), *beside, console=shown, transient=True, disable=not shown.is_terminal)


def plain(text: object) -> Text:
    """`printable` text for rich, without interpreting markup."""
    return Text(printable(text))


def print_error(text: str) -> None:
    """Print the lines of an error to standard error."""
    stderr_console().print(Text("\n".join(map(printable, text.split("\n")))))


def percent(share: float) -> str:
    """0.1234 -> `12.3%`, or `unknown` for a value that is not finite."""
    return f"{share:.1%}" if math.isfinite(share) else "unknown"


def finite(value: Any) -> Any:
    """The value for JSON: None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def quiet() -> Iterator[IO[str]]:
    """Discard standard output and error, log records and warnings; yields the true standard error to write to.

    It redirects the file descriptors themselves, so it is only for a command that has the process to itself.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    logged = logging.root.manager.disable
    with (
        tempfile.TemporaryFile("w+") as sink,
        os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding or "utf-8", errors="replace") as terminal,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            for number in (1, 2):
                os.dup2(sink.fileno(), number)
            yield terminal
        finally:
            if os.name == "posix":
                ctypes.CDLL(None).fflush(None)  # also flushes what C has buffered
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)
            logging.disable(logged)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of plain text. Its contents come from a service or a device, and a terminal would obey control
    characters.
    """
    made = Table(box=None)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*(plain("" if cell is None else cell) for cell in row))
    stdout_console().print(made)
