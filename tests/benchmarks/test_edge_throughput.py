"""Throughput of the device: the agent's edge path beside the bare runtime's, and two models on the same cores."""

from __future__ import annotations

import itertools
import queue
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from upwell.edge import Agent
from upwell.edge.runtimes.options import usable_cores
from upwell.shared.tensors import Array

ROUNDS = 15
ROUND_S = 0.6
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
    """Each call again and again in a thread of its own."""
    taken: list[list[float]] = [[] for _ in calls]
    rates = [0.0 for _ in calls]
    start = threading.Barrier(len(calls))

    def work(index: int) -> None:
        call, mine = calls[index], taken[index]
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
    return Round(sum(rates), (time.process_time() - cpu_s) / len(everything), everything)


def layers_for(directory: Path, kind: str, target_s: float = 0.005) -> int:
    """How many layers take about that long on one thread."""
    path, x = model_file(directory, kind, 4)
    run = Bare(path, 1, 1)
    fastest_s = min(played([lambda: run.infer(x)], 0.5).taken_s)
    return max(1, round(4 * target_s / fastest_s))


def spread(samples: Sequence[float]) -> str:
    """Median, and the 10th and 90th percentile."""
    tenths = statistics.quantiles(samples, n=10)
    return f"{statistics.median(samples):.3f} ({tenths[0]:.3f} to {tenths[-1]:.3f})"


def agent_of(directory: Path, models: Mapping[str, str]) -> Agent:
    """An agent with the edge side only; each model's edge section as YAML."""
    config = directory / "agent.yaml"
    config.write_text("models:\n" + "".join(f"  {name}: {{edge: {{{edge}}}}}\n" for name, edge in models.items()))
    return Agent.from_config(config)


@pytest.mark.parametrize("kind", ["onnx FP32", "tflite FP32", "tflite INT8"])
def test_the_agent_beside_the_bare_runtime(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, x = model_file(tmp_path, kind, layers_for(tmp_path, kind))
    lines = []
    for (threads, instances), callers in itertools.product([(1, 2), (2, 1)], [1, 2]):
        bare = Bare(path, threads, instances)
        edge = f"file: {path.name}, threads: {threads}, instances: {instances}"
        with agent_of(tmp_path, {"m": edge}) as agent:
            sides: dict[str, Call] = {"bare": lambda: bare.infer(x), "agent": lambda: agent.infer("m", {"x": x})}
            rounds: dict[str, list[Round]] = {name: [] for name in sides}
            for name, call in sides.items():
                played([call] * callers)
            for index in range(ROUNDS):
                for name in sorted(sides, reverse=bool(index % 2)):
                    rounds[name].append(played([sides[name]] * callers))
        per_s = {name: statistics.median(one.per_s for one in of) for name, of in rounds.items()}
        pairs = list(zip(rounds["agent"], rounds["bare"], strict=True))
        added_us = [1e6 * (agent.cpu_s - bare.cpu_s) for agent, bare in pairs]
        lines.append(
            f"  {threads} threads x {instances} runs, {callers} callers: bare {per_s['bare']:.1f}/s, agent "
            f"{per_s['agent']:.1f}/s; agent to bare {spread([agent.per_s / bare.per_s for agent, bare in pairs])}; "
            f"processor time added per request {statistics.median(added_us):.0f} us"
        )
    with capsys.disabled():
        print(f"\n{kind}, {ROUNDS} rounds of {ROUND_S} s each in turn, target {TARGET}: median (p10 to p90)")
        print("\n".join(lines))


@pytest.mark.parametrize("kind", ["onnx FP32", "tflite FP32", "tflite INT8"])
def test_two_models_at_once(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a thread per core beside each with its share of the cores."""
    path, x = model_file(tmp_path, kind, layers_for(tmp_path, kind))
    cores = usable_cores()
    rounds: dict[int, list[Round]] = {}
    with ExitStack() as stack:
        agents = {}
        for threads in (cores, max(1, cores // 2)):
            folder = tmp_path / str(threads)
            folder.mkdir()
            edge = f"file: {path}, threads: {threads}, instances: 1"
            agents[threads] = stack.enter_context(agent_of(folder, {"a": edge, "b": edge}))
        for index in range(ROUNDS + 1):
            for threads, agent in sorted(agents.items(), reverse=bool(index % 2)):
                calls: list[Call] = [lambda a=agent, m=m: a.infer(m, {"x": x}) for m in ("a", "b")]  # type: ignore[misc]  # bound now
                result = played(calls)
                if index:
                    rounds.setdefault(threads, []).append(result)
    with capsys.disabled():
        print(f"\n{kind}, two models at once, one caller each, {cores} cores, {ROUNDS} rounds in turn")
        for threads, of in rounds.items():
            p50, p99 = np.percentile([second for one in of for second in one.taken_s], [50, 99]) * 1e3
            print(
                f"  {threads} threads each: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {spread([one.per_s for one in of])}/s"
            )
