"""Notifications to systemd (the sd_notify protocol): ready, alive, stopping."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping

from upwell.shared.platform.stop_signals import StopSignals

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
