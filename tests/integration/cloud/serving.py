"""`upwell serve` as a process of its own, for whatever test needs the real service."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UPWELL = str(Path(sys.executable).with_name("upwell"))
LIMIT_S = 30.0


@dataclass
class Service:
    """A running service: where it listens, and what it has said on standard error so far."""

    process: subprocess.Popen[str]
    lines: list[str]
    ready: threading.Event
    address: str = ""

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Wait for its end."""
        return self.process.wait(LIMIT_S)

    def _listen(self) -> None:
        """Read all it says, so that it never blocks on a full pipe."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.match(r"serving on (\S+) \(\d+ models?(, \d+ workers)?\)", line):
                self.address = found[1]
                self.ready.set()
        self.ready.set()


@contextmanager
def serving(*arguments: str | Path) -> Iterator[Service]:
    """Run `upwell serve` with these arguments on a free port of loopback until the block ends."""
    command: Sequence[str] = [UPWELL, "serve", *map(str, arguments)]
    if "--listen" not in command:
        command = [*command, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    service = Service(process, [], threading.Event())
    reader = threading.Thread(target=service._listen)
    reader.start()
    try:
        assert service.ready.wait(LIMIT_S), "it neither serves nor ends"
        assert service.address, "".join(service.lines)
        yield service
    finally:
        process.kill()
        process.wait(LIMIT_S)
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def serve_and_fail(*arguments: str | Path) -> tuple[int, str]:
    """Run `upwell serve`, which is to end by itself, and return its exit code and standard error."""
    done = subprocess.run([UPWELL, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == ""
    return done.returncode, done.stderr
