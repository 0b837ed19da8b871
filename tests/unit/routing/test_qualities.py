"""Which quality of pictures goes up: the one that most likely brings the same answer in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.routing.asking import policy
from tests.unit.routing.simulation.scenes import line, scene
from upwell.shared.routing.decide.explanation import Inquiry, explain
from upwell.shared.routing.policy.settings import LowerQuality
from upwell.shared.routing.request_log_line import QualityAnswer
from upwell.shared.routing.simulation.simulation_report import SimulationReport
from upwell.shared.routing.simulation.strategies import routed
from upwell.tools.policy.explain_cli import explanation_document

MEASURED = [(60, 0.8, 1.0), (20, 0.4, 0.99), (5, 0.2, 0.9)]
SIZE_BYTES = 40_000


def named(measured: Sequence[tuple[int, float, float]]) -> list[dict[str, float]]:
    return [dict(zip(("quality", "bytes_share", "agreement"), one, strict=True)) for one in measured]


def calibrated(measured: object = None, **digests: str) -> str:
    """A policy with a calibration that measured these qualities, the first of them model.yaml's."""
    entry = {"model": "photos", "measure": "margin", "below": 0.5, "cloud_share": 0.5, **digests}
    hard = "{measure: margin, cloud_share: 50%}"
    entry["evidence"] = {"qualities": named(MEASURED) if measured is None else measured}
    return f"version: 1\ndefaults: {{deadline: 300ms, hard: {hard}}}\ncalibrations: [{entry}]".replace("'", '"')


def chosen(mbps: float, text: str = "", **keys: Any) -> tuple[int | None, bool]:
    """The quality, by its number, and whether the row goes up."""
    link = {"rtt_s": 0.02, "uplink_bps": mbps * 1e6}
    asked = {
        "model": "photos",
        "size_bytes": SIZE_BYTES,
        "hardness": 0.1,
        "edge_s": 0.01,
        "cloud_s": 0.01,
        "link": link,
    }
    rules = policy(text or calibrated())
    explained = explain(rules, Inquiry.model_validate({**asked, **keys}), 0.0)
    decision = explained.last
    quality = None if decision.quality is None else decision.quality.quality
    assert explanation_document(rules, explained)["steps"][-1]["quality"] == quality
    return quality, bool(decision.up_rows)


def test_what_was_measured_is_held_against_the_quality_of_model_yaml() -> None:
    hard = policy(calibrated()).settings("photos", None).hard
    assert hard is not None
    assert hard.qualities == (LowerQuality(20, 0.5, 0.99), LowerQuality(5, 0.25, 0.9))


@pytest.mark.parametrize(
    "wrong",
    [[], "60", [{"quality": 60}], [{"quality": 0, "bytes_share": 1, "agreement": 1}] * 2, [[60, 1, 1], [20, 1, 1]]],
)
def test_evidence_that_says_something_else_is_no_measurement(wrong: object) -> None:
    hard = policy(calibrated(wrong)).settings("photos", None).hard
    assert hard is not None
    assert hard.qualities == ()


def test_the_best_one_goes_that_the_link_carries_and_none_where_it_carries_none() -> None:
    assert chosen(20.0) == (None, True)
    assert chosen(1.3) == (20, True)
    assert chosen(0.45) == (5, True)
    assert chosen(0.02) == (None, False)


def test_fewer_bytes_are_worth_no_other_answers_and_a_tie_is_kept() -> None:
    assert chosen(1.3, calibrated(named([(60, 1.0, 1.0), (20, 0.5, 0.2)]))) == (None, True)
    assert chosen(2.5, calibrated(named([(60, 1.0, 1.0), (20, 0.5, 1.0)]))) == (None, True)


def test_a_model_without_a_device_takes_one_that_is_in_time() -> None:
    assert chosen(0.9, has_edge=False) == (20, True)
    assert chosen(20.0, has_edge=False) == (None, True)


def test_what_was_measured_with_other_models_says_nothing() -> None:
    assert chosen(1.3, calibrated(edge_digest="sha256:a"), edge_digest="sha256:a")[0] == 20
    assert chosen(1.3, calibrated(edge_digest="sha256:a"), edge_digest="sha256:b")[0] is None


def test_the_simulator_sends_as_much_and_counts_an_answer_that_would_change_as_wrong() -> None:
    def logged(t_s: float, agrees: bool) -> Any:
        answers = [
            QualityAnswer(quality=quality, up_bytes=round(50_000 * share), whole_bytes=50_000, agrees=agrees)
            for quality, share, _ in MEASURED
        ]
        return line(t_s, size_bytes=SIZE_BYTES, qualities=tuple(answers))

    lines = [logged(float(number), number % 2 == 0) for number in range(20)]
    without = SimulationReport.of(routed(policy(calibrated([])), scene(lines, mbps=0.9)))
    served = routed(policy(calibrated()), scene(lines, mbps=0.9))
    with_them = SimulationReport.of(served)
    lower = [one for one in served if one.quality is not None]
    assert len(lower) >= 15
    assert {one.left_bytes for one in lower} <= {20_000, 10_000}
    assert [one.is_right for one in lower] == [bool(one.request.line.qualities[0].agrees) for one in lower]
    assert with_them.accuracy is not None
    assert without.accuracy is not None
    assert with_them.accuracy > without.accuracy
    assert with_them.deadline_hit_rate == 1.0
