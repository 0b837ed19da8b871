"""NVIDIA's perf_analyzer against the service, the agent and, where it is there, Triton Inference Server, in one run.

    PERF_ANALYZER=/path/to/perf_analyzer python -m tests.benchmarks.perf_analyzer [--rounds 3] [--modes gRPC HTTP]

The binary comes with `tritonclient` 2.34's wheel; it needs libb64 and libcudart (the wheel nvidia-cuda-runtime-cu12
has one, for LD_LIBRARY_PATH). Triton runs from the environment that `make bench-triton` builds, with the same session,
instances and model. A round asks each server in turn, in each mode; shown are medians over the rounds, with the least
and the most, and the median of the ratios to Triton.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tritonclient.grpc as triton

from tests.benchmarks.quiet import Quiet
from tests.benchmarks.triton_bench import servers
from tests.benchmarks.triton_bench.work import Work, prepare
from tests.faults.programs import UPWELL, Program

MODES = {
    "gRPC": ("-i", "grpc"),
    "gRPC, async": ("-i", "grpc", "--async"),
    "gRPC, stream": ("-i", "grpc", "--async", "--streaming"),
    "HTTP": ("-i", "http"),
}
CONCURRENCIES = (1, 8)
SERVICE, WORKERS, AGENT, TRITON = "service", "service, `workers: auto`", "agent", "Triton"
_LIMIT_S = 120.0
_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Target:
    """A server under way: where each protocol is served."""

    name: str
    grpc: str
    http: str


@dataclass(frozen=True)
class Figure:
    """What perf_analyzer reports of one mode at one concurrency: requests a second, and the 99th percentile."""

    rate: float
    p99_ms: float


@contextmanager
def upwell(name: str, command: Sequence[str | Path]) -> Iterator[Target]:
    """Our service or agent, which prints where it listens."""
    with Program([*map(str, command)], [UPWELL]) as program:
        grpc = program.find(r"^serving on (\S+:\d+)", 30.0)
        yield Target(name, grpc, program.find(r"HTTP on (\S+)", 30.0))


@contextmanager
def tritonserver(folder: Path, works: Sequence[Work]) -> Iterator[Target]:
    """The real one, with HTTP beside gRPC."""
    launch, port = servers.triton(folder, works, servers.find_environment()), servers.free_port()
    command = [one for one in launch.command if one != "--allow-http=false"]
    http = ["--http-address=127.0.0.1", f"--http-port={port}"]
    with servers.Server(dataclasses.replace(launch, command=[*command, *http]), works):
        yield Target(TRITON, launch.target, f"127.0.0.1:{port}")


def measured(binary: str, target: Target, work: Work, mode: str, interval_ms: int) -> dict[int, Figure]:
    """perf_analyzer's report of one mode, by concurrency."""
    with triton.InferenceServerClient(target.grpc) as client:
        is_batched = client.get_model_config(work.name).config.max_batch_size > 0
    rows = next(iter(work.inputs.values())).shape[0] if is_batched else 1
    shapes = [
        part
        for name, array in work.inputs.items()
        for part in ("--shape", f"{name}:{','.join(map(str, array.shape[is_batched:]))}")
    ]
    address = target.http if mode == "HTTP" else target.grpc
    first, last = CONCURRENCIES
    with tempfile.NamedTemporaryFile(suffix=".csv") as report:
        command = [binary, "-m", work.name, "-u", address, *MODES[mode], "-b", str(rows), *shapes, "-f", report.name]
        command += ["--concurrency-range", f"{first}:{last}:{last - first}", "-p", str(interval_ms), "-r", "8"]
        command += ["-s", "999", "--percentile", "99"]  # the rounds say how steady it is
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        lines = list(csv.DictReader(Path(report.name).read_text().splitlines()))
    if ran.returncode or len(lines) != len(CONCURRENCIES):
        raise SystemExit(
            f"error: {target.name}, {mode}: perf_analyzer failed\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        )
    return {
        int(line["Concurrency"]): Figure(float(line["Inferences/Second"]) / rows, float(line["p99 latency"]) / 1e3)
        for line in lines
    }


@contextmanager
def all_targets(root: Path, works: Sequence[Work]) -> Iterator[list[Target]]:
    """Service and agent, and Triton where its environment is there."""
    serve = {"listen": ["127.0.0.1:0"], "listen_http": ["127.0.0.1:0"]}
    cloud = {"version": 1, "serve": {**serve, "models": str(root / "models")}}
    auto = {"version": 1, "serve": {**serve, "models": str(root / "models"), "workers": "auto"}}
    models = {work.name: {"edge": {"file": str(work.model), "runtime": "onnx"}} for work in works}
    agent = {"version": 1, "agent": {"name": "bench", **serve, "state_dir": str(root / "state")}, "models": models}
    for name, document in (("cloud.yaml", cloud), ("auto.yaml", auto), ("agent.yaml", agent)):
        (root / name).write_text(json.dumps(document))
    with ExitStack() as running:
        found = [running.enter_context(upwell(SERVICE, ["serve", "-c", root / "cloud.yaml"]))]
        found.append(running.enter_context(upwell(WORKERS, ["serve", "-c", root / "auto.yaml"])))
        found.append(running.enter_context(upwell(AGENT, ["agent", "-c", root / "agent.yaml"])))
        if servers.ENVIRONMENT.exists():
            found.append(running.enter_context(tritonserver(root / "triton", works)))
        yield found


def table(
    figures: dict[tuple[str, int, str], list[Figure]], names: Sequence[str], modes: Sequence[str]
) -> Iterator[str]:
    """A Markdown table: a line for each mode and concurrency, two columns for each server."""
    yield f"| mode | at once | {' | '.join(f'{one}: requests/s, p99' for one in names)} |"
    yield "|---|---|" + "---|" * len(names)
    for mode in modes:
        for concurrency in CONCURRENCIES:
            cells = []
            for name in names:
                found = figures[mode, concurrency, name]
                rates = [one.rate for one in found]
                p99_ms = statistics.median(one.p99_ms for one in found)
                text = f"{statistics.median(rates):.0f} ({min(rates):.0f}-{max(rates):.0f}), {p99_ms:.1f} ms"
                if TRITON in names and name != TRITON:
                    pairs = zip(found, figures[mode, concurrency, TRITON], strict=True)
                    text += f", {statistics.median(ours.rate / theirs.rate for ours, theirs in pairs):.2f}"
                cells.append(text)
            yield f"| {mode} | {concurrency} | {' | '.join(cells)} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", choices=("digits", "mobilenet"), default="digits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES))
    parser.add_argument("--interval-ms", type=int, default=250)
    asked = parser.parse_args()
    binary = os.environ.get("PERF_ANALYZER")
    if not binary:
        parser.error("PERF_ANALYZER names no perf_analyzer; tritonclient 2.34's wheel has one")
    figures: dict[tuple[str, int, str], list[Figure]] = {}
    quiet = Quiet(_PATIENCE_S)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        works = [work for work in prepare(root / "models") if work.name == asked.model]
        with all_targets(root, works) as targets:
            for number in range(asked.rounds):
                for mode in asked.modes:
                    for target in targets[number % len(targets) :] + targets[: number % len(targets)]:
                        ask = partial(measured, binary, target, works[0], mode, asked.interval_ms)
                        found = quiet.measured(ask)
                        for concurrency, figure in found.items():
                            figures.setdefault((mode, concurrency, target.name), []).append(figure)
                print(f"round {number + 1} of {asked.rounds}", file=sys.stderr)
    print(f"{works[0].title}; medians of {asked.rounds} rounds (least-most), p99, ratio to Triton. {quiet.told()}\n")
    print("\n".join(table(figures, [target.name for target in targets], asked.modes)))


if __name__ == "__main__":
    main()
