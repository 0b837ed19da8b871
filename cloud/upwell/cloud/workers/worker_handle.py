"""When a worker that died is started again, and when that makes no sense any more."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from upwell.cloud.workers.messages import Channel, Message
from upwell.shared.platform.stopping import stop_signals


@dataclass(frozen=True, slots=True)
class Restarts:
    """The deaths of one worker in a row: a value, time is an argument.

    The k-th death in a row is followed by a wait of `FIRST_WAIT_S` · 2^(k-1), at most `LONGEST_WAIT_S`, so that what
    fails at once does not take the machine from the workers that serve. One that has served for `WELL_S` before it
    died begins a new row. With the `LIMIT`-th it is hopeless.
    """

    FIRST_WAIT_S: ClassVar[float] = 0.5
    LONGEST_WAIT_S: ClassVar[float] = 30.0
    WELL_S: ClassVar[float] = 60.0
    LIMIT: ClassVar[int] = 6

    deaths: int = 0

    def died(self, served_s: float) -> Restarts:
        """After one more death, of a worker that had served for so long."""
        return Restarts(1 if served_s >= self.WELL_S else self.deaths + 1)

    @property
    def wait_s(self) -> float:
        """How long to wait before the next start."""
        return min(self.LONGEST_WAIT_S, self.FIRST_WAIT_S * 2.0 ** max(0, self.deaths - 1))

    @property
    def is_hopeless(self) -> bool:
        """Whether to give up."""
        return self.deaths >= self.LIMIT


_SEND_S = 10.0
"""A worker that takes nothing for so long is stuck, and is treated as dead."""
_ENDING_S = 5.0


class Phase(Enum):
    """How far a worker is."""

    LOADING = "loading"
    LOADED = "loaded"
    SERVING = "serving"


class WorkerHandle:
    """A running worker, `number` among its fellows from 1 on. Its socket ends when the process does."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.phase = Phase.LOADING
        self.serving_since_s = 0.0
        self.failure = ""
        """What it said of why it cannot serve."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_SEND_S)
        self.channel = Channel(ours)
        # The same interpreter and the same modules: a plain `-c` would put the current folder in front of them.
        program = f"import sys; sys.path[:] = {sys.path!r}; from upwell.cloud.workers.worker import main; main()"
        # A worker is told over the socket when to end. The signals of a terminal or a service manager reach it too, and
        # one that comes a moment after it was told would end it with work in its hands: so it never sees them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and code
                [sys.executable, "-c", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        except BaseException:  # whatever keeps it from starting, the socket is not left open
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def tell(self, messages: Sequence[Message]) -> None:
        """Send it something. One that is gone, or takes nothing, is killed: what follows is the end of its socket."""
        try:
            for message in messages:
                self.channel.send(message)
        except OSError:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self) -> str:
        """Once its socket has ended: wait for the process, and say how it ended; "" if as it should."""
        self.channel.close()
        try:
            code = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}" if code else ""
