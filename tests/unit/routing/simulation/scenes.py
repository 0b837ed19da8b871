"""What simulation tests are made of: log lines, scenes and policies with defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.unit.routing.asking import policy
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import Capacity, constant
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.strategies import Scene

HARD, EASY = 0.1, 0.9
POLICY = "defaults: {deadline: 300ms, hard: {measure: margin, below: 0.5}}"


def line(t_s: float = 0.0, **others: Any) -> LogLine:
    """A request of 10 kB, 10 ms on either side, that the edge gets wrong, knows it, and the cloud gets right."""
    known: dict[str, Any] = {
        "model": "photos",
        "size_bytes": 10_000,
        "edge_s": 0.01,
        "cloud_s": 0.01,
        "hardness": {"margin": HARD},
        "edge_correct": False,
        "cloud_correct": True,
    }
    return LogLine(t_s=t_s, **{**known, **others})


def easy(t_s: float = 0.0, **others: Any) -> LogLine:
    """One that the edge gets right, and is sure of."""
    return line(t_s, **{"hardness": {"margin": EASY}, "edge_correct": True, **others})


def scene(lines: Sequence[LogLine], mbps: float = 8.0, rtt_s: float = 0.06, capacity: Capacity | None = None) -> Scene:
    """These requests over a constant link, 1 MB a second where nothing else is said."""
    return Scene(prepare(lines), capacity or constant(mbps * 1e6), rtt_s)


def rules(text: str = POLICY) -> Policy:
    """A policy."""
    return policy(text)
