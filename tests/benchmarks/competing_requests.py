"""Requests that compete for recorded links: what the queue before the link gains over sending each message at once.

    python tests/benchmarks/competing_requests.py FOLDER [--seeds 11 12 13 14] [--seconds 300]

FOLDER holds mahimahi uplink traces (`*.up`). The log is that of `make traces`, but its requests come in bursts, or at
random. Each figure is the part of the oracle's gain over the device alone, pooled over traces and logs.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.trace_table import EXAMPLE, RTT_S, generator
from upwell.shared.config.yaml import load_yaml
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import parse_trace
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.simulated_router import Habits
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome, SimulationReport
from upwell.shared.routing.simulation.strategies import Scene, edge_only, oracle, routed

WAYS: dict[str, Callable[[Policy, Scene], Sequence[SimulatedOutcome]]] = {
    "edge": edge_only,
    "oracle": oracle,
    "at once": lambda policy, scene: routed(policy, scene, Habits(queues=False)),
    "queue": routed,
}
DEADLINES = ("300ms", "1s")

Arrivals: TypeAlias = Callable[[random.Random, int], list[float]]


def bursts(size: int, every_s: float) -> Arrivals:
    """So many at once, each up to 20 ms late."""
    return lambda dice, count: sorted(index // size * every_s + dice.uniform(0, 0.02) for index in range(count))


def at_random(per_s: float) -> Arrivals:
    """A Poisson process."""

    def instants(dice: random.Random, count: int) -> list[float]:
        at_s, found = 0.0, []
        for _ in range(count):
            at_s += dice.expovariate(per_s)
            found.append(at_s)
        return found

    return instants


ARRIVALS: dict[str, tuple[float, Arrivals]] = {
    "one every 0.2 s": (5.0, bursts(1, 0.2)),
    "5 at once, every 1 s": (5.0, bursts(5, 1.0)),
    "10 at once, every 2 s": (5.0, bursts(10, 2.0)),
    "8 a second at random": (8.0, at_random(8.0)),
}


class Case(NamedTuple):
    """One simulation."""

    arrivals: str
    deadline: str
    trace: Path
    seed: int
    seconds: float
    way: str


def accuracy(case: Case) -> float:
    """The share of requests answered rightly and in time."""
    per_s, arrivals = ARRIVALS[case.arrivals]
    made = [*generator()(case.seconds, per_s, case.seed)]
    instants = arrivals(random.Random(case.seed), len(made))
    lines = [LogLine(**{**line, "t_s": round(at_s, 4)}) for line, at_s in zip(made, instants, strict=True)]
    policy = load_yaml(EXAMPLE / "policy.yaml", Policy)
    defaults = type(policy.defaults).model_validate(
        {**policy.defaults.model_dump(exclude_unset=True), "deadline": case.deadline}
    )
    scene = Scene(prepare(lines), parse_trace(case.trace.read_text()), RTT_S)
    served = WAYS[case.way](policy.model_copy(update={"defaults": defaults}), scene)
    return SimulationReport.of(served).accuracy or 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14])
    parser.add_argument("--seconds", type=float, default=300.0)
    asked = parser.parse_args()
    traces = sorted(asked.folder.glob("*.up"))
    if not traces:
        print(f"skipped: no *.up in {asked.folder}")
        return
    print("| requests | deadline | sent at once | with the queue |\n|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for arrivals in ARRIVALS:
            for deadline in DEADLINES:
                sums = {}
                for way in WAYS:
                    cases = [Case(arrivals, deadline, trace, seed, asked.seconds, way)
                             for trace in traces for seed in asked.seeds]  # fmt: skip
                    sums[way] = sum(pool.map(accuracy, cases))
                at_once, queue = (
                    (sums[way] - sums["edge"]) / (sums["oracle"] - sums["edge"]) for way in ("at once", "queue")
                )
                print(f"| {arrivals} | {deadline} | {at_once:.3f} | {queue:.3f} |", flush=True)


if __name__ == "__main__":
    main()
