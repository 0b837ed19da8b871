"""Lateness, share sent up and cost of two models on a log over a link, held against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from upwell.edge.case_collection.collected_case import CaseFacts, CaseSignature
from upwell.edge.models.hardness_scorer import NO_SCORES
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import constant
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.strategies import Scene
from upwell.tools.cases.case_labels import Label
from upwell.tools.evaluate.bundle_comparison import Replay, replayed
from upwell.tools.evaluate.evaluation_run import Answers, Judged

SIGNATURE = CaseSignature(has_rows=True, inputs=(), outputs=())
COUNT = 400


def case(index: int, inclusion: float, cloud: str = "yes") -> Judged:
    facts = CaseFacts(
        id=f"{index:032x}", model="m", created_unix_s=0.0, why=("random",), inclusion=inclusion, signature=SIGNATURE
    )
    return Judged(facts, Label(label="yes"), Label(label=cloud), inclusion)


def side(said: list[str], sure: list[float], run_s: float = 0.01) -> Answers:
    return Answers(
        "x", "sha256:0", [Label(label=one) for one in said],
        measures=[{"max_prob": one} for one in sure], scores=[NO_SCORES] * len(said),
        run_s=[run_s] * len(said),
    )  # fmt: skip


def policy(**more: object) -> Policy:
    defaults = {
        "deadline": "1s", "hard": {"measure": "max_prob", "below": 0.5}, "prices": {"cloud_request": 0.01}, **more,
    }  # fmt: skip
    return Policy.model_validate({"version": 1, "defaults": defaults})


def scene(**more: object) -> Scene:
    """A request every second, of 1,000 bytes, over a link that is never full."""
    lines = [
        LogLine.model_validate(
            {"t_s": float(second), "model": "m", "size_bytes": 1000, "edge_s": 0.03, "cloud_s": 0.01, **more}
        )
        for second in range(COUNT)
    ]
    return Scene(prepare(lines), constant(1e9), 0.01)


def test_what_is_hard_goes_up_and_is_paid_for_by_the_weight_of_its_case() -> None:
    """Of two cases the first stands for nine times as many requests; A finds it hard and wrong, B neither."""
    cases, inclusion = [case(0, 0.1), case(1, 0.9)], np.array([0.1, 0.9])
    a, b = side(["no", "yes"], [0.1, 0.9]), side(["yes", "no"], [0.9, 0.9])
    found = replayed(Replay(scene(), "m", (policy(), policy())), (a, b), cases, inclusion)
    drawn = np.random.default_rng(0).choice(2, COUNT, p=[0.9, 0.1])
    first = int((drawn == 0).sum())
    assert 0.85 < first / COUNT < 0.95
    assert found["a"]["sent_up"] == first / COUNT
    assert found["a"]["cost"] == pytest.approx(0.01 * first)
    assert found["a"]["bytes_up"] == 1000 * first
    assert found["a"]["right"] == 1.0  # the cloud is right about the first, the device about the second
    assert (found["b"]["sent_up"], found["b"]["cost"]) == (0.0, 0.0)
    assert found["b"]["right"] == first / COUNT
    assert (found["a"]["late"], found["b"]["late"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("measure", "moves"),
    [("max_prob", {"temperature": 4.0}), ("margin", {"bias": -2.0}), ("margin", {"support": -1.0})],
)
def test_a_calibration_applies_to_the_cases_as_to_the_agents_rows(measure: str, moves: dict[str, float]) -> None:
    """Both look sure; calibrated, the first is at 0.62, or 0.55, and the second remains sure."""
    cases, inclusion = [case(0, 0.5), case(1, 0.5)], np.array([0.5, 0.5])
    one = side(["yes", "yes"], [0.88, 0.999])
    if measure == "max_prob":
        one.scores = [{**NO_SCORES, "logits": logits} for logits in ((2.0, 0.0), (40.0, 0.0))]
    else:
        one.measures = [{"margin": 0.9}, {"margin": 0.9999}]  # a detector has no `max_prob`
        one.scores = [{**NO_SCORES, "chances": (chance,), "supports": (7.0,)} for chance in (0.9, 0.9999)]
    fitted = {"model": "m", "measure": measure, "below": 0.7, "max_risk": "5%", **moves}
    calibrated = Policy.model_validate(
        {
            "version": 1,
            "defaults": {"deadline": "1s", "hard": {"measure": measure, "max_risk": "5%"}},
            "calibrations": [fitted],
        }
    )
    found = replayed(Replay(scene(), "m", (calibrated, calibrated)), (one, one), cases, inclusion)
    assert found["a"]["sent_up"] == pytest.approx(0.5, abs=0.1)


def test_a_slower_model_is_late_by_the_ratio_of_what_was_measured() -> None:
    """The log's 30 ms become 150 ms with a model that takes five times as long, 100 ms are allowed, and the cloud is no
    way out."""
    cases, inclusion = [case(0, 1.0)], np.ones(1)
    a, b = side(["yes"], [0.9], 0.01), side(["yes"], [0.9], 0.05)
    quick = policy(deadline="100ms")
    found = replayed(Replay(scene(cloud_s=5.0), "m", (quick, quick)), (a, b), cases, inclusion)
    assert (found["a"]["late"], found["a"]["p50_s"]) == (0.0, pytest.approx(0.03))
    assert found["b"]["late"] == 1.0
    assert (found["a"]["right"], found["b"]["right"]) == (1.0, 0.0)


def test_each_side_has_its_own_policy_and_other_models_are_not_counted() -> None:
    cases, inclusion = [case(0, 1.0)], np.ones(1)
    one = side(["yes"], [0.6])
    strict = policy(hard={"measure": "max_prob", "below": 0.7})
    busy = scene()
    other = prepare([line.line.model_copy(update={"model": "other"}) for line in busy.requests])
    both = Scene((*busy.requests, *other), busy.capacity, busy.rtt_s)
    found = replayed(Replay(both, "m", (policy(), strict)), (one, one), cases, inclusion)
    assert [found[name]["requests"] for name in "ab"] == [COUNT, COUNT]
    assert [found[name]["sent_up"] for name in "ab"] == [0.0, 1.0]
