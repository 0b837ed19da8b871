"""`workers: auto` beside the two choices that a person would write: one process, and one for each core.

    python -m tests.benchmarks.workers_auto [--rounds 5]

Five models from 1 kB to 602 kB a request and 0.1 to 40 ms a run, eight connections of `h2load`. A round asks the three
services in turn; shown is the median, the least and the most of the ratio of `auto` to the better of the two others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from onnx import helper

from tests.benchmarks.triton_bench import h2load
from tests.benchmarks.triton_bench.work import SERVICE
from tests.integration.cloud.serving import serving
from tests.unit.models_for_tests import save, tensor
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.tensors import Array

WIDTH = 256
LOAD = h2load.Load("8 connections", 8, 1)
CHOICES = ("1", str(os.cpu_count()), "auto")
AUTO = CHOICES[-1]


@dataclass(frozen=True)
class Model:
    """A chain of `layers` matrix products on the first `WIDTH` of `features` numbers."""

    features: int
    layers: int

    @property
    def title(self) -> str:
        """For the table."""
        return f"{4 * self.features / 1e3:.0f} kB, {self.layers} layers"

    def write(self, root: Path) -> Path:
        """A repository with it alone."""
        file = root / "models" / "chain" / "1" / "model.onnx"
        file.parent.mkdir(parents=True)
        constants: dict[str, Array] = {
            "start": np.array([0]), "end": np.array([WIDTH]), "axis": np.array([1]),
            "weights": np.eye(WIDTH, dtype=np.float32),
        }  # fmt: skip
        nodes = [helper.make_node("Slice", ["x", "start", "end", "axis"], ["h0"])]
        nodes += [helper.make_node("MatMul", [f"h{n}", "weights"], [f"h{n + 1}"]) for n in range(self.layers)]
        last = f"h{self.layers}"
        save(file, nodes, [tensor("x", ("rows", self.features))], [tensor(last, ("rows", WIDTH))], constants)
        return root


MODELS = (Model(256, 2), Model(256, 40), Model(16_384, 200), Model(150_528, 2), Model(150_528, 1600))


def rate(address: str, body: Path, message: bytes, calls: int) -> float:
    """Answers a second."""
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{SERVICE}/ModelInfer")
        answer = call(message, timeout=30)
    return h2load.run(f"http://{address}/{SERVICE.strip('/')}/ModelInfer", body, LOAD, calls, len(answer) + 5).per_s


def compared(model: Model, rounds: int, seconds: float) -> tuple[str, list[float]]:
    """What was chosen and measured of one model, and the ratio of each round."""
    message = serialize_infer_request(InferRequest("chain", {"x": np.ones((1, model.features), np.float32)}, id="i"))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        root = model.write(Path(folder))
        (root / "body").write_bytes(h2load.body_of(message))
        addresses, chosen = {}, ""
        for workers in CHOICES:
            serve: dict[str, object] = {"listen": ["127.0.0.1:0"], "models": str(root / "models")}
            serve = {**serve, "workers": workers if workers == AUTO else int(workers)}
            (root / f"{workers}.yaml").write_text(json.dumps({"version": 1, "serve": serve}))
            service = running.enter_context(serving("-c", root / f"{workers}.yaml"))
            addresses[workers] = service.address
            chosen += "".join(line.split("auto is ")[1] for line in service.lines if "auto is" in line)
        calls = {one: max(32, int(seconds * rate(at, root / "body", message, 64))) for one, at in addresses.items()}
        rates: dict[str, list[float]] = {one: [] for one in CHOICES}
        for number in range(rounds):
            for one in CHOICES[number % 3 :] + CHOICES[: number % 3]:
                rates[one].append(rate(addresses[one], root / "body", message, calls[one]))
    others = [rates[one] for one in CHOICES if one != AUTO]
    best = max(others, key=statistics.median)
    ratios = [mine / theirs for mine, theirs in zip(rates[AUTO], best, strict=True)]
    medians = ", ".join(f"{one}: {statistics.median(rates[one]):.0f}/s" for one in CHOICES)
    return f"{medians}; auto is {chosen}", ratios


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.8)
    asked = parser.parse_args()
    for model in MODELS:
        told, ratios = compared(model, asked.rounds, asked.seconds)
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
        print(f"{model.title}: {told}; ratio to the better {spread}", flush=True)


if __name__ == "__main__":
    main()
