"""Replays a log with two models over a recorded link: what is late, what is offloaded, what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from upwell.shared.routing.log_line import LogLine
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.simulation_report import SimulationReport
from upwell.shared.routing.simulation.strategies import Scene, routed
from upwell.tools.evaluate.evaluation_run import Answers, Judged, is_right
from upwell.tools.evaluate.weighted_means import Floats


@dataclass(frozen=True)
class Replay:
    """A log over a link, the compared model, and the policy of each side."""

    scene: Scene
    model: str
    policies: tuple[Policy, Policy]


def replayed(
    replay: Replay, sides: tuple[Answers, Answers], cases: Sequence[Judged], inclusion: Floats, seed: int = 0
) -> dict[str, Any]:
    """The results of the agent's own router on the log with each side, over the requests of the model.

    Each request keeps its arrival, size, deadline and tags. It gets a case, drawn with probability ∝ 1/π and the same
    for both sides, which determines how hard that side's model found it and who is right. The device's time is the
    log's, for B times the ratio of the medians measured here.

    `late`: answered after the deadline, or not at all, ÷ requests. `right`: right and in time ÷ the requests whose
    cases have both answers known. `sent_up`: requests of which anything left the device ÷ requests. `cost`: by the
    policy's prices.
    """
    lines = [one.line for one in replay.scene.requests]
    rng, weights = np.random.default_rng(seed), 1.0 / inclusion
    drawn = rng.choice(len(cases), len(lines), p=weights / weights.sum()).tolist()
    typical_s = [statistics.median(one.run_s) if one.run_s else 0.0 for one in sides]
    found: dict[str, Any] = {}
    for name, side, policy, mine_s in zip("ab", sides, replay.policies, typical_s, strict=True):
        speed = mine_s / typical_s[0] if typical_s[0] > 0 else 1.0
        asked = [
            _asked(line, side, index, cases[index], speed, mine_s) if line.model == replay.model else line
            for line, index in zip(lines, drawn, strict=True)
        ]
        served = routed(policy, replace(replay.scene, requests=prepare(asked)))
        report = SimulationReport.of([one for one in served if one.request.line.model == replay.model])
        found[name] = {
            "requests": report.requests,
            "late": 1.0 - report.deadline_hit_rate,
            "right": report.accuracy,
            "p50_s": report.p50_s,
            "p99_s": report.p99_s,
            "sent_up": report.cloud_share,
            "bytes_up": report.bytes_up,
            "cost": report.cost,
        }
    return found


def _asked(line: LogLine, side: Answers, index: int, case: Judged, speed: float, typical_s: float) -> LogLine:
    """A line of the log as if it had asked for this case, and this side's model had run."""
    is_class = case.truth.label is not None
    return line.model_copy(
        update={
            "edge_s": typical_s if line.edge_s is None else line.edge_s * speed,
            "hardness": side.measures[index],
            "logits": side.logits[index],
            "chances": side.chances[index],
            "edge_digest": side.digest,
            "edge_correct": is_right(side.labels[index], case.truth) if is_class else None,
            "cloud_correct": is_right(case.cloud, case.truth) if is_class and case.cloud is not None else None,
        }
    )
