"""A worker as its supervisor sees it: a process, and the way to talk to it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum

from upwell.cloud.scale.messages import Channel, Message
from upwell.shared.stopping import stop_signals

_SEND_S = 10.0
"""A worker that takes nothing for so long is stuck, and is treated as dead."""
_ENDING_S = 5.0


class Phase(Enum):
    """How far a worker is."""

    LOADING = "loading"
    LOADED = "loaded"
    SERVING = "serving"


class Hand:
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
        program = f"import sys; sys.path[:] = {sys.path!r}; from upwell.cloud.scale.worker import main; main()"
        # A worker is told over the socket when to end. The signals of a terminal or a service manager reach it too, and
        # one that comes a moment after it was told would end it with work in its hands: so it never sees them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and code
                [sys.executable, "-c", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
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
