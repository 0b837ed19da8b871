"""More than the device can do: callers at a fixed pace, on a model that sleeps.

`python -m tests.faults.overload` prints the figures as JSON.

Open loop: each caller sends a frame on every tick, whatever became of those before. A request counts as told at once
by how long its caller waited for the refusal, as in time by its own deadline as the caller measures it.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.faults.slow_edge import slow_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import Refused, Superseded, UpwellError

PICTURE = np.array([b"frame"], dtype=np.object_)
TOLD = (Refused, Superseded)
"""The errors that say at once that there will be no answer; anything else is a broken promise."""


@dataclass(frozen=True)
class Load:
    """What the callers do, and what the device can."""

    callers: int = 10
    frames_per_s: float = 30.0
    seconds: float = 10.0
    run_s: float = 0.1
    deadlines_s: Sequence[float] = (0.5,)
    """Deadlines of the callers, in turn."""
    together: bool = False
    """All callers on the same tick, so that all see the queue before anyone has joined it."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[Mapping[str, str]] = ({},)
    """Tags of the callers, in turn."""


@dataclass
class Tally:
    """What became of the requests. Each entry is (caller, seconds until it was told)."""

    in_time: list[tuple[int, float]] = field(default_factory=list)
    late: list[tuple[int, float]] = field(default_factory=list)
    refused: list[tuple[int, float]] = field(default_factory=list)
    superseded: list[tuple[int, float]] = field(default_factory=list)
    broken: list[tuple[int, float]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def report(self) -> dict[str, Any]:
        """The figures."""
        admitted = len(self.in_time) + len(self.late) + len(self.broken)
        return {
            "requests": admitted + len(self.refused) + len(self.superseded),
            "answered_in_time": len(self.in_time),
            "answered_late": len(self.late),
            "admitted_without_answer": len(self.broken),
            "admitted_in_time_share": len(self.in_time) / admitted if admitted else math.nan,
            "refused": len(self.refused),
            "superseded": len(self.superseded),
            "refusal_ms": _quantiles_ms([took_s for _, took_s in self.refused]),
            "answer_ms": _quantiles_ms([took_s for _, took_s in (*self.in_time, *self.late)]),
            "errors": dict(self.errors),
        }


def overload(load: Load) -> Tally:
    """Run the load against a fresh agent without a cloud."""
    policy = {"defaults": {"deadline": f"{max(load.deadlines_s) * 1e3:.3f}ms", "hard": "off"}, **load.policy}
    tally, lock = Tally(), threading.Lock()
    with slow_agent(load.run_s, policy) as (agent, _):
        for number in range(5):  # the router learns how long a run takes
            agent.infer("digits", {"image": PICTURE}, tags={"camera": f"warm-up {number}"})
        # As many threads for each caller as frames of it can be under way, so that the pace never depends on answers.
        width = math.ceil(max(load.deadlines_s) * load.frames_per_s) + 2
        begin_s = time.monotonic() + 0.1
        threads = [
            threading.Thread(target=_caller, args=(agent, load, caller, scheduler, width, begin_s, tally, lock))
            for caller in range(load.callers)
            for scheduler in range(width)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return tally


def _caller(
    agent: AgentCore, load: Load, caller: int, first: int, step: int, begin_s: float, tally: Tally, lock: threading.Lock
) -> None:
    offset_s = 0.0 if load.together else caller / load.callers / load.frames_per_s
    tags, deadline_s = load.tags[caller % len(load.tags)], load.deadlines_s[caller % len(load.deadlines_s)]
    for frame in range(first, int(load.seconds * load.frames_per_s), step):
        pause_s = begin_s + offset_s + frame / load.frames_per_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)  # the pace of a camera, not a wait for anything
        started_s = time.monotonic()
        error: UpwellError | None = None
        try:
            agent.infer("digits", {"image": PICTURE}, deadline_s=deadline_s, tags=tags)
        except UpwellError as caught:
            error = caught
        took_s = time.monotonic() - started_s
        with lock:
            _count(tally, caller, took_s, error, deadline_s)


def _count(tally: Tally, caller: int, took_s: float, error: UpwellError | None, deadline_s: float) -> None:
    if error is None:
        (tally.in_time if took_s <= deadline_s else tally.late).append((caller, took_s))
        return
    tally.errors[type(error).__name__] += 1
    group = tally.superseded if isinstance(error, Superseded) else tally.refused
    (group if isinstance(error, TOLD) else tally.broken).append((caller, took_s))


def _quantiles_ms(times_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times_s)
    if not ordered:
        return {}
    return {
        name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def main() -> None:
    """Run the load that the command line names and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=10)
    parser.add_argument("--frames", type=float, default=30.0, help="per second and caller")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--run-ms", type=float, default=100.0)
    parser.add_argument("--deadline-ms", type=float, nargs="+", default=[500.0], help="of the callers, in turn")
    parser.add_argument("--together", action="store_true", help="all callers on the same tick")
    given = parser.parse_args()
    deadlines_s = [deadline_ms / 1e3 for deadline_ms in given.deadline_ms]
    load = Load(given.callers, given.frames, given.seconds, given.run_ms / 1e3, deadlines_s, given.together)
    print(json.dumps(overload(load).report(), indent=2))


if __name__ == "__main__":
    main()
