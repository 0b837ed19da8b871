"""`upwell serve` as a process of its own, for whatever test needs the real service."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.programs import UPWELL, Program
from tests.warm import Forked

LIMIT_S = 30.0


@dataclass(frozen=True)
class Service:
    """A running service, and where it listens."""

    program: Program
    address: str

    @property
    def process(self) -> subprocess.Popen[str] | Forked:
        """Its process."""
        return self.program.process

    @property
    def lines(self) -> list[str]:
        """What it has said on standard error so far."""
        return self.program.lines

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.program.send(signal.SIGTERM)

    def exit_code(self) -> int:
        """Wait for its end."""
        return self.program.wait(LIMIT_S)


@contextmanager
def serving(*arguments: str | Path) -> Iterator[Service]:
    """Run `upwell serve` with these arguments on a free port of loopback until the block ends."""
    listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
    with Program(["serve", *map(str, arguments), *listen]) as program:
        yield Service(program, program.find(r"^serving on (\S+) \(\d+ models?(?:, \d+ workers)?\)", LIMIT_S))


def serve_and_fail(*arguments: str | Path) -> tuple[int, str]:
    """Run `upwell serve`, which is to end by itself, and return its exit code and standard error."""
    done = subprocess.run([UPWELL, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == ""
    return done.returncode, done.stderr
