"""Whose turn it is on a device: the queues of the models that share it, and what runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from upwell.cloud.batching.entry import Entry, raise_if, wake
from upwell.cloud.batching.queue import ModelQueue
from upwell.cloud.batching.shares import Shares
from upwell.shared.errors import UpwellError
from upwell.shared.oip.dataplane import Call


class _Run(NamedTuple):
    """What occupies a place: a batch of a model, since when."""

    queue: ModelQueue
    batch: Sequence[Entry]
    rows: int
    started_s: float


class Device:
    """A device that runs batches of one model or of several, `places` at a time.

    An accelerator is shared by all of its models, the CPU by none: there each model has its instances for itself.
    `places` is the largest number of instances of any of its models, 1 for an accelerator unless more is written,
    which lets one run's copying overlap with another's computing. The threads are the callers'; only how many run at
    once is bound.

    It has no thread of its own either: whoever ends a run calls `done`, which gives the place to the queue whose turn
    it is. That is, among the models that are not ahead of their share of device seconds (`Shares`), the one with the
    earliest deadline in its queue; the batch is chosen only then, from all that waits by then.

    Safe for several threads. Time is an argument, in the clock of the deadlines.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places = 0
        self._running: dict[Entry, _Run] = {}
        self._queues: dict[ModelQueue, None] = {}  # those in which something waits
        self._shares: Shares[ModelQueue] = Shares()

    def admit(self, queue: ModelQueue) -> None:
        """A model is to run here."""
        with self._lock:
            self._places = max(self._places, queue.instances)

    def check(self, queue: ModelQueue, call: Call, client: str, priority: int, now_s: float) -> None:
        """Raise what `enter` would raise now anyway for at least one row."""
        with self._lock:
            start_s = now_s if self._is_free(queue) else self._free_s(now_s)
            raise_if(queue.hopeless(call, 1, now_s, start_s))
            if not self._is_free(queue):
                queue.make_room(client, priority, now_s, start_s)

    def enter(self, queue: ModelQueue, entry: Entry, now_s: float) -> None:
        """Let the request's caller run it at once, or wait for its `turn`. Raises why it can do neither."""
        with self._lock:
            is_free = len(self._running) < self._places and queue.running < queue.instances  # as in `_is_free`
            start_s = now_s if is_free else self._free_s(now_s)
            raise_if(queue.hopeless(entry.call, entry.rows, now_s, start_s))
            if is_free:
                entry.leads = True
                queue.running += 1
                self._running[entry] = _Run(queue, (entry,), entry.rows, now_s)
                return
            less_entitled = queue.make_room(entry.client, entry.priority, now_s, start_s)
            if less_entitled is not None:
                queue.displace(less_entitled, now_s, start_s)
            entry.turn = threading.Event()
            queue.add(entry)
            if queue not in self._queues:
                self._queues[queue] = None
                self._shares.join(queue)

    def leave(self, queue: ModelQueue, entry: Entry) -> bool:
        """Stop waiting. False where the entry has been told already, and may even have been given a place."""
        with self._lock:
            if entry.turn is None or entry.turn.is_set():
                return False
            queue.remove(entry)  # if it is not there, its batch is running, and the answer will be thrown away
            return True

    def done(self, leader: Entry, now_s: float) -> Entry | None:
        """The leader's batch has run, or failed: give its place to whoever is next, which is told of it.

        The mates are not told of anything. Gives the leader of the next run, with `begun` where there were mates: they
        all would contend with it for the interpreter's lock, while the device has nothing to do.
        """
        with self._lock:
            run = self._running.pop(leader)
            run.queue.running -= 1
            run_s = now_s - run.started_s
            run.queue.charge(run.batch, run_s)
            if not self._queues:
                return None
            self._shares.charge({run.queue: run_s}, [queue for queue in self._queues if len(queue)])
            following = None
            while len(self._running) < self._places:
                begun = threading.Event() if leader.mates else None
                following = self._begin_next(now_s, begun)
                if following is None:
                    break
            return following

    def hopeless(self, queue: ModelQueue, entry: Entry, rows: int, now_s: float) -> UpwellError | None:
        """Why it would be for nothing to run `rows` rows of the entry now; None where it would not."""
        with self._lock:
            return queue.hopeless(entry.call, rows, now_s, now_s)

    def observe(self, queue: ModelQueue, rows: int, run_s: float, now_s: float) -> None:
        """Learn how long a run of a model took."""
        with self._lock:
            queue.observe(rows, run_s, now_s)

    def observe_delay(self, queue: ModelQueue, delay_s: float, now_s: float) -> None:
        """Learn how long after its end a run's last request has its answer in hand."""
        with self._lock:
            queue.observe_delay(delay_s, now_s)

    def _is_free(self, queue: ModelQueue) -> bool:
        """Whether the queue may begin a run now. Nothing waits then that could, or it would have begun."""
        return len(self._running) < self._places and queue.running < queue.instances

    def _free_s(self, now_s: float) -> float:
        """The earliest instant at which a place may be free, as far as is known."""
        ends = (run.started_s + run.queue.needed_s(run.rows, now_s) for run in self._running.values())
        return max(now_s, min(ends, default=now_s))

    def _begin_next(self, now_s: float, begun: threading.Event | None) -> Entry | None:
        """Give a free place to the queue whose turn it is; None where nobody waits for one."""
        self._queues = dict.fromkeys(queue for queue in self._queues if len(queue))
        ready = [queue for queue in self._queues if queue.running < queue.instances]
        if len(ready) > 1:
            ahead = self._shares.ahead(self._queues.keys(), slack_s=0.0)
            ready.sort(key=lambda queue: (queue in ahead, queue.due_s()))
        for queue in ready:
            batch = queue.take(now_s)
            if batch:
                batch[0].begun = begun
                self._begin(queue, batch, now_s)
                return batch[0]
        return None

    def _begin(self, queue: ModelQueue, batch: Sequence[Entry], now_s: float) -> None:
        leader, *mates = batch
        leader.leads, leader.mates = True, mates
        if mates:
            mates[-1].is_last = True
        queue.running += 1
        self._running[leader] = _Run(queue, batch, sum(entry.rows for entry in batch), now_s)
        wake([leader])


_shared: WeakValueDictionary[str, Device] = WeakValueDictionary()
_shared_lock = threading.Lock()


def device_for(name: str) -> Device:
    """The device of that name: on the CPU one for each model, else the one that all models of this process share."""
    if name == "cpu":
        return Device()
    key = name if ":" in name else f"{name}:0"
    with _shared_lock:
        device = _shared.get(key)
        if device is None:
            device = _shared[key] = Device()
        return device
