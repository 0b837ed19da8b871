"""What native libraries write to standard error: often their only message about a failure."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import BinaryIO

_CAUSE = re.compile(r"(?i)\b(can ?not|could not|unable to|failed to|no such)\b")
_SEVERE = re.compile(r"(?i)\b(error|fail(ed|ure)?)\b")
_FOLDERS = re.compile(r"(?<![\w/])/[^\s:]*/")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"\[[^\]\s]*\.(cc|h):\d+\]|\bERROR: ")
_MAX_LOGGED = 160


@contextmanager
def logged() -> Iterator[BinaryIO]:
    """A file with what native libraries write to standard error meanwhile."""
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def reason_in(log: BinaryIO) -> str:
    """The last line that names a cause, or otherwise sounds like a failure; only its end if it is long."""
    log.seek(0)
    text = _COLOURS.sub("", log.read().decode(errors="replace"))
    lines = [line for line in text.splitlines() if not line.startswith("INFO")]
    telling = [line for line in lines if _CAUSE.search(line)] or [line for line in lines if _SEVERE.search(line)]
    words = _FOLDERS.sub("", without_noise(telling[-1])).split() if telling else []
    tails = accumulate(reversed(words), lambda tail, word: f"{word} {tail}")
    return max((tail for tail in tails if len(tail) <= _MAX_LOGGED), key=len, default="").strip(": ")


def without_noise(text: str) -> str:
    """The text on one line, without places in source files."""
    return " ".join(_NOISE.sub("", text).split())
