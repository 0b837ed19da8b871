"""Whether frames of several cameras gain by running as rows of one run: batches of 2 and 4 beside as many single runs.

    python -m tests.benchmarks.pipelines_batched [--rounds 15]

Per model and runtime, in interleaved rounds: `count` runs of one row after each other, and one run of `count` rows, on
the same pixels, with as many threads as the agent takes. The ratio is the time of the former by that of the latter, so
above 1 a batch gains; its median over the rounds, with the least and the most of them. What a frame would wait for the
others, and for their answers, is left out, so that a batch stands here better than it would in a pipeline.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx

from tests.models.mobilenet import build_mobilenet_v2
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.platform.cpu_cores import usable_cores
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS

COUNTS = (2, 4)
ROUND_S = 0.1
"""About so long each way of one round takes."""


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and files: the demo's models, and MobileNetV2 in fp32 and in int8."""
    edge = ASSETS / "edge"
    yield "cards (5 ms detector), ONNX Runtime", edge / "cards" / "model.onnx"
    yield "digits int8, ONNX Runtime", edge / "digits" / "model.onnx"
    yield "digits int8, LiteRT", edge / "digits" / "model.tflite"
    mobilenet = folder / "mobilenet.onnx"
    onnx.save(build_mobilenet_v2(dynamic_batch=True), mobilenet)
    yield "MobileNetV2 fp32, ONNX Runtime", mobilenet
    yield "MobileNetV2 int8, LiteRT", Path(__file__).parents[1] / "models" / "mobilenet_v2_int8.tflite"


Run: TypeAlias = Callable[[Mapping[str, Array]], object]


def opened(path: Path, options: RuntimeOptions, rows: int) -> tuple[Run, dict[str, Array]]:
    """A run of the model, and inputs of so many rows for it."""
    runtime = load_runtime(path, options)
    random = np.random.default_rng(1)
    inputs: dict[str, Array] = {}
    for spec in runtime.inputs:
        shape = (rows, *(max(1, size) for size in spec.shape[1:]))
        is_integer = spec.datatype in ("UINT8", "INT8")
        drawn = random.integers(0, 127, shape) if is_integer else random.random(shape)
        inputs[spec.name] = drawn.astype({"UINT8": np.uint8, "INT8": np.int8}.get(spec.datatype, np.float32))
    return runtime.run, inputs


def timed(run: Callable[[], object], times: int) -> float:
    """Seconds for one call."""
    began_s = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - began_s) / times


def measure(path: Path, count: int, rounds: int) -> tuple[float, list[float]]:
    """Milliseconds of a single run, and the ratio of each round; no ratio where the model takes one row alone."""
    one, row = opened(path, RuntimeOptions(threads=min(4, usable_cores())), 1)
    batch = count if path.suffix == ".tflite" else None  # whose shape is fixed when it is loaded

    def singly() -> None:
        for _ in range(count):
            one(row)

    def together() -> None:
        many(rows)

    try:
        many, rows = opened(path, RuntimeOptions(threads=min(4, usable_cores()), batch=batch), count)
        together()
    except (ConfigError, InvalidRequest):
        return 1e3 * statistics.median(timed(singly, 1) for _ in range(rounds)) / count, []
    times = max(1, round(ROUND_S / max(timed(singly, 3), timed(together, 3))))
    pairs = [(timed(singly, times), timed(together, times)) for _ in range(rounds)]
    return 1e3 * statistics.median(pair[0] for pair in pairs) / count, [a / b for a, b in pairs]


def main() -> int:
    """As told on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print("| model | one row | " + " | ".join(f"{count} rows together" for count in COUNTS) + " |")
    print("|---|---|" + "---|" * len(COUNTS))
    with tempfile.TemporaryDirectory() as folder:
        for name, path in models(Path(folder)):
            cells = []
            for count in COUNTS:
                single_ms, ratios = measure(path, count, rounds)
                spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else ""
                cells.append(spread or "takes one row alone")
            print(f"| {name} | {single_ms:.2f} ms | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
