"""Batches of exactly a bucket's rows, on engines that take nothing else; rows that differ; models on one device."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cloud.test_batcher import LIMIT_S, until, x
from tests.unit.models_for_tests import linear
from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.batching.device_scheduler import device_for
from upwell.cloud.batching.model_queue import RunResult
from upwell.cloud.engines.batch_checks_and_buckets import by_rows
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.onnx_engine import OnnxEngine
from upwell.shared.errors import CallerLeft, DeadlineExceeded, InvalidRequest, ModelFailed, Refused
from upwell.shared.oip.dataplane import Call
from upwell.shared.tensors import Array, TensorSpec

BUCKETS = (1, 4, 16)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.let_go()


class Held:
    """A batcher whose engine is held by one request, behind which others are put in order."""

    def __init__(self, pool: ThreadPoolExecutor, engine: FakeEngine, batcher: Batcher) -> None:
        self._pool, self._batcher = pool, batcher
        engine.hold()
        self.first = pool.submit(batcher.run, x(0), Call())
        assert engine.started.acquire(timeout=LIMIT_S)

    def submit(self, inputs: Mapping[str, Array], client: str, priority: int = 10) -> Future[RunResult]:
        return self._pool.submit(self._batcher.run, inputs, Call(client=client), priority)

    def queue(self, inputs: Mapping[str, Array], client: str = "", priority: int = 10) -> Future[RunResult]:
        before = self._batcher.waiting
        future = self.submit(inputs, client, priority)
        until(lambda: self._batcher.waiting == before + 1 or future.done())
        return future


def sizes(engine: FakeEngine) -> list[int]:
    return [len(batch["x"]) for batch in engine.batches]


def y(ran: Future[RunResult]) -> list[float]:
    values: list[float] = ran.result(LIMIT_S).outputs["y"][:, 0].tolist()
    return values


@pytest.mark.parametrize("rows", range(1, 40))
def test_every_run_has_exactly_a_bucket_s_rows(rows: int) -> None:
    engine = FakeEngine()
    ran = Batcher(engine, ModelSettings(buckets=BUCKETS)).run(x(*range(rows)), Call())
    assert ran.outputs["y"][:, 0].tolist() == [2 * value for value in range(rows)]
    assert set(sizes(engine)) <= set(BUCKETS)
    assert sum(sizes(engine)) - rows < min(size for size in BUCKETS if size >= min(sizes(engine)))


@given(st.integers(0, 50), st.sets(st.integers(1, 20), min_size=1).map(sorted))
def test_several_inputs_are_filled_up_alike_and_the_rows_come_back_in_order(rows: int, buckets: list[int]) -> None:
    def answer(batch: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": batch["x"] * 2 + batch["n"][:, None]}

    specs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("n", "INT64", (-1,)))
    engine = FakeEngine(answer, specs, buckets=tuple(buckets))  # which refuses every other number of rows
    values, counts = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2), np.arange(rows, dtype=np.int64)
    ran = Batcher(engine, ModelSettings(buckets=engine.buckets)).run({"x": values, "n": counts}, Call())
    np.testing.assert_array_equal(ran.outputs["y"], values * 2 + counts[:, None])
    assert len(engine.batches) == max(1, -(-rows // buckets[-1]))
    assert sizes(engine)[-1] == min(size for size in buckets if size >= ((rows - 1) % buckets[-1] + 1 if rows else 0))


def test_inputs_of_different_rows_are_refused(engine: FakeEngine) -> None:
    engine.inputs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("n", "INT64", (-1,)))
    with pytest.raises(InvalidRequest, match=r"different numbers of rows: \{'x': 2, 'n': 3\}"):
        Batcher(engine, ModelSettings(buckets=(4,))).run({**x(1, 2), "n": np.zeros(3, np.int64)}, Call())


def test_waiting_requests_are_run_together_and_each_gets_its_own_rows(
    pool: ThreadPoolExecutor, engine: FakeEngine
) -> None:
    held = Held(pool, engine, Batcher(engine, ModelSettings(buckets=BUCKETS)))
    futures = [held.queue(x(1)), held.queue(x(2, 3)), held.queue(x(*range(10, 16)))]
    engine.let_go()
    assert [y(future) for future in futures] == [[2], [4, 6], [20, 22, 24, 26, 28, 30]]
    assert sizes(engine) == [1, 16]
    assert engine.batches[1]["x"][9:].tolist() == [[0, 0]] * 7


def test_a_single_bucket_of_one_row_takes_requests_apart() -> None:
    engine = FakeEngine()
    assert Batcher(engine, ModelSettings(buckets=(1,))).run(x(1, 2, 3), Call()).outputs["y"].shape == (3, 2)
    assert sizes(engine) == [1, 1, 1]


def test_texts_are_filled_up_with_empty_ones() -> None:
    spec = (TensorSpec("x", "BYTES", (-1, 2)),)
    engine = FakeEngine(lambda batch: {"y": batch["x"]}, spec, (TensorSpec("y", "BYTES", (-1, 2)),))
    inputs = {"x": np.array([[b"a", b"b"], [b"c", b"d"]], object)}
    ran = Batcher(engine, ModelSettings(buckets=(4,))).run(inputs, Call())
    assert ran.outputs["y"].tolist() == inputs["x"].tolist()
    assert engine.batches[0]["x"][2:].tolist() == [[b"", b""]] * 2


def test_a_model_that_loses_rows_says_so() -> None:
    engine = FakeEngine(lambda batch: {"y": batch["x"][:1]})
    with pytest.raises(ModelFailed, match="output 'y' has 1 rows, expected 4"):
        Batcher(engine, ModelSettings(buckets=(4,))).run(x(1, 2), Call())


@pytest.mark.parametrize("rows", [1, 4])
def test_an_onnx_model_of_a_fixed_number_of_rows_serves_any(
    tmp_path: Path, pool: ThreadPoolExecutor, rows: int
) -> None:
    free = OnnxEngine.load("m", linear(tmp_path), ModelSettings())
    fixed = OnnxEngine.load("m", linear(tmp_path, rows=rows), ModelSettings())
    with pytest.raises(InvalidRequest):
        fixed.run({"x": np.zeros((rows + 1, 8), np.float32)})
    engine = by_rows(fixed, (rows,))
    assert [spec.shape for spec in (*engine.inputs, *engine.outputs)] == [(-1, 8), (-1, 3)]
    assert engine.buckets == (rows,)
    batcher = Batcher(engine, ModelSettings(buckets=(rows,)))
    requests = [np.random.default_rng(count).random((count, 8), np.float32) for count in range(1, 12)]
    answers = [pool.submit(batcher.run, {"x": request}, Call()) for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        expected = free.run({"x": request})["scores"]
        np.testing.assert_allclose(answer.result(LIMIT_S).outputs["scores"], expected, rtol=1e-5)
    engine.close()
    with pytest.raises(ModelFailed, match="closed"):
        fixed.run({"x": np.zeros((rows, 8), np.float32)})


def test_other_buckets_than_the_fixed_number_leave_the_engine_as_it_is(tmp_path: Path) -> None:
    fixed = OnnxEngine.load("m", linear(tmp_path, rows=4), ModelSettings())
    assert by_rows(fixed, ()) is fixed
    assert by_rows(fixed, (1, 4)) is fixed
    assert by_rows(fixed, (2,)) is fixed


def test_the_lower_priority_number_goes_first(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    held = Held(pool, engine, Batcher(engine))
    futures = [held.queue(x(value), priority=value) for value in (12, 10, 1, 11)]
    engine.let_go()
    for future in futures:
        future.result(LIMIT_S)
    assert [batch["x"][0, 0] for batch in engine.batches] == [0, 1, 10, 11, 12]


def test_who_has_few_waiting_takes_a_place_of_who_has_most(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    held = Held(pool, engine, Batcher(engine, ModelSettings(max_queue=3)))
    flood = [held.queue(x(value), "flood") for value in (1, 2, 3)]
    others = []
    for place in (2, 1):
        others.append(held.submit(x(4), f"other {place}"))
        with pytest.raises(Refused, match="took this one's place"):
            flood[place].result(LIMIT_S)
    late = held.queue(x(5), "late")  # each has one waiting by now
    with pytest.raises(Refused, match="queue is full"):
        late.result(LIMIT_S)
    engine.let_go()
    assert [y(future) for future in (flood[0], *others)] == [[2], [8], [8]]


def test_a_more_urgent_request_takes_the_place_of_its_own_client_s_least_urgent(
    pool: ThreadPoolExecutor, engine: FakeEngine
) -> None:
    held = Held(pool, engine, Batcher(engine, ModelSettings(max_queue=2)))
    low, mid = held.queue(x(1), "a", 9), held.queue(x(2), "a", 5)
    urgent = held.submit(x(3), "a", 1)
    with pytest.raises(Refused, match="took this one's place"):
        low.result(LIMIT_S)
    with pytest.raises(Refused, match="queue is full"):
        held.queue(x(4), "a", 5).result(LIMIT_S)
    engine.let_go()
    assert [y(future) for future in (mid, urgent)] == [[4], [6]]


def test_connections_from_one_address_are_one_client(pool: ThreadPoolExecutor, engine: FakeEngine) -> None:
    held = Held(pool, engine, Batcher(engine, ModelSettings(max_queue=2)))
    futures = [held.queue(x(port), f"ipv4:10.0.0.1:{port}") for port in (1, 2)]
    with pytest.raises(Refused, match="queue is full"):
        held.queue(x(3), "ipv4:10.0.0.1:3").result(LIMIT_S)
    engine.let_go()
    assert [y(future) for future in futures] == [[2], [4]]


def test_models_on_one_accelerator_take_turns_and_those_on_the_cpu_do_not(pool: ThreadPoolExecutor) -> None:
    under_way, most = 0, 0
    lock = threading.Lock()
    both = threading.Barrier(2)

    def answer(batch: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        value = batch["x"] * 2
        with lock:
            under_way -= 1
        return {"y": value}

    batchers = [Batcher(FakeEngine(answer), device=device_for(name)) for name in ("cuda", "cuda:0")]
    futures = [pool.submit(batcher.run, x(value), Call()) for value in range(100) for batcher in batchers]
    assert [y(future) for future in futures] == [[2 * value] for value in range(100) for _ in batchers]
    assert most == 1

    def meet(batch: Mapping[str, Array]) -> dict[str, Array]:
        both.wait(LIMIT_S)
        return {"y": batch["x"]}

    apart = [Batcher(FakeEngine(meet), device=device_for("cpu")) for _ in range(2)]
    together = [pool.submit(batcher.run, x(1), Call()) for batcher in apart]
    assert [y(future) for future in together] == [[1], [1]]


def test_devices_of_other_numbers_are_others() -> None:
    first = device_for("cuda:0")
    assert device_for("cuda") is first
    assert device_for("cuda:1") is not first
    assert device_for("cpu") is not device_for("cpu")


@pytest.mark.parametrize("buckets", [(), BUCKETS])
def test_whatever_becomes_of_calls_nothing_is_lost_and_every_place_is_free_again(
    pool: ThreadPoolExecutor, buckets: tuple[int, ...]
) -> None:
    def answer(batch: Mapping[str, Array]) -> dict[str, Array]:
        if (batch["x"] == 13).any():
            raise ModelFailed("thirteen")
        return {"y": batch["x"] * 2}

    device = device_for("xpu:7")
    batchers = [
        Batcher(
            FakeEngine(answer),
            ModelSettings(max_batch=16, buckets=buckets, max_queue=8, instances=count),
            device=device,
        )
        for count in (1, 2)
    ]

    def call(number: int) -> str:
        dice = random.Random(number)
        left_s = dice.choice([math.inf, 5.0, 0.002, 0.0])
        circumstances = Call(deadline_s=time.monotonic() + left_s, client=dice.choice("abc"))
        if dice.random() < 0.1:
            circumstances.cancelled.set()
        rows = dice.choice([1, 1, 2, 20])
        value = dice.choice([1.0, 2.0, 13.0])
        try:
            ran = dice.choice(batchers).run(x(*[value] * rows), circumstances, dice.choice([1, 10, 11]))
        except (Refused, DeadlineExceeded, CallerLeft) as error:
            return type(error).__name__
        except ModelFailed:
            assert value == 13
            return "ModelFailed"
        assert ran.outputs["y"].tolist() == [[2 * value] * 2] * rows
        assert value != 13
        return "answered"

    ended = Counter(pool.map(call, range(3000)))
    assert sum(ended.values()) == 3000
    assert ended["answered"]
    assert [batcher.waiting for batcher in batchers] == [0, 0]
    assert not device._running
    for batcher in batchers:
        assert batcher.run(x(1), Call()).outputs["y"].tolist() == [[2, 2]]


@pytest.mark.parametrize("buckets", [(), BUCKETS])
def test_long_rows_do_not_make_short_ones_look_hopeless(buckets: tuple[int, ...]) -> None:
    now_s = 0.0

    def answer(batch: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal now_s
        now_s += 0.001 * batch["x"].shape[1]
        return {"y": batch["x"]}

    specs = (TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, -1)),)
    batcher = Batcher(FakeEngine(answer, *specs), ModelSettings(max_batch=16, buckets=buckets), clock=lambda: now_s)
    long, short = ({"x": np.zeros((1, columns), np.float32)} for columns in (1000, 10))
    for _ in range(20):
        batcher.run(long, Call())
        assert batcher.run(short, Call(deadline_s=now_s + 0.1)).compute_s == pytest.approx(0.01)
    with pytest.raises(DeadlineExceeded, match=r"takes 1000\.0 ms"):
        batcher.run(long, Call(deadline_s=now_s + 0.1))
