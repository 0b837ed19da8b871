"""Log lines as text or JSON, each with the request to which it belongs."""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console

from upwell.shared.telemetry.log_context import request_fields
from upwell.shared.telemetry.telemetry_keys import LogFormat

FIELDS = "fields"
"""The attribute of a log record (set by `extra`) with additional fields for its JSON object."""

_NAMED = "%(name)s: %(message)s"
_TEXT = f"%(levelname)s {_NAMED}"


def set_up_logs(format: LogFormat, level: int = logging.INFO, worker: int = 0) -> Console:
    """Write log lines to standard error from now on; returns the console for the program's own output.

    `level` is that of Upwell's own lines; other packages, which describe every picture below INFO, stay at INFO.

    With `json` everything is one JSON object per line, including console output, warnings, and errors that end a thread
    or the program. `worker` is the number of this process among several (0: it is the only one).
    """
    logging.getLogger("upwell").setLevel(level)
    if format == "text":
        logging.basicConfig(level=logging.INFO, format=f"%(levelname)s worker {worker} {_NAMED}" if worker else _TEXT)
        return Console(file=_unfailing(sys.stderr), stderr=True, highlight=False, soft_wrap=True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(worker))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    return Console(file=_Lines(logging.getLogger("upwell")), highlight=False, soft_wrap=True, force_terminal=False)  # type: ignore[arg-type]  # the console only writes to it


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, the request if known, and the error's traceback.

    `trace_id` is that of the caller's trace, or of the trace that began here.
    """

    def __init__(self, worker: int = 0) -> None:
        super().__init__()
        self._process = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, whatever the message holds."""
        entry: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
        }
        entry |= request_fields() | getattr(record, FIELDS, {})
        if record.exc_info:
            entry["error"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(entry, default=str)


def _unfailing(file: TextIO | None) -> TextIO | None:
    """`file`, without its errors: a full disk, or a reader that is gone, must not end the program or its drain."""
    return None if file is None else _Unfailing(file)  # type: ignore[return-value]  # the console only writes to it


class _Unfailing:
    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


class _Lines:
    """A text file that logs each line written to it."""

    encoding = "utf-8"

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                self._logger.info("%s", line.strip())
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if kind is not SystemExit and error is not None:
        logging.getLogger("upwell").critical("exiting with an error: %s", kind.__name__, exc_info=(kind, error, trace))
