"""Keeps the output of libraries off the terminal, whether Python or C++ wrote it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import IO


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
