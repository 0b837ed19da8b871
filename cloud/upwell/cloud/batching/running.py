"""The threads that run batches: one for each place of a device at which something waits."""

from __future__ import annotations

from collections.abc import Sequence

from upwell.cloud.batching.device import Batch
from upwell.shared.oip.threads import CallThreads

_MOST = 4096
_threads = CallThreads(_MOST, "batch")
"""As many as places are at work, of all devices of this process. They stay for the next one."""


def prepare() -> None:
    """Have one made now: once requests wait, the system might give no more."""
    _threads.submit(int)


def begin(batches: Sequence[Batch]) -> None:
    """Run these batches, each in a thread that goes on with whatever its place is given to then."""
    for batch in batches:
        _threads.submit(_run_on, batch)


def _run_on(batch: Batch) -> None:
    while True:
        following = batch.entries[0].lead(batch)
        if not following:
            return
        batch, *others = following
        begin(others)
