"""From the tensors of several requests to those of one run, and back."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from weakref import WeakSet

import numpy as np

from upwell.cloud.batching.batch_choice import RunSizes
from upwell.cloud.batching.device_scheduler import Device
from upwell.cloud.batching.model_queue import (
    ABANDONED_S,
    DEFAULT_PRIORITY,
    Batch,
    ModelQueue,
    QueuedRequest,
    Run,
    RunResult,
    raise_if,
    wake,
)
from upwell.cloud.engines.base import Engine, StoppableRun
from upwell.cloud.engines.batch_checks_and_buckets import works_by_rows
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.named_calls import calls_of
from upwell.shared.errors import DeadlineExceeded, InvalidRequest, ModelFailed, UpwellError
from upwell.shared.oip.auth.caller import client_key
from upwell.shared.oip.dataplane import Call
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.call_threads import CallThreads, yield_permit
from upwell.shared.tensors import Array

Tensors = Mapping[str, Array]


def merge(parts: Sequence[Tensors], names: Sequence[str], rows: int) -> Tensors:
    """Concatenate the rows of all parts in order, padded with zeros (empty strings) to `rows`.

    A single part that already has `rows` rows is returned unchanged.
    """
    missing = rows - sum(len(part[names[0]]) for part in parts)
    if len(parts) == 1 and not missing:
        return parts[0]
    return {
        name: np.concatenate([*(part[name] for part in parts), *_filling(parts[0][name], missing)]) for name in names
    }


def _filling(like: Array, rows: int) -> Sequence[Array]:
    if not rows:
        return ()
    shape = (rows, *like.shape[1:])
    return (np.full(shape, b"", object) if like.dtype == np.object_ else np.zeros(shape, like.dtype),)


def check_rows(outputs: Tensors, rows: int) -> None:
    """Raise `ModelFailed` unless every output has as many rows as the inputs."""
    for name, array in outputs.items():
        if array.shape[:1] != (rows,):
            found = f"{len(array)} rows" if array.ndim else "no rows"
            raise ModelFailed(f"output {name!r} has {found}, expected {rows}; the model needs `max_batch: 1`")


def split(outputs: Tensors, rows: Sequence[int]) -> list[dict[str, Array]]:
    """Split the outputs of a run by the `rows` of each request; padding behind them is cut off."""
    ends = np.cumsum([0, *rows]).tolist()
    return [{name: array[start:end] for name, array in outputs.items()} for start, end in pairwise(ends)]


_MOST = 4096
_threads = CallThreads(_MOST, "batch")
"""One thread per busy slot of all devices in this process. They are reused."""


def prepare() -> None:
    """Start a thread now, which stays, since under load the system may allow no more."""
    _threads.submit(int)


def begin(batches: Sequence[Batch[ModelQueue]]) -> None:
    """Run these batches, each in a thread that continues with the next batch of its slot."""
    for batch in batches:
        _threads.submit(_run_on, batch)


def _run_on(batch: Batch[ModelQueue]) -> None:
    while True:
        next_batches = batch.entries[0].runner(batch)
        if not next_batches:
            return
        batch, *others = next_batches
        begin(others)


_watched: WeakSet[Batcher] = WeakSet()
_watching = threading.Lock()


@cache
def _start_watch() -> None:
    """Start the thread that stops the runs of `_watched` for which nobody waits any more."""
    BackgroundThread("abandoned-runs", _watch).start()


def _watch() -> None:
    while True:
        time.sleep(_WATCH_EVERY_S)
        _stop_abandoned()


def _stop_abandoned() -> None:
    with _watching:
        batchers = list(_watched)
    for batcher in batchers:
        batcher.stop_abandoned()


_LONG_RUN_S = 0.0004
"""Minimum duration of a run for yielding to the next call; for a shorter run the thread switch costs more than it
gains."""

_LOOK_S = 0.002
_WATCH_EVERY_S = 1.0

_ALONE = ModelSettings()

log = logging.getLogger("upwell.cloud")


class Batcher:
    """Runs the requests of one model, with at most `instances` concurrent runs and `max_queue` waiting requests.

    It uses these two of `settings`, `max_batch` and `buckets`. `on_run` is called after each successful run; `name` is
    the model's, and its version.

    A request that finds a free slot on the device runs at once in its caller's thread, alone, since nothing is waiting.
    Otherwise it waits. When a run ends, the device chooses the next batch from the queues; it runs in a thread of the
    slot (`running`), which continues while requests wait, and the callers pass the answers on to each other. So a
    single request needs no thread switch, no slot is idle while a request waits, batches form only while the device is
    busy, and no slot waits for another thread between two batches.

    See `ModelQueue` for order, refusals and drops, and `Device` for sharing a device among models. With `buckets` every
    run has exactly one of these numbers of rows, padded with zeros whose outputs are cut off; the largest is
    `max_batch`.

    `run` may be called from any thread. `clock` is monotonic, as deadlines are.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ModelSettings = _ALONE,
        *,
        name: tuple[str, str] = ("-", "-"),
        device: Device | None = None,
        on_run: Callable[[Run], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._name = name
        self._call = calls_of(*name)
        self._names = [spec.name for spec in engine.inputs]
        self._row_wise = works_by_rows(engine)
        buckets = settings.buckets
        self._sizes = RunSizes(buckets[-1], buckets) if buckets else RunSizes(settings.max_batch)
        if not self._row_wise:
            self._sizes = RunSizes(1)
        self._rows_differ = any(-1 in spec.shape[int(self._row_wise) :] for spec in engine.inputs)
        self._queue = ModelQueue(
            self._sizes, instances=settings.instances, max_queue=settings.max_queue, rows_differ=self._rows_differ
        )
        self._device = device or Device()
        self._device.admit(self._queue)
        prepare()
        self._on_run = on_run
        self._clock = clock
        self._stoppable_run: Callable[[], StoppableRun] | None = getattr(engine, "stoppable_run", None)
        self._stops: dict[int, Callable[[], None]] = {}  # of the runs in progress, by thread
        if self._stoppable_run is not None:
            with _watching:
                _watched.add(self)
            _start_watch()

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    def rest(self, limit_s: float = math.inf) -> bool:
        """After the last request, wait for runs whose callers have all left; False if that takes too long."""
        end_s = time.monotonic() + limit_s
        while self._queue.running:
            if time.monotonic() >= end_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def close(self) -> None:
        """Free the engine and its places on the device, after the last run."""
        self._device.dismiss(self._queue)
        self._engine.close()

    def stop_abandoned(self) -> None:
        """Stop the runs that nobody waits for any more, where the engine can."""
        for batch in self._device.abandoned(self._queue, self._clock()):
            stop = self._stops.get(batch.thread)
            # If the batch has not ended by now, this belongs to its run, or to one that has ended.
            if stop is not None and self._device.is_running(batch):
                text = "model %s version %s: a run is stopped for which nobody has waited for %.0f s"
                log.warning(text, *self._name, ABANDONED_S)
                batch.is_stopped = True
                stop()

    def check(self, call: Call, priority: int = DEFAULT_PRIORITY) -> None:
        """Raise what `run` would raise now, before any work is spent on the inputs of `call`."""
        self._device.check(self._queue, call, client_key(call.client), priority, self._clock())

    def run(self, inputs: Mapping[str, Array], call: Call, priority: int = DEFAULT_PRIORITY) -> RunResult:
        """Run the engine on `inputs`, alone or in a batch with others; a lower `priority` goes first.

        A request with more rows than the largest batch (if that is above 1) runs in pieces, and takes turns with others
        that wait; between two pieces it ends if its deadline cannot be met or its caller has left. Raises `Refused` if
        the queue is full, `DeadlineExceeded`, `CallerLeft`, and what the engine raises for this request; a failed batch
        is repeated one request at a time, so that no caller gets another's error.
        """
        now_s = self._clock()
        group = None if self._sizes.largest == 1 else self._group(inputs)
        client = client_key(call.client)
        rows = self._rows(inputs)
        queued = QueuedRequest(inputs, call, rows, group, self._runner, now_s, client, priority)
        queued.row_elements = self._row_elements(inputs, rows)
        batch = self._device.enter(self._queue, queued, now_s)
        if batch is not None:
            begin(self._runner(batch))
        if queued.wake_up is not None:  # also where it has paused
            self._await_wake_up(queued, queued.wake_up)
            batch, queued.notifies = queued.notifies, None  # breaks a reference cycle
            if batch is not None:
                self._tell(batch)
        if queued.error is not None:
            raise_if(queued.take_error())
        ran = queued.ran
        if ran is None:
            raise ModelFailed("the run was interrupted")
        if queued.is_last:
            now_s = self._clock()
            self._device.observe_delay(self._queue, now_s - queued.arrived_s - ran.queue_s - ran.compute_s, now_s)
        return ran

    def _rows(self, inputs: Mapping[str, Array]) -> int:
        if not self._row_wise:
            return 1
        if not self._sizes.is_bound:
            for array in inputs.values():
                return len(array) if array.ndim else 1
        rows = {name: len(array) if array.ndim else 1 for name, array in inputs.items()}
        if len(set(rows.values())) != 1:
            raise InvalidRequest(f"inputs have different numbers of rows: {rows}")
        return next(iter(rows.values()))

    def _row_elements(self, inputs: Mapping[str, Array], rows: int) -> int:
        return max(1, sum(array.size for array in inputs.values()) // max(1, rows)) if self._rows_differ else 1

    def _group(self, inputs: Mapping[str, Array]) -> object:
        """The key that requests must share to run together."""
        return [(inputs[name].dtype, inputs[name].shape[1:]) for name in self._names]

    def _await_wake_up(self, queued: QueuedRequest, wake_up: threading.Event) -> None:
        """Wait until the entry is answered, must notify its batch, or its deadline has passed."""
        yield_permit()
        left_s = queued.deadline_s - self._clock()
        if not wake_up.wait(min(max(left_s, 0.0), threading.TIMEOUT_MAX)) and self._device.leave(self._queue, queued):
            raise DeadlineExceeded("the deadline passed before the model answered")

    def _runner(self, batch: Batch[ModelQueue]) -> Sequence[Batch[ModelQueue]]:
        """Run the batch, and return the next batch for its slot. Its callers notify each other."""
        batch.thread = threading.get_ident()
        try:
            batch.runs = self._run_batch(batch)
        except (
            BaseException
        ):  # also SystemExit and the like: waiting requests need the slot, and no caller would handle it
            log.exception("a run was interrupted")
        batch.begins()  # unless it has
        if batch.entries[0].is_paused:
            batch.entries[0].is_paused = False
            return self._device.pause(batch, self._clock())
        next_batches = self._device.done(batch, self._clock())
        if batch.notifier is None:
            self._tell(batch)
        return next_batches

    def _tell(self, batch: Batch[ModelQueue]) -> None:
        """Give each request of the batch its answer, in the thread of one of its callers."""
        try:
            for run in batch.runs:
                self._answer(run)
        finally:
            wake(batch.entries)

    def _run_batch(self, batch: Batch[ModelQueue]) -> list[Run]:
        """Run the batch as one or, if that fails, one request at a time, each with its own error."""
        entries = batch.entries
        if len(entries) == 1:
            batch.begins()
            return self._run_one(batch, entries[0])
        started_s = self._clock()
        try:
            outputs = self._run_rows([queued.inputs for queued in entries], batch.rows, batch.begins)
        except Exception as error:  # noqa: BLE001 (one member's bad row must not be the others' error)
            if not batch.is_stopped:
                log.warning("a batch of %d requests failed; running each alone: %s", len(entries), error)
        else:
            return [Run(entries, outputs, started_s, self._clock())]
        runs = []
        for queued in entries:
            queued.error = self._hopeless(queued, queued.rows)
            if queued.error is None:
                runs += self._run_one(batch, queued)
        return runs

    def _run_one(self, batch: Batch[ModelQueue], queued: QueuedRequest) -> list[Run]:
        started_s = self._clock()
        try:
            outputs = self._run_alone(queued)
        except Exception as error:  # noqa: BLE001 (it is raised in the thread of the caller it belongs to)
            queued.error = (self._hopeless(queued, queued.rows) if batch.is_stopped else None) or error
            return []
        ended_s = self._clock()
        if queued.is_paused:
            queued.spent_s += ended_s - started_s
            return []
        return [Run((queued,), outputs, started_s - queued.spent_s, ended_s)]

    def _answer(self, run: Run) -> None:
        entries, compute_s, rows = run.entries, run.ended_s - run.started_s, run.rows
        if self._on_run is not None:
            self._on_run(run)
        parts = [run.outputs] if len(entries) == 1 else split(run.outputs, [queued.rows for queued in entries])
        for queued, outputs in zip(entries, parts, strict=True):
            queued.ran = RunResult(outputs, run.started_s - queued.arrived_s, compute_s, rows)

    def _run_alone(self, queued: QueuedRequest) -> Mapping[str, Array]:
        """The outputs of a request, or of one that `is_paused` nothing yet."""
        if not self._sizes.is_bound:
            return self._timed(queued.inputs, queued.rows)
        step = self._sizes.largest
        if queued.rows <= step:
            return self._run_piece(queued.inputs, queued.rows)
        while True:
            raise_if(self._hopeless(queued, queued.rows_left))
            start, rows = queued.rows - queued.rows_left, min(step, queued.rows_left)
            piece = {name: array[start : start + rows] for name, array in queued.inputs.items()}
            queued.pieces.append(self._run_piece(piece, rows))
            queued.rows_left -= rows
            if not queued.rows_left:
                pieces, queued.pieces = queued.pieces, []
                return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
            if self._device.is_wanted():
                queued.is_paused = True
                return {}

    def _hopeless(self, queued: QueuedRequest, rows: int) -> UpwellError | None:
        return self._device.hopeless(self._queue, queued, rows, self._clock())

    def _run_piece(self, inputs: Mapping[str, Array], rows: int) -> Mapping[str, Array]:
        """Run rows that fit in one run; if they fill it, the outputs are not copied."""
        if self._sizes.of_run(rows) == rows:
            return self._timed(inputs, rows)
        return split(self._run_rows([inputs], rows), [rows])[0]

    def _run_rows(
        self, parts: Sequence[Mapping[str, Array]], rows: int, begins: Callable[[], None] = lambda: None
    ) -> Mapping[str, Array]:
        """The outputs of one run for the `rows` rows of all parts and the padding."""
        size = self._sizes.of_run(rows)
        merged = merge(parts, self._names, size)
        begins()
        outputs = self._timed(merged, size)
        check_rows(outputs, size)
        return outputs

    def _timed(self, batch: Mapping[str, Array], rows: int) -> dict[str, Array]:
        started_s = self._clock()
        row_elements = self._row_elements(batch, rows)
        if not 0.0 < self._device.needed_s(self._queue, rows, started_s, row_elements) <= _LONG_RUN_S:
            yield_permit()
        outputs = self._run_engine(batch)
        ended_s = self._clock()
        self._device.observe(self._queue, rows * row_elements, ended_s - started_s, ended_s)
        return outputs

    def _run_engine(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        if self._stoppable_run is None:
            return self._call(self._engine.run, batch)
        run, stop = self._stoppable_run()
        thread = threading.get_ident()
        self._stops[thread] = stop
        try:
            return self._call(run, batch)
        finally:
            del self._stops[thread]
