"""`upwell serve` and `upwell agent` as processes of their own."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.warm import Forked

UPWELL = str(Path(sys.executable).with_name("upwell"))
START_S = 120.0
"""A program that is not up by then never will be."""


class Program:
    """One `upwell ...` process, to be ended or used as a context manager; `lines` holds its standard error.

    It is a fork of one that is loaded, which is quick. Where loading is what matters, or how much memory it takes, name
    the installed `program`.
    """

    def __init__(self, arguments: Sequence[str], program: Sequence[str] = (), cwd: str | None = None) -> None:
        self.process = (
            subprocess.Popen(
                [*program, *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=cwd
            )
            if program
            else Forked(arguments, cwd)
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def find(self, pattern: str, timeout_s: float = START_S) -> str:
        """The first group of the first line that matches, waited for; where none does, fails with all that was said."""
        with self._news:
            self._news.wait_for(lambda: self._search(pattern) or not self._reader.is_alive(), timeout_s)
            found = self._search(pattern)
        assert found, f"no {pattern!r} in:\n" + "".join(self.lines)
        return found.group(1)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def address(self) -> str:
        """The first address that it serves on."""
        return self.find(r"serving on ([^ ,]+)")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = START_S) -> int:
        """Its exit code, waited for until all that it said is in `lines`."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def end(self) -> None:
        """Kill it, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _search(self, pattern: str) -> re.Match[str] | None:
        return next((found for line in self.lines if (found := re.search(pattern, line))), None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()
