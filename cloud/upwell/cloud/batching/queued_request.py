"""One request in a model's queue, its batch, and its result."""

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
"""The priority of requests without one; lower numbers go first."""


def priority_of(parameters: Mapping[str, Parameter]) -> int:
    """The priority of a request, from its parameter `priority` as in Triton: 1 is the most urgent.

    0, or no parameter, means the default. Raises `InvalidRequest` unless it is an integer of at least 0.
    """
    value = parameters.get("priority", 0)
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"parameter 'priority': expected a whole number from 0, got {value!r}")
    return value or DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a request: its outputs, its waiting time, and the run time and rows of its batch."""

    outputs: Mapping[str, Array]
    queue_s: float
    compute_s: float
    batch_rows: int


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """A successful run: the outputs for the rows of all its entries in order, perhaps followed by padding."""

    entries: Sequence[QueuedRequest]
    outputs: Mapping[str, Array]
    started_s: float
    ended_s: float

    @property
    def rows(self) -> int:
        """The number of rows of its entries."""
        return sum(queued.rows for queued in self.entries)


@dataclass(eq=False, slots=True)
class QueuedRequest:
    """One request on its way. `runner` runs the batch that it leads, and returns the batches that begin next.

    An entry never refers to itself: a reference cycle would keep its tensors until the next garbage collection.
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
    """Set when its caller continues: it is answered, or must notify its batch."""
    notifies: Batch[Any] | None = None
    """The finished batch that its caller must notify."""
    has_left: bool = False
    """Whether its caller has stopped waiting."""
    ran: RunResult | None = None
    error: Exception | None = None
    rank: tuple[bool, int] = (False, 0)
    """Its class in the queue, as last computed: whether its client is ahead of its share, and its priority."""
    due_s: float = math.inf
    """When it should be done, as its queue sees it."""
    is_last: bool = False
    """Whether it is the last of its batch to be notified."""
    deadline_s: float = field(init=False)
    """The caller's deadline (monotonic)."""

    def __post_init__(self) -> None:
        self.deadline_s = self.call.deadline_s

    def take_error(self) -> Exception | None:
        """Take the error out of the entry."""
        error, self.error = self.error, None
        return error


def raise_if(error: Exception | None) -> None:
    """Raise the error, if any, without a variable that refers to it in a frame of its traceback.

    Such a reference cycle would keep the tensors of a failed request until the next garbage collection.
    """
    if error is not None:
        try:
            raise error
        finally:
            del error


def wake(entries: Iterable[QueuedRequest]) -> None:
    """Wake the callers that wait for these entries."""
    for queued in entries:
        if queued.wake_up is not None:
            queued.wake_up.set()


@dataclass(eq=False, slots=True)
class Batch(Generic[Queue]):
    """The content of a slot: requests of one model, the start time, and finally their results."""

    queue: Queue
    entries: Final[Sequence[QueuedRequest]]
    rows: Final[int]
    started_s: Final[float]
    runs: Sequence[Run] = ()
    notifier: QueuedRequest | None = None
    """The entry whose caller notifies the others."""
    former: Batch[Any] | None = None
    """The previous batch of its slot, if that is still to be notified."""
    dropped: Sequence[QueuedRequest] = ()
    """Entries dropped when it was chosen, if they are still to be woken."""

    def begins(self) -> None:
        """Its rows are merged: release other callers, who would have contended with that."""
        former, self.former = self.former, None
        if former is not None:
            former.ends()
        dropped, self.dropped = self.dropped, ()
        wake(dropped)

    def ends(self) -> None:
        """Wake the entry that notifies the others."""
        if self.notifier is not None and self.notifier.wake_up is not None:
            self.notifier.wake_up.set()
