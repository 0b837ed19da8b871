"""Brings the requests of one model to its engine: a bounded queue, greedy batches, deadlines."""

from __future__ import annotations

import logging
import math
import threading
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np

from upwell.cloud.batching.choosing import choose
from upwell.cloud.batching.entry import Entry, Ran, raise_if, wake
from upwell.cloud.batching.run_times import RunTimes
from upwell.cloud.engines.base import Engine
from upwell.cloud.engines.checks import works_by_rows
from upwell.shared.errors import CallerLeft, DeadlineExceeded, InvalidRequest, ModelFailed, Refused, UpwellError
from upwell.shared.oip.dataplane import Call
from upwell.shared.tensors import Array

_PATIENCE_S = 10.0

log = logging.getLogger("upwell.cloud")


class Batcher:
    """Runs the requests of one model, at most `instances` runs at a time and `max_queue` requests waiting.

    No thread of its own: a request that finds an instance free runs in its caller's thread at once, alone,
    since nothing waits then. Otherwise it waits. Whoever ends a run chooses the next batch from the queue
    and hands the instance to the first caller in it, who runs it for all. So one request at a time costs
    no change of threads, no instance is idle while a request waits, and batches form only while the
    engine is busy. The queue belongs to whoever holds `_lock`.

    The queue is ordered by deadline, at most 10 s from arrival: a request without a deadline cannot be
    kept waiting for ever by others that have one. A request is dropped, before it costs a run, as
    soon as its caller has left or its deadline comes before a run of its size can end.

    `run` may be called from any thread. `clock` counts as `time.monotonic`, in which deadlines are given.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        instances: int = 1,
        max_batch: int = 1,
        max_queue: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._row_wise = works_by_rows(engine)
        self._max_batch = max_batch if self._row_wise else 1
        self._max_queue = max_queue
        self._clock = clock
        self._lock = threading.Lock()
        self._free = instances
        self._waiting: list[Entry] = []
        self._times = RunTimes()
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """How many requests wait for an instance."""
        return len(self._waiting)

    def check(self, call: Call) -> None:
        """Raise what `run` would raise now anyway, before anything is spent on preparing the inputs of `call`."""
        now_s = self._clock()
        with self._lock:
            raise_if(self._hopeless(call, 1, now_s))
            self._check_room(now_s)

    def run(self, inputs: Mapping[str, Array], call: Call) -> Ran:
        """Run the engine on `inputs`, alone or in a batch with others.

        A request with more rows than `max_batch` (where that is above 1) runs in pieces. Raises `Refused`
        where the queue is full, `DeadlineExceeded`, `CallerLeft`, and what the engine raises for this
        request; a batch that fails is run again one by one, so nobody gets another's error.
        """
        entry = self._enter(inputs, call)
        if entry.turn is not None:
            self._await_turn(entry, entry.turn)
        if entry.leads:
            self._lead(entry)
        raise_if(entry.take_error())
        if entry.ran is None:
            raise ModelFailed("the run was broken off")
        return entry.ran

    def _enter(self, inputs: Mapping[str, Array], call: Call) -> Entry:
        """Take a free instance, or a place in the queue."""
        now_s = self._clock()
        rows = self._rows(inputs)
        group = [(array.dtype, array.shape[1:]) for array in inputs.values()] if self._max_batch > 1 else None
        entry = Entry(inputs, call, call.deadline_s, rows, group, now_s)
        with self._lock:
            raise_if(self._hopeless(call, rows, now_s))
            if self._free:
                self._free -= 1
                entry.leads = True
            else:
                self._queue(entry, now_s)
        return entry

    def _rows(self, inputs: Mapping[str, Array]) -> int:
        if not self._row_wise:
            return 1
        rows = {name: len(array) if array.ndim else 1 for name, array in inputs.items()}
        if self._max_batch > 1 and len(set(rows.values())) != 1:
            raise InvalidRequest(f"inputs have different numbers of rows: {rows}")
        return next(iter(rows.values()))

    def _check_room(self, now_s: float) -> None:
        if self._free == 0 and len(self._waiting) >= self._max_queue:
            self._sweep(now_s)
            if len(self._waiting) >= self._max_queue:
                raise Refused(f"the model's queue is full ({self._max_queue} waiting); try again later")

    def _queue(self, entry: Entry, now_s: float) -> None:
        self._check_room(now_s)
        entry.order = (min(entry.deadline_s, now_s + _PATIENCE_S), next(self._numbers))
        entry.turn = threading.Event()
        insort(self._waiting, entry, key=lambda one: one.order)

    def _await_turn(self, entry: Entry, turn: threading.Event) -> None:
        """Wait until the entry is to lead a batch, is answered, or its deadline has passed."""
        left_s = entry.deadline_s - self._clock()
        if turn.wait(min(max(left_s, 0.0), threading.TIMEOUT_MAX)):
            return
        with self._lock:
            if turn.is_set():  # at the same instant; an instance may have been handed over
                return
            if entry in self._waiting:  # else its batch is running, and the answer will be thrown away
                self._waiting.remove(entry)
        raise DeadlineExceeded("the deadline passed before the model had an answer")

    def _lead(self, entry: Entry) -> None:
        """Run a batch with the instance that was handed over, then hand the instance on."""
        try:
            self._execute((entry, *entry.mates))
        finally:
            self._hand_on()
            wake(entry.mates)

    def _hand_on(self) -> None:
        now_s = self._clock()
        with self._lock:
            self._sweep(now_s)
            if not self._waiting:
                self._free += 1
                return
            batch = choose(self._waiting, self._max_batch, now_s, lambda rows: self._needed_s(rows, now_s))
            taken = set(map(id, batch))
            self._waiting = [one for one in self._waiting if id(one) not in taken]
            leader, *mates = batch
            leader.leads, leader.mates = True, mates
            wake([leader])

    def _sweep(self, now_s: float) -> None:
        """Drop whatever nobody waits for any more, or can no longer be in time."""
        kept = []
        for entry in self._waiting:
            entry.error = self._hopeless(entry.call, entry.rows, now_s)
            if entry.error is None:
                kept.append(entry)
            else:
                wake([entry])
        self._waiting = kept

    def _hopeless(self, call: Call, rows: int, now_s: float) -> UpwellError | None:
        """Why a run of `rows` rows for `call` would be for nothing now, or None where it would not."""
        if call.cancelled.is_set():
            return CallerLeft("the caller has left")
        if call.deadline_s == math.inf:
            return None
        left_s = call.deadline_s - now_s
        if left_s <= 0:
            return DeadlineExceeded("the deadline has passed")
        needed_s = self._needed_s(rows, now_s)
        if left_s < needed_s:
            return DeadlineExceeded(f"{1e3 * left_s:.1f} ms are left and the model takes {1e3 * needed_s:.1f} ms")
        return None

    def _needed_s(self, rows: int, now_s: float) -> float:
        """Seconds of the engine for a request or batch of `rows` rows, 0 where not known."""
        if self._max_batch == 1 or rows <= self._max_batch:
            return self._times.estimate_s(rows, now_s)
        return -(-rows // self._max_batch) * self._times.estimate_s(self._max_batch, now_s)

    def _execute(self, batch: Sequence[Entry]) -> None:
        if len(batch) == 1:
            self._execute_alone(batch[0])
            return
        started_s = self._clock()
        try:
            parts = self._run_together(batch)
        except Exception as error:  # noqa: BLE001 (one member's bad row must not be the others' error)
            log.warning("a batch of %d requests failed and is run one by one: %s", len(batch), error)
            for entry in batch:
                entry.error = self._hopeless(entry.call, entry.rows, self._clock())
                if entry.error is None:
                    self._execute_alone(entry)
            return
        compute_s = self._clock() - started_s
        for entry, outputs in zip(batch, parts, strict=True):
            entry.ran = Ran(outputs, started_s - entry.arrived_s, compute_s)

    def _execute_alone(self, entry: Entry) -> None:
        started_s = self._clock()
        try:
            outputs = self._run_alone(entry)
        except Exception as error:  # noqa: BLE001 (it is raised in the thread of the caller it belongs to)
            entry.error = error
            return
        entry.ran = Ran(outputs, started_s - entry.arrived_s, self._clock() - started_s)

    def _run_together(self, batch: Sequence[Entry]) -> list[dict[str, Array]]:
        """Run the batch as one and give each entry its rows."""
        names = [spec.name for spec in self._engine.inputs]
        merged = {name: np.concatenate([entry.inputs[name] for entry in batch]) for name in names}
        rows = sum(entry.rows for entry in batch)
        outputs = self._timed(merged, rows)
        for name, array in outputs.items():
            if len(array) != rows:
                raise ModelFailed(f"output {name!r} has {len(array)} rows for {rows}; the model needs `max_batch: 1`")
        ends = np.cumsum([entry.rows for entry in batch]).tolist()
        bounds = list(zip([0, *ends], ends, strict=False))
        return [{name: array[start:end] for name, array in outputs.items()} for start, end in bounds]

    def _run_alone(self, entry: Entry) -> Mapping[str, Array]:
        step = self._max_batch
        if step == 1 or entry.rows <= step:
            return self._timed(entry.inputs, entry.rows)
        pieces = []
        for start in range(0, entry.rows, step):
            raise_if(self._hopeless(entry.call, entry.rows - start, self._clock()))
            piece = {name: array[start : start + step] for name, array in entry.inputs.items()}
            pieces.append(self._timed(piece, min(step, entry.rows - start)))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def _timed(self, batch: Mapping[str, Array], rows: int) -> dict[str, Array]:
        started_s = self._clock()
        outputs = self._engine.run(batch)
        ended_s = self._clock()
        with self._lock:
            self._times.observe(rows, ended_s - started_s, ended_s)
        return outputs
