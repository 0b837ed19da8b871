"""One request on its way through a model's queue, the batch that it runs in, and its result."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.dataplane import Call, Parameter
from upwell.shared.tensors import Array

Queue = TypeVar("Queue")

DEFAULT_PRIORITY = 10
"""The level of requests that name none; a lower number goes first."""


def priority_of(parameters: Mapping[str, Parameter]) -> int:
    """How urgent a request is, by its parameter `priority`, as Triton names it: from 1, the most urgent.

    0, or no such parameter, is the default level. Raises `InvalidRequest` for what is not a whole number from 0.
    """
    value = parameters.get("priority", 0)
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"the parameter 'priority' is a whole number from 0, got {value!r}")
    return value or DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished request: its outputs, how long it waited, and how long the engine worked on its batch."""

    outputs: Mapping[str, Array]
    queue_s: float
    compute_s: float


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """A run that succeeded: the outputs for the rows of all its entries in their order, perhaps with more behind."""

    entries: Sequence[QueuedRequest]
    outputs: Mapping[str, Array]
    started_s: float
    ended_s: float

    @property
    def rows(self) -> int:
        """How many rows its entries asked for."""
        return sum(queued.rows for queued in self.entries)


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """One request on its way. `runner` runs the batch that it comes first in, and gives those that begin then.

    An entry never refers to itself: a cycle would keep the tensors of every request until the next
    garbage collection.
    """

    inputs: Mapping[str, Array]
    call: Call
    rows: int
    group: object
    runner: Callable[[Batch[Any]], Sequence[Batch[Any]]]
    arrived_s: float
    client: str = ""
    priority: int = DEFAULT_PRIORITY
    wake_up: threading.Event | None = None
    """Set when its caller is to go on: it is answered, or is the one who is to tell its batch."""
    notifies: Batch[Any] | None = None
    """The batch that its caller is to tell of its end."""
    has_left: bool = False
    """Whether its caller waits no more."""
    ran: RunResult | None = None
    error: Exception | None = None
    rank: tuple[bool, int] = (False, 0)
    """The class that it waits in, as its queue saw it last: whether its client is ahead of others, and how urgent."""
    due_s: float = math.inf
    """When it ought to be done, as its queue sees it."""
    is_last: bool = False
    """Whether it is the last of a batch that is told of its end."""
    deadline_s: float = field(init=False)
    """The caller's."""

    def __post_init__(self) -> None:
        self.deadline_s = self.call.deadline_s

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


def wake(entries: Iterable[QueuedRequest]) -> None:
    """Let the callers that wait for these entries go on."""
    for queued in entries:
        if queued.wake_up is not None:
            queued.wake_up.set()


@dataclass(eq=False, slots=True)
class Batch(Generic[Queue]):
    """What occupies a place: requests of one model, since when, and in the end what came of them."""

    queue: Queue
    entries: Final[Sequence[QueuedRequest]]
    rows: Final[int]
    started_s: Final[float]
    runs: Sequence[Run] = ()
    notifier: QueuedRequest | None = None
    """The one whose caller is to tell the others."""
    former: Batch[Any] | None = None
    """The batch before it at its place, if that is still to be told."""
    dropped: Sequence[QueuedRequest] = ()
    """Those who were dropped when it was chosen, if they are still to be woken."""

    def begins(self) -> None:
        """Its rows are together: others' callers may go on, who would have contended with that."""
        former, self.former = self.former, None
        if former is not None:
            former.ends()
        dropped, self.dropped = self.dropped, ()
        wake(dropped)

    def ends(self) -> None:
        """Let the one who tells them go on."""
        if self.notifier is not None and self.notifier.wake_up is not None:
            self.notifier.wake_up.set()
