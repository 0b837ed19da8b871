"""What Linux knows of the service's processes: its workers, and which of them holds a connection."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 30.0
_ESTABLISHED = "01"


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that run, oldest first."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [child for child in map(int, text.split()) if is_running(child)]


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended: one that nobody has waited for yet does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def zombies(pid: int) -> list[int]:
    """Children that have ended and that `pid` has not waited for."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [child for child in map(int, text.split()) if not is_running(child)]


def connections(pid: int, port: int) -> int:
    """How many connections to the local TCP port the process holds now."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return sum(_link(path) in inodes for path in Path(f"/proc/{pid}/fd").iterdir())


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:  # closed in the meantime
        return ""


def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for something of another process that cannot be waited for. Fails after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, "it did not come true in time"
        time.sleep(0.02)
