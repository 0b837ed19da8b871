"""Requests through the real queues of a simulated device, in virtual time: the same every time, and at no cost."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from upwell.cloud.batching.batch_choice import RunSizes
from upwell.cloud.batching.device_scheduler import Device
from upwell.cloud.batching.model_queue import DEFAULT_PRIORITY, Batch, ModelQueue, QueuedRequest
from upwell.shared.errors import UpwellError
from upwell.shared.oip.dataplane import Call


def pace_s(rows: int) -> float:
    """The simulated device of all these tests: 4 ms for a run, and 0.45 ms for each of its rows."""
    return 0.004 + 0.00045 * rows


LARGEST = 32
CAPACITY = LARGEST / pace_s(LARGEST)
"""Rows in a second, in full batches."""


@dataclass(frozen=True)
class Arrival:
    """A request to come at `at_s`, to be answered within `limit_s`."""

    at_s: float
    limit_s: float = math.inf
    client: str = "one"
    priority: int = DEFAULT_PRIORITY
    rows: int = 1
    model: str = "m"


@dataclass
class Outcome:
    """What became of a request."""

    arrival: Arrival
    ended_s: float = math.nan
    error: UpwellError | None = None

    @property
    def latency_s(self) -> float:
        """From its arrival to its end."""
        return self.ended_s - self.arrival.at_s

    @property
    def in_time(self) -> bool:
        """Whether it was answered within its limit."""
        return self.error is None and self.latency_s <= self.arrival.limit_s + 1e-9


@dataclass
class Simulation:
    """Models by name, each with its queue and its run times, on one device."""

    queues: Mapping[str, ModelQueue]
    sizes: RunSizes
    paces: Mapping[str, Callable[[int], float]] = field(default_factory=dict)
    device: Device = field(default_factory=Device)
    batches: list[tuple[float, str, list[Arrival]]] = field(default_factory=list)
    """What ran: when it began, of which model, with whom."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the device, by model."""

    def __post_init__(self) -> None:
        for queue in self.queues.values():
            self.device.admit(queue)

    @classmethod
    def of_one(cls, sizes: RunSizes | None = None, max_queue: int = 64, instances: int = 1) -> Simulation:
        """One model alone, in batches of up to 32 rows unless told."""
        sizes = sizes or RunSizes(LARGEST)
        return cls({"m": ModelQueue(sizes, instances=instances, max_queue=max_queue)}, sizes)

    def run(self, arrivals: Iterable[Arrival]) -> list[Outcome]:
        """Let them come, and wait until the last has ended."""
        outcomes: dict[QueuedRequest, Outcome] = {}
        waiting: set[QueuedRequest] = set()
        events: list[tuple[float, int, Arrival | Batch[ModelQueue]]] = [
            (one.at_s, place, one) for place, one in enumerate(sorted(arrivals, key=lambda one: one.at_s))
        ]
        count = len(events)
        while events:
            now_s, _, event = heapq.heappop(events)
            started: Sequence[Batch[ModelQueue]]
            if isinstance(event, Arrival):
                call = Call(deadline_s=now_s + event.limit_s, client=event.client)
                queued = QueuedRequest({}, call, event.rows, None, _nobody, now_s, event.client, event.priority)
                outcomes[queued] = Outcome(event)
                try:
                    at_once = self.device.enter(self.queues[event.model], queued, now_s)
                except UpwellError as error:
                    outcomes[queued].error, outcomes[queued].ended_s = error, now_s
                    continue
                waiting.add(queued)
                started = [at_once] if at_once is not None else []
            else:
                self.device.observe(event.queue, self._size(event), now_s - event.started_s, now_s)
                first = event.entries[0]
                first.rows_left -= self._size(event)
                if len(event.entries) == 1 and first.rows_left > 0:
                    started = self.device.pause(event, now_s)
                    waiting.add(first)
                else:
                    for one in event.entries:
                        outcomes[one].ended_s = now_s
                    started = self.device.done(event, now_s)
            for batch in started:
                count += 1
                model = outcomes[batch.entries[0]].arrival.model
                run_s = self._pace(model)(self._size(batch))
                self.batches.append((now_s, model, [outcomes[one].arrival for one in batch.entries]))
                self.busy_s[model] = self.busy_s.get(model, 0.0) + run_s
                heapq.heappush(events, (now_s + run_s, count, batch))
                waiting.difference_update(batch.entries)
            for queued in [one for one in waiting if one.error is not None]:
                assert isinstance(queued.error, UpwellError)
                outcomes[queued].error, outcomes[queued].ended_s = queued.error, now_s
                waiting.remove(queued)
        return list(outcomes.values())

    def _size(self, batch: Batch[ModelQueue]) -> int:
        """Of its run, or of the next piece."""
        rows = batch.entries[0].rows_left if len(batch.entries) == 1 else batch.rows
        return self.sizes.of_run(min(rows, self.sizes.largest) if self.sizes.is_bound else rows)

    def _pace(self, model: str) -> Callable[[int], float]:
        return self.paces.get(model, pace_s)


def _nobody(batch: Batch[ModelQueue]) -> Sequence[Batch[ModelQueue]]:
    """No thread runs it: time is an argument here."""
    raise AssertionError(batch)
