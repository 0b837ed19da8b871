"""What becomes of requests under each way to route, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.routing.simulation.scenes import POLICY, easy, line, rules, scene
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.routing.simulation.link_capacity import StepTrace
from upwell.shared.routing.simulation.logged_requests import prepare, score, verdict
from upwell.shared.routing.simulation.simulated_uplink import CloudBehaviour, CloudScript, as_logged
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome, SimulationReport
from upwell.shared.routing.simulation.strategies import (
    cloud_only,
    edge_only,
    fixed,
    oracle,
    random_share,
    routed,
    thresholds,
    without_supports,
)


def outcome(served: SimulatedOutcome) -> tuple[Route | None, Reason, float]:
    return served.route, served.reason, round(served.latency_s, 6)


def test_an_easy_case_stays_and_a_hard_one_goes_up_after_its_run() -> None:
    easy_one, hard_one = routed(rules(), scene([easy(0.0), line(1.0)]))
    assert outcome(easy_one) == (Route.EDGE, Reason.EASY, 0.01)
    assert outcome(hard_one) == (Route.CLOUD, Reason.HARD, 0.01 + 0.01 + 0.06 + 0.01)
    assert (hard_one.edge_runs, hard_one.left_bytes) == (1, 10_000)


def test_a_line_without_the_supports_that_the_policy_weighs_is_hard_and_counted() -> None:
    objects: list[dict[str, Any]] = [{"chances": (0.9,), "supports": (3.0,)}, {"chances": (0.9,)}, {"chances": ()}]
    logged = scene([easy(float(at), **one) for at, one in enumerate(objects)])
    fit = "{model: photos, measure: margin, below: 0.5, cloud_share: 20%, bias: 1.0"
    weighs, plain = (
        rules(f"defaults: {{hard: {{cloud_share: 20%}}}}\ncalibrations: [{fit}{more}}}]")
        for more in (", support: 1", "")
    )
    assert without_supports(weighs, logged.requests) == 1
    assert [one.reason for one in routed(weighs, logged)] == [Reason.EASY, Reason.HARD, Reason.EASY]
    assert without_supports(plain, logged.requests) == 0
    assert [one.reason for one in routed(plain, logged)] == [Reason.EASY] * 3


def test_a_late_cloud_is_given_up_and_the_edge_answer_stands_in() -> None:
    [one] = routed(rules(), scene([line(size_bytes=1_000_000)]))
    assert outcome(one) == (Route.EDGE, Reason.CLOUD_DEADLINE, 0.275)
    assert one.left_bytes == 1_000_000  # it had begun
    assert not one.is_right


def test_a_large_case_goes_up_at_once_and_the_device_steps_in_at_the_end() -> None:
    text = "defaults: {deadline: 300ms, hard: off, large: {above: 100kB}}"
    lines = [easy(), line(1.0, size_bytes=100_001), line(9.0, size_bytes=900_000)]
    _, quick, slow = routed(rules(text), scene(lines))
    assert outcome(quick) == (Route.CLOUD, Reason.LARGE, 0.170001)
    assert quick.edge_runs == 0
    assert outcome(slow) == (Route.EDGE, Reason.CLOUD_DEADLINE, 0.275)
    assert slow.edge_runs == 1


def test_the_very_first_request_is_answered_in_time_by_the_device_if_the_cloud_is_silent() -> None:
    text = "defaults: {deadline: 300ms}\nrules: [{name: up, match: {}, route: cloud}]"
    [one] = routed(rules(text), scene([line(edge_s=0.1)], mbps=0.01))
    assert one.in_time
    assert one.route is Route.EDGE


def test_where_the_policy_wants_an_error_a_late_cloud_is_no_answer() -> None:
    text = "defaults: {deadline: 300ms, on_cloud_failure: error}"
    [one] = routed(rules(text), scene([line(size_bytes=1_000_000)]))
    assert one.route is None
    assert math.isnan(one.latency_s)
    assert one.reason is Reason.CLOUD_DEADLINE


def test_what_may_not_leave_the_device_does_not() -> None:
    text = POLICY + "\nrules: [{name: private, match: {tags: {privacy: device}}, egress: deny}]"
    [one] = routed(rules(text), scene([line(tags={"privacy": "device"})]))
    assert one.route is Route.EDGE
    assert one.left_bytes == 0


def test_rules_see_the_time_of_day() -> None:
    text = POLICY + '\nrules: [{name: night, match: {hours: "22:00-06:00"}, route: edge}]'
    requests = prepare([line(0.0), line(7200.0)], start_wall_s=5 * 3600.0)
    night, day = routed(rules(text), scene([]).__class__(requests, scene([]).capacity, 0.06))
    assert (night.reason, day.reason) == (Reason.RULE, Reason.HARD)


def test_the_lines_own_deadline_counts_where_it_is_shorter() -> None:
    hasty, lazy = routed(rules(), scene([line(deadline_s=0.05), line(9.0, deadline_s=5.0)]))
    assert hasty.deadline_s == pytest.approx(0.05)
    assert lazy.deadline_s == pytest.approx(9.3)
    assert hasty.route is Route.EDGE
    assert hasty.in_time


def test_a_device_with_more_than_it_can_do_refuses_and_those_it_takes_are_in_time() -> None:
    lines = [easy(index * 0.01, edge_s=0.09) for index in range(200)]
    served = edge_only(rules(), scene(lines))
    assert {one.route for one in served} == {Route.EDGE, None}
    assert all(one.in_time for one in served[10:] if one.route is not None)
    assert sum(one.route is None for one in served) > 150


PRIORITIES = """
defaults: {deadline: 1s, hard: off}
rules:
  - {name: alarm, match: {tags: {kind: alarm}}, set: {priority: high}}
  - {name: hasty, match: {tags: {kind: hasty}}, set: {deadline: 250ms}}
"""


def on_a_busy_device(*kinds: str) -> list[SimulatedOutcome]:
    """A run of 0.1 s and those of these kinds behind it, a millisecond apart; how long they take was learnt before."""
    lines = [easy(0.1 * n, edge_s=0.1) for n in range(4)]
    lines += [easy(0.4 + 0.001 * n, edge_s=0.1, tags={"kind": kind}) for n, kind in enumerate(("none", *kinds))]
    return edge_only(rules(PRIORITIES), scene(lines))[5:]


def test_the_most_urgent_runs_first_and_who_cannot_be_in_time_is_refused_at_once() -> None:
    plain, hasty, late = on_a_busy_device("none", "hasty", "hasty")
    assert hasty.answered_s == pytest.approx(0.6)
    assert plain.answered_s == pytest.approx(0.7)
    assert (late.route, late.reason) == (None, Reason.EDGE_BUSY)


def test_a_higher_priority_goes_first_and_takes_the_place_of_a_lower_one_that_would_be_late() -> None:
    hasty, alarm = on_a_busy_device("hasty", "alarm")
    assert hasty.in_time
    assert alarm.answered_s == pytest.approx(0.7)  # so both are in time
    outcomes = on_a_busy_device(*["none"] * 8, "alarm")
    assert [one.route for one in outcomes] == [Route.EDGE] * 7 + [None, Route.EDGE]
    assert all(one.in_time for one in outcomes if one.route is not None)
    assert outcomes[-1].answered_s == pytest.approx(0.6)


def with_exits(*lines: LogLine, text: str = POLICY, script: CloudScript = as_logged) -> list[SimulatedOutcome]:
    return routed(rules(text), replace(scene(lines), exits=("photos",), script=script))


def test_a_head_that_is_sure_answers_early_and_the_tail_is_asked_about_the_rest() -> None:
    sure, unsure = with_exits(easy(), line(1.0))
    assert outcome(sure) == (Route.EXIT, Reason.EASY, 0.01)
    assert sure.left_bytes == 0
    assert outcome(unsure) == (Route.SPLIT, Reason.HARD, 0.01 + 0.01 + 0.06 + 0.01)
    assert (unsure.edge_runs, unsure.left_bytes, unsure.is_right) == (1, 10_000, True)


def test_a_tail_that_fails_leaves_the_early_answer() -> None:
    for wanted in (POLICY, "defaults: {deadline: 300ms}\nrules: [{name: cut, match: {}, route: split}]"):
        [one] = with_exits(line(), text=wanted, script=lambda *_: CloudBehaviour(0.0, Reason.CLOUD_ERROR))
        assert outcome(one) == (Route.EXIT, Reason.CLOUD_ERROR, 0.08)


def test_a_head_always_runs_before_its_tail_is_asked() -> None:
    [one] = with_exits(line(), text="defaults: {deadline: 300ms, hard: off, large: {above: 1kB}}")
    assert outcome(one) == (Route.SPLIT, Reason.LARGE, 0.09)
    assert one.edge_runs == 1


def test_a_target_counts_the_large_cases_too() -> None:
    text = "defaults: {deadline: 300ms, large: {above: 15kB}, hard: {cloud_share: 50%}}"
    lines = [
        line(index / 10, size_bytes=20_000 if index % 5 < 2 else 10_000, hardness={"margin": index * 7 % 100 / 100})
        for index in range(2000)
    ]
    served = routed(rules(text), scene(lines, mbps=1000.0))
    assert sum(one.left_bytes > 0 for one in served) == pytest.approx(1000, abs=20)


@pytest.mark.parametrize(("share", "up"), [("0%", 0), ("100%", 40)])
def test_a_share_of_none_or_all_holds_from_the_first_row(share: str, up: int) -> None:
    text = f"defaults: {{deadline: 1s, hard: {{below: 0.5, cloud_share: {share}}}}}"
    lines = [line(float(index)) if index % 2 else easy(float(index)) for index in range(40)]
    assert sum(one.left_bytes > 0 for one in routed(rules(text), scene(lines))) == up


@pytest.mark.parametrize("confidence", ["80%", "99%"])
def test_a_high_confidence_does_not_keep_a_link_unused_that_carries_everything(confidence: str) -> None:
    """An unknown link is in time with no such chance, and one that is not used stays unknown."""
    text = f"defaults: {{deadline: 300ms, confidence: {confidence}, hard: {{below: 0.5}}}}"
    lines = [line(index / 5) for index in range(500)]
    served = routed(rules(text), scene(lines, mbps=100.0))
    assert sum(one.route is Route.CLOUD for one in served) >= 0.9 * len(served)


def test_without_a_cloud_nothing_goes_up() -> None:
    served = edge_only(rules(), scene([line(), easy(1.0)]))
    assert [one.route for one in served] == [Route.EDGE, Route.EDGE]
    assert sum(one.left_bytes for one in served) == 0


def test_the_cloud_alone_answers_what_comes_back_in_time_and_nothing_else() -> None:
    lines = [line(0.0, size_bytes=100_000), line(0.0, size_bytes=100_000), line(0.0, size_bytes=100_000)]
    first, second, third = cloud_only(rules(), scene(lines))
    assert outcome(first) == (Route.CLOUD, Reason.NO_EDGE, 0.17)
    assert outcome(second) == (Route.CLOUD, Reason.NO_EDGE, 0.27)
    assert third.route is None
    assert third.reason is Reason.CLOUD_DEADLINE
    assert third.left_bytes == 100_000


def test_the_oracle_sends_what_pays_and_comes_back_in_time_behind_what_it_sent() -> None:
    lines = [
        line(0.00, size_bytes=150_000),
        line(0.01, size_bytes=150_000),  # would be back after its deadline
        line(0.02, size_bytes=50_000),
        easy(0.03, size_bytes=1),
        line(0.04, size_bytes=1, cloud_correct=False),
        line(0.05, size_bytes=1, cloud_correct=None),
        line(0.06, size_bytes=1, edge_correct=None),
    ]
    served = oracle(rules(), scene(lines))
    assert [one.route is Route.CLOUD for one in served] == [True, False, True, False, False, False, False]
    assert served[2].latency_s == pytest.approx(0.2 - 0.02 + 0.06 + 0.01)
    assert all(one.in_time for one in served)


def test_the_oracle_knows_of_an_outage_to_come() -> None:
    link = StepTrace([0, 0.1, 2.0], [8e6, 0, 8e6])
    served = oracle(rules(), scene([line(0.095), line(1.0), line(1.9)], capacity=link))
    assert [one.route for one in served] == [Route.EDGE, Route.EDGE, Route.CLOUD]


def test_chance_sends_the_share_that_it_is_told_whatever_the_case() -> None:
    lines = [easy(float(index)) for index in range(10)]
    draws = [index / 10 for index in range(10)]
    served = random_share(rules(), scene(lines), 0.3, draws)
    assert [one.route for one in served] == [Route.CLOUD] * 3 + [Route.EDGE] * 7


def test_chance_knows_no_other_candidates() -> None:
    text = """
defaults: {deadline: 300ms, large: {above: 1kB}, hard: off}
rules: [{name: all, match: {}, route: cloud}]
models: {photos: {large: {above: 2kB}, hard: {measure: entropy, above: 0.5}}}
"""
    served = random_share(rules(text), scene([line(float(index)) for index in range(4)]), 0.5, [0.0, 0.9, 0.4, 0.6])
    assert [one.route for one in served] == [Route.CLOUD, Route.EDGE, Route.CLOUD, Route.EDGE]
    assert served[0].deadline_s == pytest.approx(0.3)


def graded(count: int) -> list[LogLine]:
    return [line(float(index), hardness={"margin": (index + 0.5) / count}) for index in range(count)]


def test_ten_thresholds_are_spread_over_the_log() -> None:
    swept = thresholds(rules(), scene(graded(100)).requests)
    assert [hard.threshold for hard in swept] == pytest.approx([0.055 + 0.1 * index for index in range(10)])
    assert {hard.measure for hard in swept} == {"margin"}


def test_thresholds_of_a_rising_measure_start_with_the_hardest() -> None:
    lines = [line(float(index), hardness={"entropy": (index + 0.5) / 100}) for index in range(100)]
    text = "defaults: {hard: {measure: entropy, above: 0.5}}"
    swept = thresholds(rules(text), scene(lines).requests)
    assert swept[0].threshold == pytest.approx(0.945)
    served = fixed(rules(text), scene(lines), swept[0])
    assert sum(one.route is Route.CLOUD for one in served) == 5


@pytest.mark.parametrize("text", ["defaults: {hard: off}", "defaults: {hard: {measure: max_prob, below: 0.5}}"])
def test_a_sweep_needs_a_measure_that_the_log_knows(text: str) -> None:
    with pytest.raises(ValueError, match=r"one measure applies|logits or a hardness called max_prob"):
        thresholds(rules(text), scene([line()]).requests)


def test_a_fixed_threshold_tries_what_the_policy_would_predict_to_be_late() -> None:
    lines = [line(index * 0.9, size_bytes=20_000 + index * 1000 if index < 20 else 900_000) for index in range(24)]
    link_test = routed(rules(), scene(lines))
    none = fixed(rules(), scene(lines), HardSettings(threshold=0.5))
    assert Reason.CLOUD_TOO_SLOW in {one.reason for one in link_test}
    assert Reason.CLOUD_TOO_SLOW not in {one.reason for one in none}
    assert sum(one.left_bytes for one in none) > sum(one.left_bytes for one in link_test)


def test_gaps_are_filled_with_the_median_of_the_models_other_lines() -> None:
    lines = [
        line(3.0, edge_s=None, cloud_s=None),
        line(2.0, edge_s=0.01, cloud_s=0.2),
        line(1.0, edge_s=0.03, cloud_s=None),
        line(0.0, edge_s=None, cloud_s=None, model="other"),
    ]
    requests = prepare(lines)
    assert [one.t_s for one in requests] == [0.0, 1.0, 2.0, 3.0]
    assert [one.edge_s for one in requests] == [0.0, 0.03, 0.01, 0.02]
    assert [one.cloud_s for one in requests] == [0.0, 0.2, 0.2, 0.2]


@pytest.mark.parametrize("wrong", [{"t_s": 1e300}, {"size_bytes": 1 << 60}])
def test_a_line_that_nobody_can_replay_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="request 2: t_s is at most"):
        prepare([line(), LogLine(**{**line().model_dump(), **wrong})])


def test_hardness_comes_from_the_logits_where_there_are_any() -> None:
    lines = [line(logits=[2.0, 0.0]), line(1.0), line(2.0, hardness={}), line(3.0, logits=[])]
    with_logits, without, neither, empty = prepare(lines)
    warm, hot = HardSettings(), HardSettings(temperature=4.0)
    assert score(with_logits, warm) == pytest.approx(math.tanh(1.0))
    assert score(with_logits, hot) == pytest.approx(math.tanh(0.25))
    assert score(without, hot) == score(empty, hot) == 0.1
    assert math.isnan(score(neither, warm))
    assert math.isnan(verdict(True, warm))
    assert verdict(False, warm) == math.inf
    assert verdict(False, HardSettings(measure="entropy", threshold=0.5)) == -math.inf


def test_the_report_counts_what_was_late_missing_or_unknown() -> None:
    text = POLICY[:-1] + ", prices: {uplink_gb: 4.0, cloud_request: 0.5}, energy: {inference: 2J, uplink_byte: 1mJ}}"
    lines = [easy(), line(1.0), line(2.0, cloud_correct=None), line(3.0, size_bytes=900_000)]
    report = SimulationReport.of(routed(rules(text), scene(lines)))
    assert (report.requests, report.answered, report.deadline_hit_rate) == (4, 4, 1.0)
    assert report.accuracy == pytest.approx(2 / 3)
    assert (report.p50_s, report.p99_s) == pytest.approx((0.09, 0.275))
    assert report.cloud_share == 0.75
    assert report.bytes_up == 920_000
    assert report.cost == pytest.approx(920_000 * 4e-9 + 1.5)
    assert report.energy_j == pytest.approx(4 * 2 + 920)
    assert report.reasons == {"hard": 2, "cloud_deadline": 1, "easy": 1}


def test_a_report_without_answers_or_known_correctness_says_so() -> None:
    report = SimulationReport.of(cloud_only(rules(), scene([line(edge_correct=None)], mbps=0.001)))
    assert (report.answered, report.accuracy, report.p50_s) == (0, None, None)
    assert report.reasons == {"cloud_deadline": 1}
