"""The queue of one model and the requests in it: their order, its limits, what is dropped, each request's result."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from upwell.cloud.batching.batch_choice import RunSizes, choose
from upwell.cloud.batching.fair_shares import FairShares
from upwell.cloud.batching.run_times import BatchRunTimes, Delays
from upwell.shared.errors import CallerLeft, DeadlineExceeded, InvalidRequest, Refused, UpwellError
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
    pieces: list[Mapping[str, Array]] = field(default_factory=list)
    """Outputs of the rows that have run, if it has more than one run holds and runs in pieces."""
    spent_s: float = 0.0
    """Seconds of its turns so far."""
    is_paused: bool = False
    """Whether it gave its slot to others before its last piece."""
    is_last: bool = False
    """Whether it is the last of its batch to be notified."""
    row_elements: int = 1
    """The size of its rows, if the rows of its model differ in that; else 1."""
    deadline_s: float = field(init=False)
    """The caller's deadline (monotonic)."""
    since_s: float = field(init=False)
    """When it began to wait: for its first turn on arrival, for a later one when the turn before ended."""
    rows_left: int = field(init=False)
    """The rows that have not run yet."""

    def __post_init__(self) -> None:
        self.deadline_s, self.since_s, self.rows_left = self.call.deadline_s, self.arrived_s, self.rows

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
    thread: int = 0
    """The identifier of the thread that runs it."""
    left_s: float = math.inf
    """When it was first seen that nobody waits for it any more."""
    is_stopped: bool = False
    """Whether its run was stopped for that."""

    def is_abandoned(self, now_s: float) -> bool:
        """Whether each caller has left, or its deadline has passed, and this was seen `ABANDONED_S` ago."""
        if not all(queued.call.cancelled.is_set() or queued.deadline_s < now_s for queued in self.entries):
            return False
        self.left_s = min(self.left_s, now_s)
        return now_s - self.left_s >= ABANDONED_S

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


PATIENCE_S = 10.0
ABANDONED_S = 10.0
"""How long a run goes on that nobody waits for: it tells how long such runs take, and may be a model's first, slow one.
"""


_URGENCY = attrgetter("rank", "due_s")


class ModelQueue:
    """The waiting requests of one model, and its run times. Time is an argument.

    Order: first the requests of clients that are not ahead of their share of device time (`FairShares`), then the lower
    priority number, then the earlier deadline, which is taken as at most 10 s after arrival. Who has waited for 10 s
    goes before every priority. So nobody waits for ever: a client that is ahead is not so for long, since others are
    served meanwhile; within what is not ahead, whoever is 10 s old has only older requests before it, of which there
    are at most `max_queue`. A request that runs in pieces waits anew for each turn, and so holds up nobody for longer.

    Room: `max_queue` requests. A client may fill it while nobody else comes. When it is full, whoever has fewest
    waiting takes the place of a request of the client that has most waiting, if that has still no fewer afterwards
    (McKenney 1990: drop from the longest queue), and of that client the least urgent; a request takes the place of a
    less urgent one of its own client.

    Not safe for several threads: the device that it waits for holds a lock.
    """

    def __init__(self, sizes: RunSizes, *, instances: int = 1, max_queue: int = 64, rows_differ: bool = False) -> None:
        self.instances = instances
        self.running = 0
        """Runs under way, at most `instances`."""
        self._sizes = sizes
        self._max_queue = max_queue
        self._times = BatchRunTimes(() if rows_differ else sizes.buckets)
        self._delays = Delays()
        self._waiting: list[QueuedRequest] = []  # in the order of arrival
        self._clients: Counter[str] = Counter()
        self._shares: FairShares[str] = FairShares()
        self._has_classes = False  # whether any rank is another than its own priority

    def __len__(self) -> int:
        return len(self._waiting)

    def needed_s(self, rows: int, now_s: float, row_elements: int = 1) -> float:
        """Seconds of the engine for a request or batch of `rows` rows, in pieces if need be; 0 where not known."""
        largest = self._sizes.largest
        if rows <= largest or not self._sizes.is_bound:
            return self._times.estimate_s(self._sizes.of_run(rows) * row_elements, now_s)
        return -(-rows // largest) * self._times.estimate_s(largest * row_elements, now_s)

    def turn_s(self, rows: int, now_s: float, row_elements: int = 1) -> float:
        """Seconds of the engine until a batch of `rows` rows gives up its slot if others wait; 0 where not known."""
        return self.needed_s(min(rows, self._sizes.largest) if self._sizes.is_bound else rows, now_s, row_elements)

    def observe(self, size: int, run_s: float, now_s: float) -> None:
        """Learn how long a run took, by its rows or, if rows differ in size, by its elements."""
        self._times.observe(size, run_s, now_s)

    def observe_delay(self, delay_s: float, now_s: float) -> None:
        """Learn how long it took after a run until the last of those that shared it could go on."""
        self._delays.observe(delay_s, now_s)

    def hopeless(
        self, call: Call, rows: int, now_s: float, start_s: float, row_elements: int = 1
    ) -> UpwellError | None:
        """Why a run of `rows` rows for `call`, which begins at `start_s` at the earliest, would be for nothing.

        None where it would not. What waits before it does not count: some of that may leave or be too late itself,
        and it may share a batch with the rest.
        """
        if call.cancelled.is_set():
            return CallerLeft("the caller has left")
        if call.deadline_s == math.inf:
            return None
        left_s = call.deadline_s - now_s
        if left_s <= 0:
            return DeadlineExceeded("the deadline has passed")
        wait_s, needed_s = start_s - now_s, self.needed_s(rows, now_s, row_elements)
        if left_s < wait_s + needed_s + self._delays.estimate_s(now_s):
            busy = f", busy for {1e3 * wait_s:.1f} ms more," if wait_s > 0 else ""
            return DeadlineExceeded(f"{1e3 * left_s:.1f} ms are left and the model{busy} takes {1e3 * needed_s:.1f} ms")
        return None

    def make_room(self, client: str, priority: int, now_s: float, start_s: float) -> QueuedRequest | None:
        """The request to displace for another one of `client`, None if there is room. Raises `Refused`."""
        if len(self._waiting) < self._max_queue:
            return None
        wake(self._sweep(now_s))
        if len(self._waiting) < self._max_queue:
            return None
        found = self._less_entitled(client, priority, now_s)
        if found is None:
            text = f"the model's queue is full ({self._max_queue} waiting); try again later"
            raise Refused(text, retry_after_s=self._drained_in_s(now_s, start_s))
        return found

    def displace(self, queued: QueuedRequest, now_s: float, start_s: float) -> None:
        """Refuse a waiting request, since another takes its place."""
        self.remove(queued)
        text = "the model's queue is full; a request of another client or of higher priority took this one's place"
        queued.error = Refused(text, retry_after_s=self._drained_in_s(now_s, start_s))
        wake([queued])

    def add(self, queued: QueuedRequest) -> None:
        """Add a waiting request."""
        queued.due_s = min(queued.deadline_s, queued.since_s + PATIENCE_S)
        queued.rank = (False, queued.priority)
        client = queued.client
        if not self._clients[client]:
            self._shares.join(client)
        self._clients[client] += 1
        self._waiting.append(queued)

    def remove(self, queued: QueuedRequest) -> bool:
        """Remove the entry; returns whether it was still waiting."""
        if queued not in self._waiting:
            return False
        self._waiting.remove(queued)
        self._forget([queued])
        return True

    def take(self, now_s: float) -> tuple[list[QueuedRequest], list[QueuedRequest]]:
        """The batch to run now (empty if nothing waits), and the dropped requests, to be woken."""
        dropped = self._sweep(now_s)
        if len(self._waiting) < 2:  # nothing to choose from, as usual under light load
            batch, self._waiting = self._waiting, []
            self._forget(batch)
            return batch, dropped
        remembered_s = self._times.remembered_s
        told_s = now_s + self._delays.estimate_s(now_s)
        ranked = self._ranked(now_s)
        row_elements = ranked[0].row_elements  # those that share its run have the same
        batch = choose(
            ranked, self._sizes, told_s, lambda rows: remembered_s(self._sizes.of_run(rows) * row_elements, now_s)
        )
        taken = set(map(id, batch))
        self._waiting = [one for one in self._waiting if id(one) not in taken]
        self._forget(batch)
        return batch, dropped

    def charge(self, batch: Sequence[QueuedRequest], run_s: float) -> None:
        """Charge the run of a batch to the clients in it, by their rows."""
        if not self._waiting:
            self._shares.forget()
            return
        rows = max(1, sum(queued.rows for queued in batch))
        spent_s: dict[str, float] = {}
        for queued in batch:
            spent_s[queued.client] = spent_s.get(queued.client, 0.0) + run_s * queued.rows / rows
        self._shares.charge(spent_s, self._clients.keys())

    def due_s(self) -> float:
        """The earliest time by which a waiting request should be done; infinity if none waits."""
        return min((queued.due_s for queued in self._waiting), default=math.inf)

    def _sweep(self, now_s: float) -> list[QueuedRequest]:
        """Drop requests whose callers have left or that can no longer be in time. Their callers must still be woken."""
        delay_s = self._delays.estimate_s(now_s)
        sizes_waiting = {(queued.rows_left, queued.row_elements) for queued in self._waiting}
        least_s = {
            (rows, elements): now_s + self.needed_s(rows, now_s, elements) + delay_s for rows, elements in sizes_waiting
        }
        suspects = [
            queued
            for queued in self._waiting
            if queued.deadline_s < least_s[queued.rows_left, queued.row_elements] or queued.call.cancelled.is_set()
        ]
        for queued in suspects:
            queued.error = self.hopeless(queued.call, queued.rows_left, now_s, now_s, queued.row_elements)
        dropped = [queued for queued in suspects if queued.error is not None]
        if dropped:
            self._waiting = [queued for queued in self._waiting if queued.error is None]
            self._forget(dropped)
        return dropped

    def _ranked(self, now_s: float) -> list[QueuedRequest]:
        """The waiting requests with their ranks, most urgent first."""
        ahead: frozenset[str] = frozenset()
        if len(self._clients) > 1:
            ahead = self._shares.ahead(self._clients.keys(), self._times.remembered_s(self._largest_size(), now_s))
        if ahead or self._has_classes or now_s - self._waiting[0].since_s >= PATIENCE_S:
            for queued in self._waiting:
                queued.rank = (queued.client in ahead, _level(queued, now_s))
            self._has_classes = bool(ahead)
        return sorted(self._waiting, key=_URGENCY)

    def _less_entitled(self, client: str, priority: int, now_s: float) -> QueuedRequest | None:
        """The least urgent request with less right to its place than another one of `client`."""
        crowd = max(self._clients, key=self._clients.__getitem__, default="")
        if self._clients[crowd] < self._clients[client] + 2:
            crowd = client
        theirs = (one for one in self._waiting if one.client == crowd and one.rows_left == one.rows)
        last = max(theirs, key=lambda one: (_level(one, now_s), one.due_s), default=None)
        return last if last is not None and (crowd != client or _level(last, now_s) > priority) else None

    def _drained_in_s(self, now_s: float, start_s: float) -> float | None:
        """Seconds until all waiting requests have run, so that refused callers do not all return for one place."""
        largest = self._sizes.largest
        run_s = self._times.estimate_s(self._largest_size(), now_s)
        if not run_s:
            return None
        rows = sum(queued.rows_left for queued in self._waiting)
        runs = -(-rows // largest) if self._sizes.is_bound else len(self._waiting)
        return start_s - now_s + runs * run_s / self.instances

    def _largest_size(self) -> int:
        """The size of the largest run for the request that has waited longest."""
        return self._sizes.largest * (self._waiting[0].row_elements if self._waiting else 1)

    def _forget(self, gone: Sequence[QueuedRequest]) -> None:
        """Remove them from the counts of waiting requests."""
        for queued in gone:
            client = queued.client
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


def _level(queued: QueuedRequest, now_s: float) -> int:
    """The present priority of a request."""
    return 0 if now_s - queued.since_s >= PATIENCE_S else queued.priority
