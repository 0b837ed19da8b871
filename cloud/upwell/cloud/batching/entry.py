"""One request on its way through a model's queue, and its result."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from upwell.shared.oip.dataplane import Call
from upwell.shared.tensors import Array


@dataclass(frozen=True)
class Ran:
    """A finished request: its outputs, how long it waited, and how long the engine worked on its batch."""

    outputs: Mapping[str, Array]
    queue_s: float
    compute_s: float


@dataclass(eq=False)
class Entry:
    """One request on its way. `leads` is set in the one caller that is to run a batch, for itself and its `mates`.

    An entry never refers to itself: a cycle would keep the tensors of every request until the next
    garbage collection.
    """

    inputs: Mapping[str, Array]
    call: Call
    deadline_s: float
    rows: int
    group: object
    arrived_s: float
    order: tuple[float, int] = (0.0, 0)
    turn: threading.Event | None = None
    leads: bool = False
    mates: Sequence[Entry] = ()
    ran: Ran | None = None
    error: Exception | None = None

    def take_error(self) -> Exception | None:
        """The error, of which the entry then knows no more."""
        error, self.error = self.error, None
        return error


def raise_if(error: Exception | None) -> None:
    """Raise it, if there is one, without a name left for it in any frame of its traceback.

    Such a name would be a reference cycle, which keeps the tensors of a failed request until the next
    garbage collection.
    """
    if error is not None:
        try:
            raise error
        finally:
            del error


def wake(entries: Iterable[Entry]) -> None:
    """Let the callers that wait for these entries go on."""
    for entry in entries:
        if entry.turn is not None:
            entry.turn.set()
