"""`workers: auto` beside the two choices that a person would write: one process, and one for each core.

    python -m tests.benchmarks.workers_auto [--rounds 9] [--models 0 1 2 3 4] [--only rates|starts]

Five models from 1 kB to 602 kB a request and 0.1 to 40 ms a run, eight connections of `h2load`. A round asks the three
services in turn; shown is the median, the least and the most of the ratio of `auto` to the better of the two others,
and, as a check of the measurement itself, to the one that is configured alike. Then each round starts a service with
`auto` and one with its choice written by hand: shown is how much longer the first takes until it is ready.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import numpy as np
from onnx import helper

from tests.benchmarks.quiet import Quiet
from tests.benchmarks.triton_bench import h2load
from tests.benchmarks.triton_bench.work import SERVICE
from tests.faults.programs import UPWELL, Program
from tests.unit.models_for_tests import save, tensor
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.tensors import Array

LOAD = h2load.Load("8 connections", 8, 1)
CHOICES = ("1", str(os.cpu_count()), "auto")
AUTO = CHOICES[-1]
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Model:
    """A chain of `layers` matrix products on the first `width` of `features` numbers; `title` has what a run takes."""

    title: str
    features: int
    layers: int
    width: int = 256

    def write(self, root: Path) -> Path:
        """A repository with it alone."""
        file = root / "models" / "chain" / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        constants: dict[str, Array] = {
            "start": np.array([0]), "end": np.array([self.width]), "axis": np.array([1]),
            "weights": np.eye(self.width, dtype=np.float32),
        }  # fmt: skip
        nodes = [helper.make_node("Slice", ["x", "start", "end", "axis"], ["h0"])]
        nodes += [helper.make_node("MatMul", [f"h{n}", "weights"], [f"h{n + 1}"]) for n in range(self.layers)]
        last = f"h{self.layers}"
        save(file, nodes, [tensor("x", ("rows", self.features))], [tensor(last, ("rows", self.width))], constants)
        return root


MODELS = (
    Model("1 kB, 0.1 ms", 256, 40), Model("66 kB, 0.6 ms", 16_384, 200), Model("602 kB, 0.1 ms", 150_528, 40),
    Model("602 kB, 5 ms", 150_528, 1600), Model("602 kB, 40 ms", 150_528, 250, 1024),
)  # fmt: skip


def rate(address: str, body: Path, message: bytes, calls: int) -> float:
    """Answers a second."""
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{SERVICE}/ModelInfer")
        answer = call(message, timeout=30)
    return h2load.run(f"http://{address}/{SERVICE.strip('/')}/ModelInfer", body, LOAD, calls, len(answer) + 5).per_s


def spread(ratios: Sequence[float]) -> str:
    """For the line of a model."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def start_s(root: Path, workers: str) -> tuple[float, str]:
    """From the start of the process until it is ready, and what `auto` chose; it is killed then."""
    started_s = time.monotonic()
    with Program(["serve", "-c", str(root / f"{workers}.yaml")], [UPWELL]) as service:
        service.find(r"^serving on (\S+) ", 30.0)
        return time.monotonic() - started_s, chosen_by(service)


def chosen_by(service: Program) -> str:
    """How many workers `auto` took, as the log says."""
    return "".join(line.split("auto chose ")[1].split()[0] for line in service.lines if "auto chose" in line)


def started(root: Path, rounds: int, quiet: Quiet) -> str:
    """How long `auto` and its choice written by hand take to start."""
    chosen = start_s(root, AUTO)[1]
    start_s(root, chosen)  # the first of each reads files that the others find in memory
    times: dict[str, list[float]] = {chosen: [], AUTO: []}
    for number in range(rounds):
        for one in (chosen, AUTO) if number % 2 else (AUTO, chosen):
            times[one].append(quiet.measured(partial(start_s, root, one))[0])
    added = [auto - plain for auto, plain in zip(times[AUTO], times[chosen], strict=True)]
    return (
        f"ready after {spread(times[AUTO])} s, with {chosen} by hand after {spread(times[chosen])} s; "
        f"auto adds {spread(added)} s"
    )


def configured(model: Model, folder: Path) -> Path:
    """A repository with the model, and a configuration for each choice."""
    root = model.write(folder)
    serve: dict[str, object] = {"listen": ["127.0.0.1:0"], "models": str(root / "models")}
    for workers in CHOICES:
        serve["workers"] = workers if workers == AUTO else int(workers)
        (root / f"{workers}.yaml").write_text(json.dumps({"version": 1, "serve": serve}))
    return root


def compared(model: Model, root: Path, rounds: int, seconds: float, quiet: Quiet) -> str:
    """What was chosen and measured of one model."""
    message = serialize_infer_request(InferRequest("chain", {"x": np.ones((1, model.features), np.float32)}, id="i"))
    (root / "body").write_bytes(h2load.body_of(message))
    with ExitStack() as running:
        addresses, chosen = {}, ""
        for workers in CHOICES:
            service = running.enter_context(Program(["serve", "-c", str(root / f"{workers}.yaml")], [UPWELL]))
            addresses[workers] = service.find(r"^serving on (\S+) ", 30.0)
            chosen += chosen_by(service)
        calls = dict.fromkeys(CHOICES, 64)
        for _ in range(2):  # the second time warmed up
            asked = {one: rate(at, root / "body", message, calls[one]) for one, at in addresses.items()}
            calls = {one: max(32, int(seconds * per_s)) for one, per_s in asked.items()}
        rates: dict[str, list[float]] = {one: [] for one in CHOICES}
        for number in range(rounds):
            for one in CHOICES[number % 3 :] + CHOICES[: number % 3]:
                ask = partial(rate, addresses[one], root / "body", message, calls[one])
                rates[one].append(quiet.measured(ask))
    best = max(CHOICES[:-1], key=lambda one: statistics.median(rates[one]))
    ratios = {one: [mine / theirs for mine, theirs in zip(rates[AUTO], rates[one], strict=True)] for one in CHOICES}
    medians = ", ".join(f"{one}: {statistics.median(rates[one]):.0f}/s" for one in CHOICES)
    alike = spread(ratios[chosen]) if chosen in ratios else "none"
    return f"{medians}; auto is {chosen}; ratio to the better {spread(ratios[best])}, to its like {alike}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--models", type=int, nargs="+", choices=range(len(MODELS)), default=range(len(MODELS)))
    parser.add_argument("--only", choices=("rates", "starts"))
    asked = parser.parse_args()
    quiet = Quiet(_PATIENCE_S)
    for model in (MODELS[number] for number in asked.models):
        with tempfile.TemporaryDirectory() as folder:
            root = configured(model, Path(folder))
            if asked.only != "starts":
                print(f"{model.title}: {compared(model, root, asked.rounds, asked.seconds, quiet)}", flush=True)
            if asked.only != "rates":
                print(f"{model.title}: {started(root, asked.rounds, quiet)}", flush=True)
    print(quiet.told())


if __name__ == "__main__":
    main()
