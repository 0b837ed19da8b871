"""The measurements: every server under the same load, in turn, round after round."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from tests.benchmarks.quiet import Quiet
from tests.benchmarks.triton_bench import h2load
from tests.benchmarks.triton_bench.h2load import ConnectionBroke, Load, LoadFailed, Sample
from tests.benchmarks.triton_bench.report import Cell, Samples
from tests.benchmarks.triton_bench.servers import INSTANCES, Launch
from tests.benchmarks.triton_bench.work import SERVICE, Work, check

HERE = Path(__file__).parent
BARE = "session alone"

LOADS = (
    Load("concurrency 1", 1, 1),
    Load("concurrency 8: 8 connections", 8, 1),
    Load("concurrency 8: one connection", 1, 8),
)
STREAMS = (1, 8)
BULK = 64
"""Messages that h2load sends on one stream without waiting for answers."""
BULK_TITLE = f"stream, {BULK} messages at a time"

_URL = f"http://{{}}{SERVICE}/{{}}"
_FIRST_CALLS, _LEAST_CALLS = 24, 40
_REPEATS = 2


@dataclass(frozen=True)
class Measurement:
    """What to do for one sample of `cell`."""

    cell: Cell
    take: Callable[[], Sample]


def measure(
    measurements: Sequence[Measurement],
    rounds: int,
    quiet: Quiet,
    tell: Callable[[str], None],
    broke: Callable[[str], None],
) -> Samples:
    """`rounds` samples of each: the servers of one load follow on each other, in the other order every other round.

    What a broken connection spoilt is measured again, up to twice; `broke` is told before whose connection it was.
    """
    samples: dict[Cell, list[Sample]] = {one.cell: [] for one in measurements}
    for number in range(rounds):
        for group in _by_load(measurements):
            for one in group if number % 2 == 0 else reversed(group):
                tell(f"round {number + 1} of {rounds}: {one.cell.work}, {one.cell.load}, {one.cell.server}")
                samples[one.cell].append(quiet.measured(lambda one=one: _taken(one, broke)))  # type: ignore[misc]  # a default
    return samples


def _taken(one: Measurement, broke: Callable[[str], None]) -> Sample:
    try:
        for _ in range(_REPEATS):
            try:
                return one.take()
            except ConnectionBroke:
                broke(one.cell.server)
        return one.take()
    except LoadFailed as error:
        raise LoadFailed(f"{one.cell.server}, {one.cell.work}, {one.cell.load}: {error}") from None


def _by_load(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.cell.work, one.cell.load), []).append(one)
    return list(groups.values())


def unary(work: Work, load: Load, launch: Launch, folder: Path, seconds: float) -> Measurement:
    """h2load on ModelInfer, for about `seconds`; checks before and after that the answers are right."""
    body = folder / f"{work.name}.body"
    body.write_bytes(h2load.body_of(work.request))
    url = _URL.format(launch.target, "ModelInfer")
    size = h2load.answer_size(_checked(launch, work))
    calls = _calibrated(lambda count: h2load.run(url, body, load, count, size), load.at_once, seconds)

    def take() -> Sample:
        sample = h2load.run(url, body, load, calls, size)
        _checked(launch, work)
        return sample

    return Measurement(Cell(work.name, load.title, launch.name), take)


def stream_title(at_once: int) -> str:
    """The load of our client with `at_once` requests under way."""
    return f"stream, {at_once} under way"


def bulk_stream(work: Work, launch: Launch, folder: Path, seconds: float) -> Measurement:
    """h2load on ModelStreamInfer: streams of `BULK` messages, one after the other; the sample is of messages."""
    body = folder / f"{work.name}.stream"
    body.write_bytes(h2load.body_of(work.request, BULK))
    url = _URL.format(launch.target, "ModelStreamInfer")
    size = h2load.answer_size(_checked(launch, work, stream=True), BULK)
    load = Load("", 1, 1)
    calls = _calibrated(lambda count: h2load.run(url, body, load, count, size), 1, seconds)

    def take() -> Sample:
        sample = h2load.run(url, body, load, calls, size)
        return Sample(sample.per_s * BULK, sample.p50_s, sample.p99_s)

    return Measurement(Cell(work.name, BULK_TITLE, launch.name), take)


def stream(work: Work, at_once: int, launch: Launch, folder: Path, seconds: float) -> Measurement:
    """Our client in a process of its own: one stream with `at_once` requests under way."""
    message = folder / f"{work.name}.message"
    message.write_bytes(work.request)
    size = _checked(launch, work, stream=True)
    script = str(HERE / "stream_client.py")
    command = [sys.executable, script, launch.target, str(message), str(at_once), str(seconds), str(size)]

    def take() -> Sample:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
        if ran.returncode:
            raise LoadFailed(f"{launch.name}: the client of the stream failed: {ran.stderr.strip()}")
        return Sample(**json.loads(ran.stdout))

    return Measurement(Cell(work.name, stream_title(at_once), launch.name), take)


def bare(work: Work, load: Load, folder: Path, seconds: float) -> Measurement:
    """The session without a server, in as many processes as the load can keep busy."""
    inputs = folder / f"{work.name}.npz"
    arrays: dict[str, Any] = dict(work.inputs)
    np.savez(inputs, **arrays)
    command = [sys.executable, str(HERE / "bare_session.py"), str(work.model), str(inputs), str(seconds)]
    count = min(load.at_once, INSTANCES)
    return Measurement(Cell(work.name, load.title, BARE), lambda: _bare(command, count, seconds))


def _bare(command: Sequence[str], count: int, seconds: float) -> Sample:
    with ExitStack() as stack:
        processes = [stack.enter_context(_piped(command)) for _ in range(count)]
        for process in processes:
            assert process.stdout
            if process.stdout.readline() != "ready\n":
                raise LoadFailed("the session alone cannot be run; its error is above")
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        told = [json.loads(process.communicate(timeout=seconds + 60)[0]) for process in processes]
    p50_s, p99_s = (float(np.mean([one[name] for one in told])) for name in ("p50_s", "p99_s"))
    return Sample(sum(one["per_s"] for one in told), p50_s, p99_s)


@contextmanager
def _piped(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _calibrated(run: Callable[[int], Sample], at_once: int, seconds: float) -> int:
    """How many calls take about `seconds`; finding that out warms up both sides."""
    first = run(max(_FIRST_CALLS, 2 * at_once))
    second = run(max(_LEAST_CALLS, round(first.per_s * min(seconds, 1.0))))
    return max(_LEAST_CALLS, round(second.per_s * seconds))


def _checked(launch: Launch, work: Work, *, stream: bool = False) -> int:
    with grpc.insecure_channel(launch.target) as channel:
        return check(channel, work, stream=stream)
