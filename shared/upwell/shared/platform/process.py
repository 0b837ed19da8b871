"""This process: the signals that stop it, notifications to systemd (sd_notify), its limits."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

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


_PR_SET_PDEATHSIG = 1


def ended_with_parent() -> Callable[[], None] | None:
    """What asks the kernel to end the calling process when the thread that started it ends; None except on Linux.

    It may be called in a process that was just forked, where nothing may be loaded any more.
    """
    if sys.platform != "linux":
        return None
    return partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when the thread of process `parent` that started it ends."""
    ask = ended_with_parent()
    if ask is not None:
        ask()
        if os.getppid() != parent:  # it ended before this took effect
            os._exit(1)


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


_log = logging.getLogger(__name__)


class Systemd:
    """Sends datagrams to the socket that systemd named; does nothing if there is none.

    `address` is the value of NOTIFY_SOCKET (a path, or `@` and a name in the abstract namespace), and `watchdog_s` the
    time after which systemd kills a silent program, None without a watchdog.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = watchdog_s

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Systemd:
        """From the environment: NOTIFY_SOCKET, WATCHDOG_USEC, and WATCHDOG_PID if that is this process."""
        given = os.environ if environment is None else environment
        microseconds = given.get("WATCHDOG_USEC", "")
        meant = given.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        valid = microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0
        return cls(given.get("NOTIFY_SOCKET", ""), int(microseconds) / 1e6 if meant and valid else None)

    @property
    def interval_s(self) -> float | None:
        """Interval between pings: half of systemd's limit. None: no pings."""
        return self._watchdog_s / 2 if self._address and self._watchdog_s is not None else None

    def ready(self) -> None:
        """Report that everything is loaded and requests are answered."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the program is about to end."""
        self._send("STOPPING=1")

    def ping(self) -> None:
        """Report that the program is alive."""
        self._send("WATCHDOG=1")

    def ping_until(self, stop: StopSignals, is_well: Callable[[], bool]) -> None:
        """Wait for a stop signal, and ping meanwhile as long as `is_well` returns True."""
        while stop.receive(self.interval_s) is None:
            if self.interval_s is not None and is_well():
                self.ping()

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.connect(self._address)
                sender.send(state.encode())
        except OSError as error:  # the listener is gone, which is no reason to end
            _log.warning("cannot send %s to systemd: %s", state, error)


_MOST_FILES = 1 << 16


def allow_many_files() -> None:
    """Raise this process's limit on open files as far as allowed, up to a bound: each connection needs one.

    The usual limit of 1,024 exists for programs that call select(); a few hundred idle clients would use it up.
    """
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(OSError, ValueError):  # the system may have its own limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
