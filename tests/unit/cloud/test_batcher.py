"""Queue, batches and deadlines, with the fake engine held and let go by events."""

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import pytest

from upwell.cloud.batching import batcher
from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.batching.model_queue import QueuedRequest, Run, RunResult
from upwell.cloud.engines.base import StoppableRun
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.shared.errors import CallerLeft, DeadlineExceeded, InvalidRequest, ModelFailed, Refused
from upwell.shared.oip.dataplane import Call
from upwell.shared.platform.call_threads import CallThreads
from upwell.shared.tensors import Array, TensorSpec

LIMIT_S = 10.0
Batch: TypeAlias = Mapping[str, Array]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.let_go()


def x(*values: float) -> dict[str, Array]:
    return {"x": np.array([[value, value] for value in values], np.float32)}


def firsts(batch: Batch) -> list[float]:
    values: list[float] = batch["x"][:, 0].tolist()
    return values


def until(true: Callable[[], bool]) -> None:
    """Come back when it is true; there is no other sign of a thread having begun to wait."""
    end_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end_s, "never came true"
        threading.Event().wait(0.0005)


def due(in_s: float) -> Call:
    return Call(deadline_s=time.monotonic() + in_s)


class Busy:
    """A batcher whose engine is held by one request, behind which others are put in order."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        engine: FakeEngine,
        max_batch: int = 1,
        max_queue: int = 64,
        on_run: Callable[[Run], None] | None = None,
    ) -> None:
        self.batcher = Batcher(engine, ModelSettings(max_batch=max_batch, max_queue=max_queue), on_run=on_run)
        self._pool = pool
        engine.hold()
        self.first = pool.submit(self.batcher.run, x(0), Call())
        assert engine.started.acquire(timeout=LIMIT_S)

    def queue(self, inputs: Batch, call: Call | None = None) -> Future[RunResult]:
        before = self.batcher.waiting
        future = self._pool.submit(self.batcher.run, inputs, call or Call())
        until(lambda: self.batcher.waiting == before + 1 or future.done())
        return future


def test_an_idle_engine_is_asked_at_once_in_the_caller_s_own_thread() -> None:
    threads = []

    def answer(batch: Batch) -> dict[str, Array]:
        threads.append(threading.current_thread())
        return {"y": batch["x"] * 2}

    ran = Batcher(FakeEngine(answer), ModelSettings(max_batch=8)).run(x(1), Call())
    assert threads == [threading.current_thread()]
    assert ran.outputs["y"].tolist() == [[2, 2]]
    assert ran.queue_s < 1
    assert ran.compute_s >= 0


def test_a_batch_forms_while_the_engine_is_busy_and_each_gets_its_rows(
    pool: ThreadPoolExecutor, engine: FakeEngine
) -> None:
    busy = Busy(pool, engine, max_batch=8)
    futures = [busy.queue(x(1)), busy.queue(x(2, 3)), busy.queue(x(4))]
    engine.let_go()
    answers = [future.result(LIMIT_S).outputs["y"][:, 0].tolist() for future in futures]
    assert answers == [[2], [4, 6], [8]]
    assert [firsts(batch) for batch in engine.batches] == [[0], [1, 2, 3, 4]]


def test_a_batch_is_no_larger_than_the_limit(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    busy = Busy(pool, engine, max_batch=2)
    futures = [busy.queue(x(value)) for value in (1, 2, 3)]
    engine.let_go()
    for future in futures:
        future.result(LIMIT_S)
    assert [firsts(batch) for batch in engine.batches] == [[0], [1, 2], [3]]


def test_the_most_urgent_goes_first_and_equals_in_the_order_of_arrival(
    pool: ThreadPoolExecutor, engine: FakeEngine
) -> None:
    busy = Busy(pool, engine)
    same = due(5)
    futures = [busy.queue(x(1)), busy.queue(x(2), same), busy.queue(x(3), same), busy.queue(x(4), due(4))]
    engine.let_go()
    for future in futures:
        future.result(LIMIT_S)
    assert [firsts(batch)[0] for batch in engine.batches] == [0, 4, 2, 3, 1]


def test_no_deadline_is_not_for_ever_behind_those_with_one(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    busy = Busy(pool, engine)
    patient = busy.queue(x(1))
    later = busy.queue(x(2), due(3600))
    engine.let_go()
    patient.result(LIMIT_S)
    later.result(LIMIT_S)
    assert [firsts(batch)[0] for batch in engine.batches] == [0, 1, 2]


def test_instances_run_at_the_same_time(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    batcher = Batcher(engine, ModelSettings(instances=2))
    engine.hold()
    futures = [pool.submit(batcher.run, x(value), Call()) for value in (1, 2)]
    assert engine.started.acquire(timeout=LIMIT_S)
    assert engine.started.acquire(timeout=LIMIT_S)
    engine.let_go()
    for future in futures:
        future.result(LIMIT_S)


def test_a_passed_deadline_costs_no_run() -> None:
    engine = FakeEngine()
    with pytest.raises(DeadlineExceeded, match="has passed"):
        Batcher(engine).run(x(1), Call(deadline_s=time.monotonic() - 1))
    assert engine.batches == []


def test_a_deadline_that_cannot_be_met_any_more_costs_no_run() -> None:
    now_s = [100.0]

    def answer(batch: Batch) -> dict[str, Array]:
        now_s[0] += 0.05
        return {"y": batch["x"]}

    engine = FakeEngine(answer)
    batcher = Batcher(engine, clock=lambda: now_s[0])
    for _ in range(3):
        batcher.run(x(1), Call())
    with pytest.raises(DeadlineExceeded, match=r"20\.0 ms are left and the model takes 50\.0 ms"):
        batcher.run(x(2), Call(deadline_s=now_s[0] + 0.02))
    batcher.run(x(3), Call(deadline_s=now_s[0] + 0.06))
    assert [firsts(batch) for batch in engine.batches] == [[1], [1], [1], [3]]


def test_a_deadline_that_passes_in_the_queue_is_answered_then_and_never_run(
    pool: ThreadPoolExecutor, engine: FakeEngine
) -> None:
    busy = Busy(pool, engine)
    future = busy.queue(x(1), due(0.05))
    with pytest.raises(DeadlineExceeded, match="before the model answered"):
        future.result(LIMIT_S)
    assert busy.batcher.waiting == 0
    engine.let_go()
    busy.first.result(LIMIT_S)
    assert len(engine.batches) == 1


def test_a_deadline_that_passes_while_its_batch_runs_does_not_hold_the_caller(pool: ThreadPoolExecutor) -> None:
    gate = threading.Event()

    def answer(batch: Batch) -> dict[str, Array]:
        assert len(batch["x"]) == 1 or gate.wait(LIMIT_S)
        return {"y": batch["x"] * 2}

    engine = FakeEngine(answer)
    busy = Busy(pool, engine, max_batch=4)
    early, late, patient = busy.queue(x(1), due(0.9)), busy.queue(x(2), due(1.0)), busy.queue(x(3))
    engine.let_go()
    for hasty in (early, late):
        with pytest.raises(DeadlineExceeded, match="before the model answered"):
            hasty.result(LIMIT_S)
    assert not patient.done()
    gate.set()
    assert patient.result(LIMIT_S).outputs["y"].tolist() == [[6, 6]]
    assert [firsts(batch) for batch in engine.batches] == [[0], [1, 2, 3]]


def test_a_batch_of_which_everybody_has_left_is_counted_and_the_next_one_runs(pool: ThreadPoolExecutor) -> None:
    gate = threading.Event()

    def answer(batch: Batch) -> dict[str, Array]:
        assert batch["x"][0, 0] != 1 or gate.wait(LIMIT_S)
        return {"y": batch["x"] * 2}

    engine = FakeEngine(answer)
    counted: list[int] = []
    busy = Busy(pool, engine, max_batch=2, on_run=lambda run: counted.append(run.rows))
    hasty = [busy.queue(x(1), due(0.5)), busy.queue(x(2), due(0.6))]
    engine.let_go()
    for one in hasty:
        with pytest.raises(DeadlineExceeded):
            one.result(LIMIT_S)
    waiting = busy.queue(x(3))
    gate.set()
    assert waiting.result(LIMIT_S).outputs["y"].tolist() == [[6, 6]]
    assert counted == [1, 2, 1]


def test_whatever_an_engine_raises_in_a_batch_its_place_goes_to_the_next(pool: ThreadPoolExecutor) -> None:
    def answer(batch: Batch) -> dict[str, Array]:
        if batch["x"][0, 0] == 1:
            raise SystemExit
        return {"y": batch["x"] * 2}

    engine = FakeEngine(answer)
    busy = Busy(pool, engine)
    futures = [busy.queue(x(1)), busy.queue(x(2))]
    engine.let_go()
    with pytest.raises(ModelFailed, match="interrupted"):
        futures[0].result(LIMIT_S)
    assert futures[1].result(LIMIT_S).outputs["y"].tolist() == [[4, 4]]


def test_what_waits_is_run_in_one_thread_after_the_other_run(pool: ThreadPoolExecutor) -> None:
    threads = []

    def answer(batch: Batch) -> dict[str, Array]:
        threads.append(threading.current_thread().name)
        return {"y": batch["x"] * 2}

    engine = FakeEngine(answer)
    busy = Busy(pool, engine)
    futures = [busy.queue(x(value)) for value in (1, 2, 3)]
    engine.let_go()
    for future in futures:
        future.result(LIMIT_S)
    assert len(set(threads[1:])) == 1
    assert threads[0] not in threads[1:]


def test_what_waits_runs_also_where_the_system_gives_no_more_threads(
    pool: ThreadPoolExecutor, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start {thread.name}")

    monkeypatch.setattr(batcher, "_threads", CallThreads(8, "fresh"))
    busy = Busy(pool, engine)
    futures = [busy.queue(x(1), due(LIMIT_S)), busy.queue(x(2), due(LIMIT_S))]  # so that they end at all
    monkeypatch.setattr(threading.Thread, "start", refuse)
    engine.let_go()
    assert [future.result(LIMIT_S).outputs["y"][0, 0] for future in futures] == [2, 4]
    batcher._threads.shutdown()


def test_a_caller_that_left_is_dropped_before_it_costs_anything(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    busy = Busy(pool, engine)
    gone = Call()
    left, other = busy.queue(x(1), gone), busy.queue(x(2))
    gone.cancelled.set()
    engine.let_go()
    with pytest.raises(CallerLeft):
        left.result(LIMIT_S)
    other.result(LIMIT_S)
    assert [firsts(batch) for batch in engine.batches] == [[0], [2]]


def test_a_caller_that_left_before_it_came_costs_nothing() -> None:
    engine = FakeEngine()
    call = Call()
    call.cancelled.set()
    with pytest.raises(CallerLeft):
        Batcher(engine).run(x(1), call)
    assert engine.batches == []


def test_a_full_queue_refuses_and_places_of_those_who_left_are_free_again(
    pool: ThreadPoolExecutor, engine: FakeEngine
) -> None:
    busy = Busy(pool, engine, max_queue=2)
    gone = Call()
    futures = [busy.queue(x(1), gone), busy.queue(x(2))]
    with pytest.raises(Refused, match="queue is full"):
        busy.batcher.run(x(3), Call())
    gone.cancelled.set()
    futures.append(pool.submit(busy.batcher.run, x(4), Call()))
    with pytest.raises(CallerLeft):
        futures[0].result(LIMIT_S)
    engine.let_go()
    assert [futures[place].result(LIMIT_S).outputs["y"][0, 0] for place in (1, 2)] == [4, 8]


def test_one_bad_row_does_not_harm_its_neighbours(pool: ThreadPoolExecutor) -> None:
    def answer(batch: Batch) -> dict[str, Array]:
        if (batch["x"] == 13).any():
            raise ModelFailed("thirteen")
        return {"y": batch["x"] * 2}

    engine = FakeEngine(answer)
    busy = Busy(pool, engine, max_batch=8)
    futures = [busy.queue(x(value)) for value in (1, 13, 3)]
    engine.let_go()
    assert futures[0].result(LIMIT_S).outputs["y"][0, 0] == 2
    assert futures[2].result(LIMIT_S).outputs["y"][0, 0] == 6
    with pytest.raises(ModelFailed, match="thirteen"):
        futures[1].result(LIMIT_S)
    assert [firsts(batch) for batch in engine.batches] == [[0], [1, 13, 3], [1], [13], [3]]


def test_after_an_error_the_instance_is_free_again() -> None:
    def answer(batch: Batch) -> dict[str, Array]:
        if batch["x"][0, 0] == 13:
            raise ZeroDivisionError
        return {"y": batch["x"] * 2}

    batcher = Batcher(FakeEngine(answer))
    with pytest.raises(ZeroDivisionError):
        batcher.run(x(13), Call())
    assert batcher.run(x(1), Call()).outputs["y"][0, 0] == 2


def test_a_model_whose_rows_get_mixed_up_answers_one_by_one(pool: ThreadPoolExecutor) -> None:
    engine = FakeEngine(lambda batch: {"y": batch["x"].sum(axis=0, keepdims=True)})
    busy = Busy(pool, engine, max_batch=8)
    futures = [busy.queue(x(1)), busy.queue(x(2))]
    engine.let_go()
    assert [future.result(LIMIT_S).outputs["y"].tolist() for future in futures] == [[[1, 1]], [[2, 2]]]


def test_different_trailing_shapes_never_share_a_batch(pool: ThreadPoolExecutor) -> None:
    spec = (TensorSpec("x", "FP32", (-1, -1)),)
    engine = FakeEngine(inputs=spec, outputs=(TensorSpec("y", "FP32", (-1, -1)),))
    busy = Busy(pool, engine, max_batch=8)
    wide = {"x": np.ones((1, 3), np.float32)}
    futures = [busy.queue(x(1)), busy.queue(wide), busy.queue(x(2))]
    engine.let_go()
    assert [future.result(LIMIT_S).outputs["y"].shape for future in futures] == [(1, 2), (1, 3), (1, 2)]
    assert [batch["x"].shape for batch in engine.batches] == [(1, 2), (2, 2), (1, 3)]


def test_more_rows_than_a_batch_holds_run_in_pieces() -> None:
    engine = FakeEngine()
    ran = Batcher(engine, ModelSettings(max_batch=2)).run(x(1, 2, 3, 4, 5), Call())
    assert ran.outputs["y"][:, 0].tolist() == [2, 4, 6, 8, 10]
    assert [firsts(batch) for batch in engine.batches] == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize(
    ("priority", "order", "waited_s"),
    [(10, [[1, 2], [9], [3, 4], [5]], 1.0), (11, [[1, 2], [3, 4], [5], [9]], 0.0)],
)
def test_between_its_pieces_a_long_request_gives_its_slot_to_what_is_no_less_urgent(
    pool: ThreadPoolExecutor, priority: int, order: list[list[float]], waited_s: float
) -> None:
    now_s = [0.0]

    def take_a_second(batch: Batch) -> dict[str, Array]:
        now_s[0] += 1.0
        return fine(batch)

    engine = FakeEngine(take_a_second)
    # It comes back into a queue that may be full.
    batcher = Batcher(engine, ModelSettings(max_batch=2, max_queue=1), clock=lambda: now_s[0])
    engine.hold()
    long = pool.submit(batcher.run, x(1, 2, 3, 4, 5), Call())
    assert engine.started.acquire(timeout=LIMIT_S)
    short = pool.submit(batcher.run, x(9), Call(), priority)
    until(lambda: batcher.waiting == 1)
    engine.let_go()
    assert short.result(LIMIT_S).outputs["y"].tolist() == [[18, 18]]
    ran = long.result(LIMIT_S)
    assert ran.outputs["y"][:, 0].tolist() == [2, 4, 6, 8, 10]
    assert (ran.batch_rows, ran.queue_s, ran.compute_s) == (5, waited_s, 3.0)
    assert [firsts(batch) for batch in engine.batches] == order


def test_a_long_request_whose_caller_leaves_while_it_waits_for_its_turn_runs_no_further(
    pool: ThreadPoolExecutor,
) -> None:
    call = Call()

    def leave(batch: Batch) -> dict[str, Array]:
        if batch["x"][0, 0] == 9:
            call.cancelled.set()
        return fine(batch)

    engine = FakeEngine(leave)
    batcher = Batcher(engine, ModelSettings(max_batch=2))
    engine.hold()
    long = pool.submit(batcher.run, x(1, 2, 3, 4, 5), call)
    assert engine.started.acquire(timeout=LIMIT_S)
    short = pool.submit(batcher.run, x(9), Call())
    until(lambda: batcher.waiting == 1)
    engine.let_go()
    short.result(LIMIT_S)
    with pytest.raises(CallerLeft):
        long.result(LIMIT_S)
    assert [firsts(batch) for batch in engine.batches] == [[1, 2], [9]]


def test_without_batches_a_request_runs_whole() -> None:
    engine = FakeEngine()
    Batcher(engine).run(x(1, 2, 3), Call())
    assert [firsts(batch) for batch in engine.batches] == [[1, 2, 3]]


def test_a_model_without_rows_never_batches(pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    spec = TensorSpec("x", "FP32", (1, 2))
    engine = FakeEngine(inputs=(spec,), outputs=(TensorSpec("y", "FP32", (1, 2)),))
    busy = Busy(pool, engine, max_batch=8)
    futures = [busy.queue(x(1)), busy.queue(x(2))]
    engine.let_go()
    for future in futures:
        future.result(LIMIT_S)
    assert [firsts(batch) for batch in engine.batches] == [[0], [1], [2]]
    assert caplog.text == ""  # no batch was tried either


def test_unequal_numbers_of_rows_cannot_be_batched() -> None:
    specs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("z", "FP32", (-1, 2)))
    batcher = Batcher(FakeEngine(inputs=specs), ModelSettings(max_batch=2))
    with pytest.raises(InvalidRequest, match="different numbers of rows"):
        batcher.run({**x(1), "z": np.ones((2, 2), np.float32)}, Call())


def test_many_callers_at_once_all_get_their_own_answer(pool: ThreadPoolExecutor) -> None:
    batcher = Batcher(FakeEngine(), ModelSettings(instances=2, max_batch=4, max_queue=1000))
    futures = {value: pool.submit(batcher.run, x(value), Call()) for value in range(500)}
    assert all(future.result(LIMIT_S).outputs["y"][0, 0] == 2 * value for value, future in futures.items())
    assert batcher.waiting == 0


def fine(batch: Batch) -> dict[str, Array]:
    return {"y": batch["x"] * 2}


def failing(batch: Batch) -> dict[str, Array]:
    raise ModelFailed("always")


@pytest.mark.parametrize(("answer", "left_s"), [(fine, 5.0), (failing, 5.0), (fine, -1.0)])
def test_the_tensors_of_a_request_are_freed_with_its_answer(
    answer: Callable[[Batch], dict[str, Array]], left_s: float
) -> None:
    engine = FakeEngine(answer)
    inputs = x(1)
    alive = weakref.ref(inputs["x"])
    gc.disable()  # a reference cycle would keep them until the next collection
    try:
        with contextlib.suppress(ModelFailed, DeadlineExceeded):
            Batcher(engine, ModelSettings(max_batch=4)).run(inputs, due(left_s))
        del inputs
        engine.batches.clear()
        assert alive() is None
    finally:
        gc.enable()


def test_a_long_request_that_becomes_hopeless_stops_between_its_pieces() -> None:
    call = Call()

    def leave(batch: Batch) -> dict[str, Array]:
        call.cancelled.set()
        return fine(batch)

    engine = FakeEngine(leave)
    with pytest.raises(CallerLeft):
        Batcher(engine, ModelSettings(max_batch=2)).run(x(1, 2, 3, 4, 5), call)
    assert [firsts(batch) for batch in engine.batches] == [[1, 2]]


def test_where_a_batch_fails_a_member_whose_caller_has_left_is_not_run_alone(pool: ThreadPoolExecutor) -> None:
    gone = Call()

    def fail(batch: Batch) -> dict[str, Array]:
        if len(batch["x"]) > 1:
            gone.cancelled.set()
            raise ModelFailed("one row is bad")
        return fine(batch)

    engine = FakeEngine(fail)
    busy = Busy(pool, engine, max_batch=8)
    stays, leaves = busy.queue(x(1)), busy.queue(x(2), gone)
    engine.let_go()
    assert firsts({"x": stays.result(LIMIT_S).outputs["y"]}) == [2]
    with pytest.raises(CallerLeft):
        leaves.result(LIMIT_S)
    assert [firsts(batch) for batch in engine.batches] == [[0], [1, 2], [1]]


def test_check_says_before_any_work_what_run_would_say(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    busy = Busy(pool, engine, max_queue=1)
    busy.batcher.check(Call())
    gone = Call()
    gone.cancelled.set()
    with pytest.raises(CallerLeft):
        busy.batcher.check(gone)
    with pytest.raises(DeadlineExceeded):
        busy.batcher.check(due(-1))
    waiting = busy.queue(x(1))
    with pytest.raises(Refused, match="queue is full"):
        busy.batcher.check(Call())
    engine.let_go()
    waiting.result(LIMIT_S)


def test_without_a_queue_only_free_instances_take_requests(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    busy = Busy(pool, engine, max_queue=0)
    with pytest.raises(Refused):
        busy.batcher.run(x(1), Call())
    engine.let_go()
    busy.first.result(LIMIT_S)
    assert busy.batcher.run(x(1), Call()).outputs["y"][0, 0] == 2


def test_a_model_that_gives_more_rows_than_it_got_is_refused() -> None:
    batcher.check_rows({"y": np.zeros((2, 3))}, 2)
    for wrong in (np.zeros((3, 3)), np.zeros((1, 3)), np.zeros(())):
        with pytest.raises(ModelFailed, match="expected 2"):
            batcher.check_rows({"y": wrong}, 2)


def test_tensors_of_different_types_never_share_a_batch(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    busy = Busy(pool, engine, max_batch=8)
    futures = [busy.queue(x(1)), busy.queue({"x": np.ones((1, 2), np.float64)}), busy.queue(x(2))]
    engine.let_go()
    with pytest.raises(InvalidRequest, match="float64"):
        futures[1].result(LIMIT_S)
    assert [futures[index].result(LIMIT_S).batch_rows for index in (0, 2)] == [2, 2]


def test_waiting_and_computing_are_told_apart() -> None:
    now_s = 100.0

    def answer(batch: Batch) -> dict[str, Array]:
        nonlocal now_s
        now_s += 5.0
        return {"y": batch["x"]}

    ran = Batcher(FakeEngine(answer), clock=lambda: now_s).run(x(1), Call())
    assert (ran.queue_s, ran.compute_s) == (0.0, 5.0)


def test_a_batch_whose_rows_cannot_be_merged_does_not_hold_the_one_before(
    pool: ThreadPoolExecutor, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = batcher.merge

    def fail(parts: Sequence[Batch], *others: Any) -> Batch:
        if 3.0 in [firsts(part)[0] for part in parts] and len(parts) > 1:
            raise MemoryError
        return merge(parts, *others)

    monkeypatch.setattr(batcher, "merge", fail)
    busy = Busy(pool, engine, max_batch=2)
    futures = [busy.queue(x(value)) for value in (1, 2, 3, 4)]
    engine.let_go()
    assert [future.result(LIMIT_S).outputs["y"][0, 0] for future in futures] == [2, 4, 6, 8]


def test_the_time_until_the_last_of_a_batch_goes_on_is_counted_without_waiting_and_run(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    delays_s: list[float] = []

    def answer(batch: Batch) -> dict[str, Array]:
        nonlocal now_s
        now_s += 5.0
        return {"y": batch["x"]}

    engine = FakeEngine(answer)
    engine.hold()
    it = Batcher(engine, ModelSettings(max_batch=8), clock=lambda: now_s)
    monkeypatch.setattr(it._device, "observe_delay", lambda _, delay_s, __: delays_s.append(delay_s))
    futures = [pool.submit(it.run, x(0), Call())]
    assert engine.started.acquire(timeout=LIMIT_S)
    futures += [pool.submit(it.run, x(value), Call()) for value in (1, 2)]
    until(lambda: it.waiting == 2)
    engine.let_go()
    for future in futures:
        future.result(LIMIT_S)
    assert delays_s == [0.0]


def test_who_is_to_tell_its_batch_stays_though_its_deadline_passes_just_then(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Batcher(FakeEngine())
    late = QueuedRequest(x(1), Call(deadline_s=0.0), 1, None, lambda _: (), 0.0)
    for can_leave in (True, False):
        monkeypatch.setattr(it._device, "leave", lambda *_, can_leave=can_leave: can_leave)
        with pytest.raises(DeadlineExceeded) if can_leave else contextlib.nullcontext():
            it._await_wake_up(late, threading.Event())


class Endless(FakeEngine):
    """Its runs of zeros go on until they are stopped; `stops` has an event for each run."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[threading.Event] = []

    def stoppable_run(self) -> StoppableRun:
        stopped = threading.Event()
        self.stops.append(stopped)

        def run(batch: Batch) -> dict[str, Array]:
            if firsts(batch)[0]:
                return self.run(batch)
            self.started.release()
            assert stopped.wait(LIMIT_S)
            raise ModelFailed("stopped")

        return run, stopped.set


@pytest.mark.parametrize("leaves", [False, True])
def test_a_run_that_nobody_waits_for_is_stopped_after_a_while_and_its_caller_is_told_why(
    pool: ThreadPoolExecutor, leaves: bool
) -> None:
    """However long somebody has waited for it before: it may be a model's first run, or that of a patient caller."""
    now_s, engine = [100.0], Endless()
    batcher = Batcher(engine, clock=lambda: now_s[0])
    call = Call() if leaves else Call(deadline_s=151.0)
    future = pool.submit(batcher.run, x(0), call)
    assert engine.started.acquire(timeout=LIMIT_S)
    now_s[0] = 150.0
    batcher.stop_abandoned()
    now_s[0] = 152.0
    if leaves:
        call.cancelled.set()
    for at_s, is_stopped in ((152.0, False), (161.9, False), (162.1, True)):
        now_s[0] = at_s
        batcher.stop_abandoned()
        assert engine.stops[0].is_set() is is_stopped
    with pytest.raises(CallerLeft if leaves else DeadlineExceeded):
        future.result(LIMIT_S)
    assert batcher.run(x(1), Call()).outputs["y"].tolist() == [[2, 2]]


def test_a_run_goes_on_while_one_of_its_callers_waits(pool: ThreadPoolExecutor) -> None:
    now_s, engine = [100.0], Endless()
    batcher = Batcher(engine, ModelSettings(max_batch=4), clock=lambda: now_s[0])
    engine.hold()
    first = pool.submit(batcher.run, x(1), Call())
    assert engine.started.acquire(timeout=LIMIT_S)
    gone, there = Call(), Call()
    futures = [pool.submit(batcher.run, x(0), call) for call in (gone, there)]
    until(lambda: batcher.waiting == 2)
    engine.let_go()
    first.result(LIMIT_S)
    assert engine.started.acquire(timeout=LIMIT_S)
    for call in (gone, there):
        assert not engine.stops[1].is_set()
        call.cancelled.set()
        for _ in range(2):
            batcher.stop_abandoned()
            now_s[0] += 20.0
    assert engine.stops[1].is_set()
    for future in futures:
        with pytest.raises(CallerLeft):
            future.result(LIMIT_S)
