"""Scheduling a device: the queues of the models that share it, and the running batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakSet, WeakValueDictionary

from upwell.cloud.batching.fair_shares import FairShares
from upwell.cloud.batching.model_queue import Batch, ModelQueue, QueuedRequest, raise_if, wake
from upwell.shared.errors import UpwellError
from upwell.shared.oip.dataplane import Call


class Device:
    """A device that runs batches of one model or of several, `places` at a time.

    An accelerator is shared by all of its models; on the CPU each model has its own instances. `places` is the largest
    number of instances of any of its models, by default 1 for an accelerator; more let one run's copying overlap with
    another's computing.

    It has no thread: the end of a run calls `done`, which gives the slot to the next queue: among the models that are
    not ahead of their share of device seconds (`FairShares`), the one with the earliest deadline. The batch is chosen
    only then, from all waiting requests. A request in pieces calls `pause` between two of them while others wait.

    Thread-safe. Time is an argument, on the clock of the deadlines.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places = 0
        self._admitted: WeakSet[ModelQueue] = WeakSet()
        self._running: dict[Batch[ModelQueue], None] = {}
        self._queues: dict[ModelQueue, None] = {}  # queues with waiting requests
        self._shares: FairShares[ModelQueue] = FairShares()

    def admit(self, queue: ModelQueue) -> None:
        """Add a model to the device."""
        with self._lock:
            self._admitted.add(queue)
            self._count_places()

    def dismiss(self, queue: ModelQueue) -> None:
        """Take a model off the device, after its last run."""
        with self._lock:
            self._admitted.discard(queue)
            self._count_places()

    def check(self, queue: ModelQueue, call: Call, client: str, priority: int, now_s: float) -> None:
        """Raise what `enter` would raise now for at least one row."""
        with self._lock:
            is_free = self._is_free(queue)
            start_s = now_s if is_free else self._free_s(now_s)
            raise_if(queue.hopeless(call, 1, now_s, start_s))
            if not is_free:
                queue.make_room(client, priority, now_s, start_s)

    def enter(self, queue: ModelQueue, queued: QueuedRequest, now_s: float) -> Batch[ModelQueue] | None:
        """The entry's own batch, for its caller to run at once; None if it must wait for its `wake_up`.

        Raises if it can do neither.
        """
        with self._lock:
            is_free = self._is_free(queue)
            start_s = now_s if is_free else self._free_s(now_s)
            raise_if(queue.hopeless(queued.call, queued.rows, now_s, start_s, queued.row_elements))
            if is_free:
                return self._begin(queue, (queued,), now_s)
            less_entitled = queue.make_room(queued.client, queued.priority, now_s, start_s)
            if less_entitled is not None:
                queue.displace(less_entitled, now_s, start_s)
            self._wait(queue, queued)
            return None

    def leave(self, queue: ModelQueue, queued: QueuedRequest) -> bool:
        """Stop waiting. False if the entry was already notified, or must notify its batch."""
        with self._lock:
            if queued.wake_up is None or queued.wake_up.is_set() or queued.notifies is not None:
                return False
            if not queue.remove(queued):  # its batch is running, and the answer will be discarded
                queued.has_left = True
            return True

    def done(self, batch: Batch[ModelQueue], now_s: float) -> Sequence[Batch[ModelQueue]]:
        """End a batch and give its slot to the next. Returns the batches that begin now, for threads to run.

        One of the batch's callers notifies the others, once the slot is busy again or nothing is next.
        """
        with self._lock:
            batch.notifier = next((one for one in batch.entries if one.wake_up is not None and not one.has_left), None)
            if batch.notifier is not None:
                batch.notifier.notifies = batch
            next_batches = self._next_after(batch, now_s)
            if next_batches:
                next_batches[0].former = batch
            else:
                batch.ends()
            return next_batches

    def is_wanted(self) -> bool:
        """Whether any request waits for the device."""
        with self._lock:
            return any(map(len, self._queues))

    def pause(self, batch: Batch[ModelQueue], now_s: float) -> Sequence[Batch[ModelQueue]]:
        """End the turn of a batch whose only request has pieces left: it waits for its next one, as `done` otherwise.

        It keeps its place in the queue, which may hold more than `max_queue` then.
        """
        with self._lock:
            (queued,) = batch.entries
            queued.since_s = now_s
            self._wait(batch.queue, queued)
            return self._next_after(batch, now_s)

    def abandoned(self, queue: ModelQueue, now_s: float) -> list[Batch[ModelQueue]]:
        """The running batches of a model that nobody waits for any more."""
        with self._lock:
            return [batch for batch in self._running if batch.queue is queue and batch.is_abandoned(now_s)]

    def is_running(self, batch: Batch[ModelQueue]) -> bool:
        """Whether the batch has not ended."""
        with self._lock:
            return batch in self._running

    def hopeless(self, queue: ModelQueue, queued: QueuedRequest, rows: int, now_s: float) -> UpwellError | None:
        """Why running `rows` rows of the entry now would be useless; None if it would not."""
        with self._lock:
            return queue.hopeless(queued.call, rows, now_s, now_s, queued.row_elements)

    def needed_s(self, queue: ModelQueue, rows: int, now_s: float, row_elements: int) -> float:
        """The estimated time of a run of a model (s), 0 if unknown."""
        with self._lock:
            return queue.needed_s(rows, now_s, row_elements)

    def observe(self, queue: ModelQueue, size: int, run_s: float, now_s: float) -> None:
        """Learn from the time of a run of a model. See `ModelQueue.observe`."""
        with self._lock:
            queue.observe(size, run_s, now_s)

    def observe_delay(self, queue: ModelQueue, delay_s: float, now_s: float) -> None:
        """Learn from the delay between the end of a run and its last request's answer."""
        with self._lock:
            queue.observe_delay(delay_s, now_s)

    def _count_places(self) -> None:
        self._places = max((queue.instances for queue in self._admitted), default=0)

    def _is_free(self, queue: ModelQueue) -> bool:
        """Whether the queue may begin a run now. Requests that could run before it would have begun."""
        return len(self._running) < self._places and queue.running < queue.instances

    def _free_s(self, now_s: float) -> float:
        """The earliest time at which a slot may be free, as far as known."""
        ends = (one.started_s + one.queue.turn_s(one.rows, now_s, one.entries[0].row_elements) for one in self._running)
        return max(now_s, min(ends, default=now_s))

    def _wait(self, queue: ModelQueue, queued: QueuedRequest) -> None:
        if queued.wake_up is None:
            queued.wake_up = threading.Event()
        queue.add(queued)
        if queue not in self._queues:
            self._queues[queue] = None
            self._shares.join(queue)

    def _next_after(self, batch: Batch[ModelQueue], now_s: float) -> list[Batch[ModelQueue]]:
        """Free the slot of a batch, charge its run, and begin the next batches."""
        del self._running[batch]
        batch.queue.running -= 1
        run_s = now_s - batch.started_s
        batch.queue.charge(batch.entries, run_s)
        if not self._queues:
            return []
        self._shares.charge({batch.queue: run_s}, [queue for queue in self._queues if len(queue)])
        next_batches = []
        while len(self._running) < self._places and (batch_begun := self._begin_next(now_s)) is not None:
            next_batches.append(batch_begun)
        return next_batches

    def _begin_next(self, now_s: float) -> Batch[ModelQueue] | None:
        """Give a free slot to the next queue; None if nothing waits."""
        self._queues = dict.fromkeys(queue for queue in self._queues if len(queue))
        ready = [queue for queue in self._queues if queue.running < queue.instances]
        if len(ready) > 1:
            ahead = self._shares.ahead(self._queues.keys(), slack_s=0.0)
            ready.sort(key=lambda queue: (queue in ahead, queue.due_s()))
        for queue in ready:
            entries, dropped = queue.take(now_s)
            if entries:
                entries[-1].is_last = len(entries) > 1
                batch = self._begin(queue, entries, now_s)
                batch.dropped = dropped
                return batch
            wake(dropped)
        return None

    def _begin(self, queue: ModelQueue, entries: Sequence[QueuedRequest], now_s: float) -> Batch[ModelQueue]:
        batch = Batch(queue, entries, sum(queued.rows for queued in entries), now_s)
        queue.running += 1
        self._running[batch] = None
        return batch


_shared: WeakValueDictionary[str, Device] = WeakValueDictionary()
_shared_lock = threading.Lock()


def device_for(name: str) -> Device:
    """The device of that name: on the CPU a new one for each model, otherwise shared by all models of this process."""
    if name == "cpu":
        return Device()
    key = name if ":" in name else f"{name}:0"
    with _shared_lock:
        device = _shared.get(key)
        if device is None:
            device = _shared[key] = Device()
        return device
