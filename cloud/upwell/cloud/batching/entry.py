"""One request on its way through a model's queue, and its result."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from upwell.shared.oip.dataplane import Call
from upwell.shared.tensors import Array

DEFAULT_PRIORITY = 10
"""The level of requests that name none; a lower number goes first."""


@dataclass(slots=True)
class Ran:
    """A finished request: its outputs, how long it waited, and how long the engine worked on its batch."""

    outputs: Final[Mapping[str, Array]]
    queue_s: Final[float]
    compute_s: Final[float]


@dataclass(eq=False, slots=True)
class Entry:
    """One request on its way. `leads` is set in the one caller that is to run a batch, for itself and its `mates`.

    An entry never refers to itself: a cycle would keep the tensors of every request until the next
    garbage collection.
    """

    inputs: Mapping[str, Array]
    call: Call
    rows: int
    group: object
    arrived_s: float
    client: str = ""
    priority: int = DEFAULT_PRIORITY
    turn: threading.Event | None = None
    leads: bool = False
    mates: Sequence[Entry] = ()
    ran: Ran | None = None
    error: Exception | None = None
    rank: tuple[bool, int] = (False, 0)
    """The class that it waits in, as its queue saw it last: whether its client is ahead of others, and how urgent."""
    due_s: float = math.inf
    """When it ought to be done, as its queue sees it."""
    begun: threading.Event | None = None
    """Set when the run that it leads begins, where somebody waits for that."""
    is_last: bool = False
    """Whether it is the last of a batch that is told of its end."""

    @property
    def deadline_s(self) -> float:
        """The caller's deadline."""
        return self.call.deadline_s

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
