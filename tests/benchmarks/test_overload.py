"""Overload and light load on a simulated device: 4 ms for a run and 0.45 ms for each row, at most 32, which sleeps.

The service is the real one without its sockets: `CloudService`, its queues, and the threads of its server, one for each
request under way. Requests come at random instants, whatever became of those before (open loop), each with 50 ms from
when it is handed over; how late that was is told beside, as a measure of the machine. The baseline runs the same
arrivals on the same device in the order in which they came, in batches as large as may be, and drops nothing. Nine
rounds in turn.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tests.unit.cloud.simulated_time import CAPACITY, LARGEST, pace_s
from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.service.cloud_service import CloudService
from upwell.cloud.service.model_loader import CloudModel
from upwell.cloud.workers.serving_process import AT_WORK
from upwell.shared.errors import UpwellError
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.platform.call_threads import CallThreads
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array

LIMIT_S = 0.05
ROUNDS, SECONDS = 9, 4.0
MAX_QUEUE = 64
REQUEST = InferRequest("m", {"x": np.ones((1, 2), np.float32)}, id="benchmark")


@dataclass(frozen=True)
class Answered:
    """How long a request took, infinity where it got no answer, and the engine's part of that."""

    took_s: float
    engine_s: float = math.nan

    @property
    def in_time(self) -> bool:
        return self.took_s <= LIMIT_S


def simulated_run(batch: Mapping[str, Array]) -> dict[str, Array]:
    """The simulated device at work. It sleeps to an instant, so that waking up late does not add up within a run."""
    end_s = time.monotonic() + pace_s(len(batch["x"]))
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(left_s)
    return {"y": batch["x"]}


def instants(load: float, seed: int) -> list[float]:
    dice = random.Random(seed)
    at_s, all_s = 0.0, []
    while at_s < SECONDS:
        at_s += dice.expovariate(load * CAPACITY)
        all_s.append(at_s)
    return all_s


def play(instants_s: Sequence[float], send: Callable[[float], None]) -> float:
    """Call `send` at each of the instants, with the time in the monotonic clock; the median of how late that was."""
    began_s = time.monotonic()
    late_s = []
    for at_s in instants_s:
        due_s = began_s + at_s
        if (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        sent_s = time.monotonic()
        late_s.append(sent_s - due_s)
        send(sent_s)
    return statistics.median(late_s)


def through_the_service(instants_s: Sequence[float]) -> tuple[list[Answered], float]:
    """The answers, and how late the requests were handed over (median)."""
    engine = FakeEngine(simulated_run)
    batcher = Batcher(engine, ModelSettings(max_batch=LARGEST, max_queue=MAX_QUEUE))
    processor = Processor(None, engine.inputs, engine.outputs, "onnx")
    settings = ModelSettings(max_batch=LARGEST, max_queue=MAX_QUEUE)
    service = CloudService([CloudModel("m", "1", "fake", "sha256:0", settings, engine, processor, batcher)])
    threads = LARGEST + MAX_QUEUE + 16  # as the server has
    free = threading.Semaphore(threads)
    answered: list[Answered] = []

    def infer(sent_s: float) -> None:
        try:
            answer = service.infer(REQUEST, Call(deadline_s=sent_s + LIMIT_S))
            engine_s = 1e-3 * float(answer.parameters["upwell.cloud_compute_ms"])
            answered.append(Answered(time.monotonic() - sent_s, engine_s))
        except UpwellError:
            answered.append(Answered(math.inf))
        finally:
            free.release()

    def send(sent_s: float) -> None:
        if free.acquire(blocking=False):
            pool.submit(infer, sent_s)
        else:
            answered.append(Answered(math.inf))

    pool = CallThreads(threads, "benchmark", AT_WORK)
    late_s = play(instants_s, send)
    pool.shutdown()
    return answered, late_s


def in_the_order_of_arrival(instants_s: Sequence[float]) -> list[Answered]:
    waiting: deque[float] = deque()
    come = threading.Semaphore(0)
    answered: list[Answered] = []
    row = REQUEST.inputs["x"]

    def serve() -> None:
        while len(answered) < len(instants_s):
            come.acquire()
            batch = [waiting.popleft()]
            while len(batch) < LARGEST and come.acquire(blocking=False):
                batch.append(waiting.popleft())
            simulated_run({"x": np.concatenate([row] * len(batch))})
            now_s = time.monotonic()
            answered.extend(Answered(now_s - sent_s) for sent_s in batch)

    def send(sent_s: float) -> None:
        waiting.append(sent_s)
        come.release()

    server = threading.Thread(target=serve)
    server.start()
    play(instants_s, send)
    server.join()
    return answered


@pytest.mark.benchmark
@pytest.mark.timeout(300)
def test_overload_at_120_percent(capsys: pytest.CaptureFixture[str]) -> None:
    shares: dict[str, list[tuple[float, float]]] = {"upwell": [], "FIFO": []}
    late_ms = []
    for number in range(ROUNDS):
        instants_s = instants(1.2, seed=number)
        ours, late_s = through_the_service(instants_s)
        fifo = in_the_order_of_arrival(instants_s)
        assert len(ours) == len(fifo) == len(instants_s)
        late_ms.append(1e3 * late_s)
        for name, answers in (("upwell", ours), ("FIFO", fifo)):
            late = sum(LIMIT_S < one.took_s < math.inf for one in answers) / len(answers)
            shares[name].append((sum(one.in_time for one in answers) / len(answers), late))
    with capsys.disabled():
        print(f"\nsimulated device, 120 % of {CAPACITY:.0f} rows/s, requests with 50 ms each, {ROUNDS} x {SECONDS:g} s")
        for name, rounds in shares.items():
            in_time, too_late = [one for one, _ in rounds], [one for _, one in rounds]
            spread = f"{statistics.median(in_time):.1%} ({min(in_time):.1%} to {max(in_time):.1%})"
            print(f"  {name:6} in time {spread}, too late {statistics.median(too_late):.1%}")
        print(f"  handed over late: median {statistics.median(late_ms):.2f} ms")


@pytest.mark.benchmark
@pytest.mark.timeout(300)
def test_light_load_of_10_percent(capsys: pytest.CaptureFixture[str]) -> None:
    medians_ms, late_ms = [], []
    for number in range(ROUNDS):
        answers, late_s = through_the_service(instants(0.1, seed=number))
        late_ms.append(1e3 * late_s)
        medians_ms.append(statistics.median(1e3 * (one.took_s - one.engine_s) for one in answers if one.engine_s > 0))
    with capsys.disabled():
        print(f"\nsimulated device, 10 % of {CAPACITY:.0f} rows/s, {ROUNDS} x {SECONDS:g} s")
        print(f"  beyond the engine's own time: median {statistics.median(medians_ms):.2f} ms", end="")
        print(
            f" ({min(medians_ms):.2f} to {max(medians_ms):.2f}); handed over late: {statistics.median(late_ms):.2f} ms"
        )
