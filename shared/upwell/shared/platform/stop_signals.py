"""The signals that stop a server gracefully."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress

HANGS_UP = getattr(signal, "SIGHUP", None)
"""The signal of a closing terminal; None on Windows."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT and SIGHUP, which by default would cut off accepted requests.

    SIGHUP is left out if it is ignored, as under `nohup`. It does not mean "reload" here: files that may change while a
    server runs are watched.
    """
    ends = (signal.SIGTERM, signal.SIGINT)
    if HANGS_UP is None or signal.getsignal(HANGS_UP) is signal.SIG_IGN:
        return ends
    return (*ends, HANGS_UP)


class StopSignals:
    """Once created, `stop_signals` no longer end the process but are received by the main thread.

    A Python handler would not do. The kernel delivers a signal to any thread, Python runs the handler in the main
    thread, and if that thread waits, nothing wakes it. So the main thread waits on a socket to which the interpreter
    writes the number of each signal, from whichever thread has received it (`signal.set_wakeup_fd`). For the main
    thread only.
    """

    def __init__(self) -> None:
        self._numbers = stop_signals()
        self._received, self._written = socket.socketpair()
        self._written.setblocking(False)
        signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        """The descriptor for a selector to wait on."""
        return self._received.fileno()

    def receive(self, timeout_s: float | None = None) -> signal.Signals | None:
        """The next stop signal, after at most `timeout_s` (None: no limit); None if there was none."""
        self._received.settimeout(timeout_s)
        with suppress(TimeoutError, BlockingIOError):
            number = signal.Signals(self._received.recv(1)[0])
            return number if number in self._numbers else None
        return None

    def restore_default(self) -> None:
        """From now on, a stop signal ends the process at once."""
        signal.set_wakeup_fd(-1)
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        self._received.close()
        self._written.close()
