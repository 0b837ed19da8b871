"""Our service beside Triton Inference Server and MLServer: the same model, load and number of instances, in one run.

    python -m tests.benchmarks.triton_bench [--quick] [--json] [--write]

Needs h2load and the environment that `make bench-triton` builds. Exit code 1 where a target is missed, 2 where
something is not installed or a server does not work.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import onnxruntime

from tests.benchmarks.quiet import Quiet
from tests.benchmarks.triton_bench import h2load, report, rounds, servers
from tests.benchmarks.triton_bench.servers import CannotStart, Environment, Launch
from tests.benchmarks.triton_bench.work import ROOT, Work, WrongAnswer, prepare

OURS = (servers.UPWELL, servers.UPWELL_WORKERS)
LEAST_STREAM_RATE = 0.9
PATIENCE_S = 600.0
RESULTS = ROOT / "tests" / "benchmarks" / "results" / "triton.md"
"""Every server's figures, behind those of docs/performance.md."""


def main() -> None:
    """Measure, print, check."""
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is started is stopped
    try:
        made, missed = _run(asked)
    except (CannotStart, WrongAnswer, h2load.LoadFailed, grpc.RpcError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(made, indent=2) if asked.json else made["table"])
    if asked.write:
        report.write(RESULTS, made["table"])
    print("\n".join(["missed:", *missed] if missed else ["every target is met"]), file=sys.stderr)
    sys.exit(bool(missed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-triton", description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement, about")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds to wait for other programs to rest")
    parser.add_argument("--quick", action="store_true", help="one short round, whatever else runs")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, with every round's figures")
    parser.add_argument("--write", action="store_true", help="put the figures into results/triton.md")
    asked = parser.parse_args()
    if asked.quick:
        asked.rounds, asked.seconds, asked.patience = 1, 0.5, 0.0
    if asked.rounds < 1 or asked.seconds <= 0:
        parser.error("expected at least one round and a time above 0")
    return asked


def _run(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The report as `--json` prints it, and the targets that are missed."""
    client = h2load.installed()
    if client is None:
        raise CannotStart("h2load is not installed; it is in Debian's and Ubuntu's package nghttp2-client")
    environment = servers.find_environment()
    _same_session(environment)
    quiet = Quiet(asked.patience)
    with tempfile.TemporaryDirectory(prefix="bench-triton-") as name, ExitStack() as stack:
        folder = Path(name)
        works = prepare(folder / "models")
        launches = _launches(folder, works, environment)
        started: dict[str, servers.Server] = {}
        for launch in launches:
            _tell(f"starting {launch.name}")
            started[launch.name] = stack.enter_context(servers.Server(launch, works))
        plan = _plan(works, launches, folder, asked.seconds)
        broken: list[str] = []

        def broke(name: str) -> None:
            broken.append(name)
            started[name].revive()

        samples = rounds.measure(plan, asked.rounds, quiet, _tell, broke)
        version = servers.triton_version(launches[0])
    _tell("")
    rows = report.rows(samples)
    missed = report.misses(rows, _targets(works))
    facts = _facts(environment, version, client, asked, quiet, broken)
    titles = {work.name: work.title for work in works}
    measured = [
        {**dataclasses.asdict(cell), "samples": list(map(dataclasses.asdict, own))} for cell, own in samples.items()
    ]
    made = {
        "table": f"{facts}\n\n{report.table(rows, titles)}",
        "rows": list(map(dataclasses.asdict, rows)),
        "measured": measured,
        "missed": missed,
    }
    return made, missed


def _same_session(environment: Environment) -> None:
    """Raise `CannotStart` unless all servers run the same ONNX Runtime."""
    own, other = onnxruntime.__version__, environment.versions["onnxruntime"]
    if own != other:
        file = Path(__file__).with_name("requirements.txt").relative_to(ROOT)
        raise CannotStart(f"onnxruntime is {own} here and {other} beside Triton: write {own} into {file} and run again")


def _launches(folder: Path, works: Sequence[Work], environment: Environment) -> list[Launch]:
    models = folder / "models"
    return [
        servers.triton(folder / "triton", works, environment),
        servers.upwell(servers.UPWELL, folder / "upwell", models, workers=1),
        servers.upwell(servers.UPWELL_WORKERS, folder / "upwell-workers", models, workers=servers.INSTANCES),
        servers.plain(folder / "plain", works),
        servers.mlserver(folder / "mlserver", works, environment),
    ]


def _plan(works: Sequence[Work], launches: Sequence[Launch], folder: Path, seconds: float) -> list[rounds.Measurement]:
    plan = []
    for work in works:
        for load in rounds.LOADS:
            for launch in launches:
                _tell(f"warming up: {work.name}, {load.title}, {launch.name}")
                plan.append(rounds.unary(work, load, launch, folder, seconds))
            if load.streams == 1:  # to the session alone, connections and streams are one
                plan.append(rounds.bare(work, load, folder, seconds))
    small = works[-1]
    streaming = [launch for launch in launches if launch.name in (report.TRITON, *OURS)]
    for at_once in rounds.STREAMS:
        plan += [rounds.stream(small, at_once, launch, folder, seconds) for launch in streaming]
    plan += [rounds.bulk_stream(small, launch, folder, seconds) for launch in streaming]
    return plan


def _targets(works: Sequence[Work]) -> list[report.Target]:
    unary = [
        report.Target(work.name, load.title, OURS, work.least_rate, work.most_p99)
        for work in works
        for load in rounds.LOADS
    ]
    loads = [rounds.stream_title(at_once) for at_once in rounds.STREAMS]
    streams = [report.Target(works[-1].name, load, OURS, LEAST_STREAM_RATE) for load in (*loads, rounds.BULK_TITLE)]
    return unary + streams


def _facts(
    environment: Environment, triton: str, client: str, asked: argparse.Namespace, quiet: Quiet, broken: Sequence[str]
) -> str:
    """The machine, the versions and the manner, in words."""
    own = environment.versions
    breaks = "".join(f" {name} broke a connection {count} times." for name, count in Counter(broken).items())
    return (
        f"{report.machine()}. Python {platform.python_version()}, ONNX Runtime {own['onnxruntime']}, "
        f"Triton {triton} (nvidia-pytriton {own['nvidia-pytriton']}), MLServer {own['mlserver']}, {client}. "
        f"Medians of {asked.rounds} rounds of about {asked.seconds:g} s each, in turn; ratios are of the same round. "
        f"{quiet.told()}{breaks}"
    )


def _tell(text: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
