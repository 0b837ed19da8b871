"""A worker process as its supervisor sees it, and when to restart it or give up."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from upwell.cloud.workers.worker_messages import Channel, Message
from upwell.shared.platform.stop_signals import stop_signals


@dataclass(frozen=True, slots=True)
class Restarts:
    """The consecutive deaths of one worker. An immutable value; time is an argument.

    After the k-th death in a row the supervisor waits `FIRST_WAIT_S` · 2^(k-1), at most `LONGEST_WAIT_S`, so that a
    worker that fails at once does not take the machine from the others. A worker that served for `WELL_S` before it
    died starts a new count. After `LIMIT` deaths it is hopeless.
    """

    FIRST_WAIT_S: ClassVar[float] = 0.5
    LONGEST_WAIT_S: ClassVar[float] = 30.0
    WELL_S: ClassVar[float] = 60.0
    LIMIT: ClassVar[int] = 6

    deaths: int = 0

    def died(self, served_s: float) -> Restarts:
        """The state after one more death, of a worker that had served for `served_s`."""
        return Restarts(1 if served_s >= self.WELL_S else self.deaths + 1)

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next start."""
        return min(self.LONGEST_WAIT_S, self.FIRST_WAIT_S * 2.0 ** max(0, self.deaths - 1))

    @property
    def is_hopeless(self) -> bool:
        """Whether to give up."""
        return self.deaths >= self.LIMIT


_SEND_S = 10.0
"""A worker that accepts no message for so long is stuck, and is treated as dead."""
_ENDING_S = 5.0


class Phase(Enum):
    """The state of a worker."""

    LOADING = "loading"
    LOADED = "loaded"
    SERVING = "serving"


class WorkerHandle:
    """A running worker, `number` counting from 1. Its socket closes when the process ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.phase = Phase.LOADING
        self.serving_since_s = 0.0
        self.failure = ""
        """What it said of why it cannot serve."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_SEND_S)
        self.channel = Channel(ours)
        # The same interpreter and the same modules: a plain `-c` would put the current folder first on the path.
        program = f"import sys; sys.path[:] = {sys.path!r}; from upwell.cloud.workers.worker_child import main; main()"
        # The supervisor tells a worker over the socket when to end. Signals of a terminal or a service manager reach
        # the worker too, and one that came a moment later would kill it with requests in progress; so they are blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        try:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and code)
                [sys.executable, "-c", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        except BaseException:  # whatever keeps it from starting, the socket is closed
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def tell(self, messages: Sequence[Message]) -> None:
        """Send messages. A worker that is gone or stuck is killed, and its socket then closes."""
        try:
            for message in messages:
                self.channel.send(message)
        except OSError:
            self.kill()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def end(self) -> str:
        """After its socket has closed: wait for the process, and say how it ended; "" if normally."""
        self.channel.close()
        try:
            code = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}" if code else ""
