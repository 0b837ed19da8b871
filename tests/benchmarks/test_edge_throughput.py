"""Throughput of the device: the agent's edge path beside the bare runtime's, and two models on the same cores."""

from __future__ import annotations

import itertools
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from ai_edge_litert import interpreter as litert
from ai_edge_litert import schema_py_generated as schema
from onnx import helper

from tests.unit import models_for_tests, tflite_for_tests
from tests.unit.tflite_for_tests import Op, T
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.platform.cpu_cores import usable_cores
from upwell.shared.tensors import Array

ROUNDS = 60
ROUND_S = 0.12
WARM_UP = 2
REQUESTS = 300
SIZE, CHANNELS = 56, 32
TARGET = 0.97

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

Call = Callable[[], object]


def onnx_convolutions(directory: Path, layers: int) -> Path:
    """3 × 3 convolutions with ReLU in a row, FP32 [1, 32, 56, 56]."""
    rng = np.random.default_rng(0)
    nodes, constants = [], {}
    for layer in range(layers):
        constants[f"w{layer}"] = (rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) / 17).astype(np.float32)
        nodes.append(helper.make_node("Conv", [f"h{layer}", f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"h{layer + 1}"]))
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    shape = [1, CHANNELS, SIZE, SIZE]
    inputs, outputs = [models_for_tests.tensor("x", shape)], [models_for_tests.tensor("y", shape)]
    return models_for_tests.save(directory / "convolutions.onnx", nodes, inputs, outputs, constants)


def tflite_convolutions(directory: Path, layers: int, datatype: str) -> Path:
    """The same for TFLite, FP32 or INT8 [1, 56, 56, 32]."""
    rng = np.random.default_rng(0)
    is_int8 = datatype == "INT8"
    shape, quantization = (1, SIZE, SIZE, CHANNELS), (0.02, -128) if is_int8 else None
    tensors, operators = [T("x", shape, datatype, quantization=quantization)], []
    for layer in range(layers):
        weights = rng.standard_normal((CHANNELS, 3, 3, CHANNELS)) / 17
        data = np.clip(np.round(weights / 0.002), -127, 127).astype(np.int8) if is_int8 else weights.astype(np.float32)
        bias = np.zeros(CHANNELS, np.int32 if is_int8 else np.float32)
        source = len(tensors) - 1
        tensors += [
            T(f"w{layer}", (CHANNELS, 3, 3, CHANNELS), datatype, data, (0.002, 0) if is_int8 else None),
            T(f"b{layer}", (CHANNELS,), "INT32" if is_int8 else "FP32", bias, (0.02 * 0.002, 0) if is_int8 else None),
            T(f"h{layer + 1}", shape, datatype, quantization=quantization),
        ]
        options = schema.Conv2DOptionsT()
        options.padding, options.strideW, options.strideH = schema.Padding.SAME, 1, 1
        options.dilationWFactor = options.dilationHFactor = 1
        options.fusedActivationFunction = schema.ActivationFunctionType.RELU
        inputs, outputs = (source, source + 1, source + 2), (source + 3,)
        kind = schema.BuiltinOptions.Conv2DOptions
        operators.append(Op(schema.BuiltinOperator.CONV_2D, inputs, outputs, kind, options))
    path = directory / f"convolutions_{datatype.lower()}.tflite"
    return tflite_for_tests.save(path, tensors, operators, [0], [len(tensors) - 1])


def model_file(directory: Path, kind: str, layers: int) -> tuple[Path, Array]:
    """A model and an input for it."""
    if kind == "onnx FP32":
        return onnx_convolutions(directory, layers), np.ones((1, CHANNELS, SIZE, SIZE), np.float32)
    datatype = kind.split()[1]
    return tflite_convolutions(directory, layers, datatype), np.ones(
        (1, SIZE, SIZE, CHANNELS), np.int8 if datatype == "INT8" else np.float32
    )


class Bare:
    """The runtime's own objects with as many threads and runs at one time as the agent has, and nothing else."""

    def __init__(self, path: Path, threads: int, instances: int) -> None:
        self._free: queue.SimpleQueue[Callable[[Array], object]] = queue.SimpleQueue()
        if path.suffix == ".onnx":
            session = onnx_session(path, threads)
            for _ in range(instances):
                self._free.put(lambda x: session.run(None, {"x": x}))
        else:
            for _ in range(instances):
                self._free.put(tflite_call(path, threads))

    def infer(self, x: Array) -> object:
        run = self._free.get()
        try:
            return run(x)
        finally:
            self._free.put(run)


def onnx_session(path: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def tflite_call(path: Path, threads: int) -> Callable[[Array], object]:
    model = litert.Interpreter(model_path=str(path), num_threads=threads)
    model.allocate_tensors()
    source, target = model.get_input_details()[0]["index"], model.get_output_details()[0]["index"]

    def run(x: Array) -> object:
        model.set_tensor(source, x)
        model.invoke()
        return model.get_tensor(target)

    return run


@dataclass(frozen=True)
class Round:
    """So many runs per second of wall time, seconds of processor time for each, and how long each took."""

    per_s: float
    cpu_s: float
    taken_s: Sequence[float]


def played(calls: Sequence[Call], seconds: float = ROUND_S) -> Round:
    """Each call again and again in a thread of its own, after a few that do not count: another side ran before."""
    taken: list[list[float]] = [[] for _ in calls]
    rates = [0.0 for _ in calls]
    start = threading.Barrier(len(calls))

    def work(index: int) -> None:
        call, mine = calls[index], taken[index]
        for _ in range(WARM_UP):
            call()
        start.wait()
        begin_s = now_s = time.perf_counter()
        while now_s < begin_s + seconds:
            call()
            before_s, now_s = now_s, time.perf_counter()
            mine.append(now_s - before_s)
        rates[index] = len(mine) / (now_s - begin_s)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(calls))]
    cpu_s = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = list(itertools.chain.from_iterable(taken))
    runs = len(everything) + WARM_UP * len(calls)
    return Round(sum(rates), (time.process_time() - cpu_s) / runs, everything)


def layers_for(directory: Path, kind: str, threads: int, target_s: float = 0.005) -> int:
    """How many layers take about that long."""
    path, x = model_file(directory, kind, 4)
    run = Bare(path, threads, 1)
    fastest_s = min(played([lambda: run.infer(x)], 0.5).taken_s)
    return max(1, round(4 * target_s / fastest_s))


def spread(samples: Sequence[float]) -> str:
    """Median, and the 10th and 90th percentile."""
    tenths = statistics.quantiles(samples, n=10)
    return f"{statistics.median(samples):.4g} ({tenths[0]:.4g} to {tenths[-1]:.4g})"


def agent_of(directory: Path, models: Mapping[str, str]) -> AgentCore:
    """An agent with the edge side only; each model's edge section as YAML."""
    config = directory / "agent.yaml"
    config.write_text("models:\n" + "".join(f"  {name}: {{edge: {{{edge}}}}}\n" for name, edge in models.items()))
    return embedded_agent(config)


def in_turn(sides: Mapping[str, Sequence[Call]]) -> dict[str, list[Round]]:
    """Rounds of each side, in turn and in changing order, after one that does not count.

    Short ones, of two dozen runs: what else the machine does then mostly falls on neighbours alike.
    """
    rounds: dict[str, list[Round]] = {name: [] for name in sides}
    for calls in sides.values():
        played(calls)
    for index in range(ROUNDS):
        names = [*sides]
        for name in names[index % len(names) :] + names[: index % len(names)]:
            rounds[name].append(played(sides[name]))
    return rounds


def percentiles_ms(rounds: Sequence[Round], *which: float) -> list[float]:
    """Of the time that a request took."""
    taken = [second for one in rounds for second in one.taken_s]
    return [float(one) * 1e3 for one in np.percentile(taken, which)]


def compared(ours: Sequence[Round], theirs: Sequence[Round]) -> str:
    """Throughput round by round, and what is added in all threads."""
    ratios = [one.per_s / other.per_s for one, other in zip(ours, theirs, strict=True)]
    added_us = [1e6 * (one.cpu_s - other.cpu_s) for one, other in zip(ours, theirs, strict=True)]
    return f"{spread(ratios)}, processor time added {spread(added_us)} us"


def around_the_run(agent: AgentCore, x: Array, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a request takes besides the runtime's run within it, which a noisy machine blurs less than a difference."""
    edge = agent.models["m"].edge
    assert edge is not None
    run, runs_s, rests_s = edge.runtime.run, list[float](), list[float]()

    def timed(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        begin_s = time.perf_counter()
        outputs = run(inputs)
        runs_s.append(time.perf_counter() - begin_s)
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(edge.runtime, "run", timed)
        for _ in range(REQUESTS):
            begin_s = time.perf_counter()
            agent.infer("m", {"x": x})
            rests_s.append(time.perf_counter() - begin_s - runs_s[-1])
    shares = [run_s / (run_s + rest_s) for run_s, rest_s in zip(runs_s, rests_s, strict=True)]
    return f"{spread([1e6 * rest_s for rest_s in rests_s])} us around a run; the run's share {spread(shares)}"


KINDS = ["onnx FP32", "tflite FP32", "tflite INT8"]


@pytest.mark.parametrize(("threads", "instances"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_agent_beside_the_bare_runtime(
    kind: str,
    threads: int,
    instances: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the package's own objects, and beside the very runtime that the agent runs."""
    path, x = model_file(tmp_path, kind, layers_for(tmp_path, kind, threads))
    bare = Bare(path, threads, instances)
    lines = []
    with agent_of(tmp_path, {"m": f"file: {path.name}, threads: {threads}, instances: {instances}"}) as agent:
        edge = agent.models["m"].edge
        assert edge is not None
        own = partial(edge.runtime.run, {"x": x})
        calls: dict[str, Call] = {
            "package": partial(bare.infer, x),
            "runtime": own if instances > 1 else one_at_a_time(own),
            "agent": partial(agent.infer, "m", {"x": x}),
        }
        for callers in (1, 2):
            rounds = in_turn({name: [call] * callers for name, call in calls.items()})
            per_s = (f"{name} {statistics.median(one.per_s for one in of):.1f}/s" for name, of in rounds.items())
            lines.append(f"  {callers} callers: {', '.join(per_s)}")
            lines += [
                f"    agent to {name}: {compared(rounds['agent'], rounds[name])}" for name in ("runtime", "package")
            ]
        lines.append(f"  one caller: {around_the_run(agent, x, monkeypatch)}")
    with capsys.disabled():
        print(f"\n{kind}, {threads} threads x {instances} runs, {ROUNDS} rounds of {ROUND_S} s in turn, ", end="")
        print(f"target {TARGET}: median (p10 to p90)", *lines, sep="\n")
        print(f"  load of the machine over the last minute: {os.getloadavg()[0]:.1f} on {usable_cores()} cores")


def one_at_a_time(call: Call) -> Call:
    """As the scheduler of one instance lets it run."""
    lock = threading.Lock()

    def run() -> object:
        with lock:
            return call()

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_two_models_at_once(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a thread per core beside each with its share of the cores."""
    path, x = model_file(tmp_path, kind, layers_for(tmp_path, kind, 1))
    cores = usable_cores()
    with ExitStack() as stack:
        sides: dict[str, list[Call]] = {}
        for threads in (cores, max(1, cores // 2)):
            folder = tmp_path / str(threads)
            folder.mkdir()
            edge = f"file: {path}, threads: {threads}, instances: 1"
            agent = stack.enter_context(agent_of(folder, {"a": edge, "b": edge}))
            sides[f"{threads} threads each"] = [partial(agent.infer, model, {"x": x}) for model in ("a", "b")]
        both = in_turn(sides)
        alone = in_turn({name: calls[:1] for name, calls in sides.items()})
    with capsys.disabled():
        print(f"\n{kind}, two models on {cores} cores, one caller each, {ROUNDS} rounds in turn: median (p10 to p90)")
        for label, of in (("both at once", both), ("one of them alone", alone)):
            for name, rounds in of.items():
                p50_ms, p99_ms = percentiles_ms(rounds, 50, 99)
                per_s = spread([one.per_s for one in rounds])
                print(f"  {label}, {name}: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms, {per_s}/s")
        print(f"  load of the machine over the last minute: {os.getloadavg()[0]:.1f}")
