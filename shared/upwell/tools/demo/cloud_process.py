"""The cloud side of the demo: `upwell serve` in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import IO

from upwell.shared.errors import UpwellError

_READY = re.compile(r"serving on (\S+:\d+)")
_START_LIMIT_S = 60.0
"""Time limit of the start; importing torch can take most of it on a small machine."""
_STOP_LIMIT_S = 5.0
_SHOWN_LINES = 12


class ServiceNotStarted(UpwellError):
    """The service ended or stayed silent before it was ready; the text has its last lines."""


class CloudProcess:
    """A running service, as a context manager: on entry it serves at `endpoint`, and on exit it has ended.

    Its standard error goes to the file `log`. Entering raises `ServiceNotStarted`.
    """

    def __init__(self, models: Path, engine: str, log: Path) -> None:
        self._arguments = ["serve", "--models", str(models), "--engine", engine, "--listen", "127.0.0.1:0"]
        self._log = log
        self._lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._spoke = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self.endpoint = ""

    def __enter__(self) -> CloudProcess:
        """Start the service and wait until it is ready."""
        command = [sys.executable, "-m", "upwell.tools.entry", *self._arguments]
        self._process = subprocess.Popen(  # noqa: S603  our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            # Without it Python would prefer modules in the current folder.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert self._process.stderr is not None  # noqa: S101  asked for above
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        try:
            self._reader.start()
            self._spoke.wait(_START_LIMIT_S)
            if not self.endpoint:
                raise ServiceNotStarted(self._why())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process, gently if it listens."""
        self._end()

    def kill(self) -> None:
        """Kill the process at once, as a power cut would (SIGKILL), and do not wait for it."""
        assert self._process is not None  # noqa: S101  entered before
        self._process.kill()

    def _read(self, stream: IO[str]) -> None:
        with stream, self._log.open("w", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                self._lines.append(line.rstrip())
                found = _READY.search(line)
                if found and not self.endpoint:
                    self.endpoint = found[1]
                    self._spoke.set()
        self._spoke.set()

    def _why(self) -> str:
        assert self._process is not None  # noqa: S101  entered before
        if self._reader.is_alive():
            what = f"did not serve within {_START_LIMIT_S:.0f} s"
        else:
            what = f"ended at its start with exit code {self._process.wait(_STOP_LIMIT_S)}"
        said = "\n".join(self._lines)
        return f"the cloud service {what}; its output:\n{said}" if said else f"the cloud service {what} without output"

    def _end(self) -> None:
        assert self._process is not None  # noqa: S101  entered before
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_LIMIT_S)
