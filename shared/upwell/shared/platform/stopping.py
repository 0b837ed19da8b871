"""The signals that end a server in good order."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress

HANGS_UP = getattr(signal, "SIGHUP", None)
"""The signal of a closing terminal, which Windows lacks."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT and SIGHUP, which by default would break off what was accepted.

    Without SIGHUP where it is ignored, as under `nohup`. There is nothing to read anew at one: what may change while a
    server runs is watched.
    """
    ends = (signal.SIGTERM, signal.SIGINT)
    if HANGS_UP is None or signal.getsignal(HANGS_UP) is signal.SIG_IGN:
        return ends
    return (*ends, HANGS_UP)


class StopSignals:
    """From when it is made on, `stop_signals` no longer end the process but are received here, by the main thread.

    A handler in Python would not do. The kernel hands a signal to any thread, Python runs the handler in the main
    thread, and if that waits, nothing wakes it. So the main thread waits on a socket that the interpreter writes each
    signal's number to from whichever thread has it (`signal.set_wakeup_fd`). Make it and use it in the main thread.
    """

    def __init__(self) -> None:
        self._numbers = stop_signals()
        self._received, self._written = socket.socketpair()
        self._written.setblocking(False)
        signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        """What a selector waits for to read."""
        return self._received.fileno()

    def receive(self, timeout_s: float | None = None) -> signal.Signals | None:
        """The next stop signal, waited for at most so long (None: for ever). None where none came."""
        self._received.settimeout(timeout_s)
        with suppress(TimeoutError, BlockingIOError):
            number = signal.Signals(self._received.recv(1)[0])
            return number if number in self._numbers else None
        return None

    def restore_default(self) -> None:
        """From here on, a stop signal ends the process at once."""
        signal.set_wakeup_fd(-1)
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        self._received.close()
        self._written.close()
