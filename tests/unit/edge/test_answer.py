"""The facts of an answer, exactly as docs/policy.md names them."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from upwell.edge import Answer, Timings
from upwell.shared.routing.reasons import Plan, Reason, Route

ANSWER = Answer(
    outputs={"y": np.ones((1, 2))},
    route=Route.EDGE,
    reason=Reason.EASY,
    degraded=False,
    plan=Plan.CASCADE,
    timings=Timings(total_s=0.5),
    id="one",
    routes=(Route.EDGE,),
)


def test_a_plain_edge_answer_says_four_things() -> None:
    assert ANSWER.parameters() == {
        "upwell.route": "edge",
        "upwell.plan": "cascade",
        "upwell.reason": "easy",
        "upwell.degraded": False,
    }


def test_an_answer_with_everything_says_all_that_the_design_lists() -> None:
    answer = replace(
        ANSWER,
        route=Route.MIXED,
        routes=(Route.EDGE, Route.CLOUD, Route.EDGE),
        reason=Reason.HARD,
        degraded=True,
        timings=Timings(0.5, edge_s=0.002, uplink_s=0.25, cloud_queue_s=0.0, cloud_compute_s=0.125),
        edge_digest="sha256:e",
        cloud_digest="sha256:c",
        accelerator="qnn",
        edge_state="ready",
        labels={"y": ("cat", "dog")},
        hardness=(0.25, math.nan, 0.0312500001),
        agent="dock-7",
        version="1.2.3",
    )
    facts = answer.parameters()
    assert facts == {
        "upwell.route": "mixed",
        "upwell.routes": "edge,cloud,edge",
        "upwell.plan": "cascade",
        "upwell.reason": "hard",
        "upwell.degraded": True,
        "upwell.edge_ms": 2.0,
        "upwell.uplink_ms": 250.0,
        "upwell.cloud_queue_ms": 0.0,
        "upwell.cloud_compute_ms": 125.0,
        "upwell.edge_digest": "sha256:e",
        "upwell.cloud_digest": "sha256:c",
        "upwell.accelerator": "qnn",
        "upwell.edge_state": "ready",
        "upwell.hardness": "0.25,nan,0.03125",
        "upwell.agent": "dock-7",
        "upwell.version": "1.2.3",
    }
    for name, value in facts.items():
        expected: type = bool if name == "upwell.degraded" else float if name.endswith("_ms") else str
        assert type(value) is expected, name


@pytest.mark.parametrize("route", [Route.EDGE, Route.CLOUD])
def test_the_routes_of_rows_are_told_only_where_they_differ(route: Route) -> None:
    assert "upwell.routes" not in replace(ANSWER, route=route, routes=(route,) * 3).parameters()


def test_the_facts_are_the_callers_to_change() -> None:
    ANSWER.parameters().clear()
    assert ANSWER.parameters()


@pytest.mark.parametrize("kind", [Reason, Plan, Route])
def test_a_code_reads_as_its_value_everywhere(kind: Any) -> None:
    for code in kind:
        assert str(code) == f"{code}" == code.value == code
        assert code.value == code.name.lower()


def test_an_answer_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        ANSWER.reason = Reason.HARD  # type: ignore[misc]  # that is the point
