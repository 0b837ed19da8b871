"""Which signals end a server in good order."""

from __future__ import annotations

import signal

HANGS_UP = getattr(signal, "SIGHUP", None)
"""A terminal that closes; on Windows there is no such signal."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT and SIGHUP, which by default would break off what was accepted.

    Without SIGHUP where it is ignored, as under `nohup`. There is nothing to read anew at one: what may change while a
    server runs is watched.
    """
    ends = (signal.SIGTERM, signal.SIGINT)
    if HANGS_UP is None or signal.getsignal(HANGS_UP) is signal.SIG_IGN:
        return ends
    return (*ends, HANGS_UP)
