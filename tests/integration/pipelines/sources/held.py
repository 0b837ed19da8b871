"""What this process holds of what a source could leak."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

NAMED = ("psm_", "upwell")
"""How names of shared memory begin that Python or this code chooses. A PostgreSQL beside the test has some too."""


@dataclass(frozen=True)
class Held:
    """Numbers of descriptors, of threads, of children and of files of shared memory."""

    descriptors: int
    threads: int
    children: int
    shared_files: int

    def is_within(self, before: Held) -> bool:
        """Whether no more is held than before. There may be less: what a test before held may go a little later."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return all(now <= then for now, then in pairs)


def held() -> Held:
    """What is held now."""
    shared = Path("/dev/shm")  # noqa: S108  where shared memory with names would lie
    return Held(
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(children()),
        len([one for one in shared.glob("*") if one.name.startswith(NAMED)]),
    )


def children(parent: int | None = None) -> list[int]:
    """The children of a process, of this one where none is named; those that wait to be reaped among them."""
    found = []
    for task in Path(f"/proc/{parent or os.getpid()}/task").iterdir():
        with suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def is_running(pid: int) -> bool:
    """Whether there is a process of that number that has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
