"""What the router makes of real links: the table of docs/performance.md, and whether it holds what it must.

    python tests/benchmarks/trace_table.py FOLDER [--seeds 3] [--policy FILE] [--write docs/performance.md]

FOLDER holds mahimahi uplink traces (`*.up`). Exit code 1 where a target is missed; where there are none, nothing is
checked, and it says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

from upwell.shared.config.yaml import load_yaml
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import Capacity, parse_trace
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.simulation_report import SimulationReport
from upwell.shared.routing.simulation.strategies import (
    Scene,
    cloud_only,
    edge_only,
    fixed,
    oracle,
    random_share,
    routed,
    thresholds,
)

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "routing"
START, END = "<!-- trace table: start -->", "<!-- trace table: end -->"
SECONDS, PER_S, RTT_S = 1000.0, 5.0, 0.06
LEAST_IN_TIME, LEAST_GAIN, MOST_BEHIND = 0.97, 0.4, 0.005


@dataclass(frozen=True)
class Row:
    """One trace, with accuracies as means over the logs; `fixed` by rank of the threshold, the strictest first."""

    trace: str
    answered: bool
    in_time: Mapping[str, float]
    accuracy: Mapping[str, float]
    fixed: Sequence[float]
    share: float

    @property
    def best_fixed(self) -> float:
        """The accuracy of the best fixed threshold."""
        return max(self.fixed)

    @property
    def gain(self) -> float:
        """The part of the oracle's gain over the edge that the policy has."""
        return (self.accuracy["policy"] - self.accuracy["edge"]) / (self.accuracy["oracle"] - self.accuracy["edge"])


def generator() -> Callable[[float, float, int], Iterable[dict[str, Any]]]:
    """`requests` of the example's script, which is no module."""
    spec = importlib.util.spec_from_file_location("make_log", EXAMPLE / "make_log.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[[float, float, int], Iterable[dict[str, Any]]] = module.requests
    return made


def logs(seeds: int) -> list[list[LogLine]]:
    """The logs that every trace is tried with."""
    make = generator()
    return [[LogLine(**line) for line in make(SECONDS, PER_S, seed)] for seed in range(1, seeds + 1)]


def measure(policy: Policy, scene: Scene, seed: int) -> tuple[dict[str, SimulationReport], list[SimulationReport]]:
    """Every way to route, and the sweep."""
    report = SimulationReport.of(routed(policy, scene))
    chance = random.Random(seed)
    draws = [chance.random() for _ in scene.requests]
    ways = {
        "policy": report,
        "edge": SimulationReport.of(edge_only(policy, scene)),
        "cloud": SimulationReport.of(cloud_only(policy, scene)),
        "random": SimulationReport.of(random_share(policy, scene, report.cloud_share, draws)),
        "oracle": SimulationReport.of(oracle(policy, scene)),
    }
    return ways, [SimulationReport.of(fixed(policy, scene, hard)) for hard in thresholds(policy, scene.requests)]


def row(policy: Policy, trace: Path, capacity: Capacity, every: Sequence[Sequence[LogLine]]) -> Row:
    """One trace with every log."""
    measured = [measure(policy, Scene(prepare(lines), capacity, RTT_S), seed) for seed, lines in enumerate(every)]
    ways = [ways for ways, _ in measured]

    def mean(values: Iterable[float | None]) -> float:
        return statistics.fmean(value or 0.0 for value in values)

    return Row(
        trace=trace.stem,
        answered=all(one["policy"].answered == one["policy"].requests for one in ways),
        in_time={name: min(one[name].deadline_hit_rate for one in ways) for name in ("policy", "oracle")},
        accuracy={name: mean(one[name].accuracy for one in ways) for name in ways[0]},
        fixed=[mean(swept[rank].accuracy for _, swept in measured) for rank in range(len(measured[0][1]))],
        share=mean(one["policy"].cloud_share for one in ways),
    )


def pooled_gain(rows: Sequence[Row]) -> float:
    """Σ(policy − edge) ÷ Σ(oracle − edge)."""
    names = ("policy", "edge", "oracle")
    policy, edge, best = (sum(one.accuracy[name] for one in rows) for name in names)
    return (policy - edge) / (best - edge)


def misses(rows: Sequence[Row]) -> list[str]:
    """The targets that are missed."""
    found = []
    for one in rows:
        if not one.answered:
            found.append(f"{one.trace}: not every request was answered")
        if one.in_time["policy"] < LEAST_IN_TIME * one.in_time["oracle"]:
            found.append(f"{one.trace}: {one.in_time['policy']:.2%} in time, the oracle {one.in_time['oracle']:.2%}")
        if one.best_fixed > one.accuracy["policy"] + MOST_BEHIND:
            found.append(f"{one.trace}: a fixed threshold is {one.best_fixed - one.accuracy['policy']:.2%} better")
    if pooled_gain(rows) < LEAST_GAIN:
        found.append(f"the pooled gain is {pooled_gain(rows):.2f}, expected {LEAST_GAIN} or more")
    return found


def table(rows: Sequence[Row], seeds: int) -> str:
    """The rows as Markdown."""
    head = (
        "| trace | in time | edge only | cloud only | random share | best fixed threshold | **policy** | oracle "
        "| part of the oracle's gain | sent up |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    body = ""
    for one in rows:
        cells = [one.accuracy["edge"], one.accuracy["cloud"], one.accuracy["random"], one.best_fixed]
        shown = " | ".join(f"{cell:.2%}" for cell in cells)
        body += (
            f"| {one.trace} | {one.in_time['policy']:.1%} | {shown} | **{one.accuracy['policy']:.2%}** "
            f"| {one.accuracy['oracle']:.2%} | {one.gain:.2f} | {one.share:.1%} |\n"
        )
    pooled = f"Pooled over the traces, the policy has {pooled_gain(rows):.2f} of the oracle's gain"
    return f"{head}{body}\n{pooled}; means over {seeds} logs.\n"


def write(path: Path, text: str) -> None:
    """Put the table between its marks."""
    page = path.read_text(encoding="utf-8")
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"{path}: expected the marks {START} and {END}")
    path.write_text(f"{before}{START}\n\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Measure, print, check."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policy", type=Path, default=EXAMPLE / "policy.yaml")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    traces = sorted(asked.folder.glob("*.up"))
    if not traces:
        print(f"skipped: no *.up in {asked.folder}")
        return
    policy, every = load_yaml(asked.policy, Policy), logs(asked.seeds)
    work = track(traces, "simulating", transient=True, disable=not sys.stdout.isatty())
    rows = [row(policy, trace, parse_trace(trace.read_text()), every) for trace in work]
    text = table(rows, asked.seeds)
    print(text)
    if asked.write is not None:
        write(asked.write, text)
    missed = misses(rows)
    print("\n".join(["missed:", *missed] if missed else ["every target is met"]))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
