"""What holds of calibrations, controllers and audits whatever they are given."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.routing.calibration.binomial import at_least, at_most, interval, upper_bound
from upwell.shared.routing.calibration.pair_calibration import by_model_pair
from upwell.shared.routing.calibration.threshold_choice import CannotCalibrate, Sample, cut_for_risk, cut_for_share
from upwell.shared.routing.estimators.audit_alarm import AuditAlarm
from upwell.shared.routing.estimators.offload_share import ShareController
from upwell.shared.routing.hardness import Measure, is_hard
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine

any_score = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, -0.0, 0.5, 1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324])
)
batches = st.lists(st.tuples(st.lists(any_score, max_size=6), st.integers(0, 3), st.integers(0, 3)), max_size=60)
measures = st.sampled_from(["margin", "max_prob", "entropy", "count"])


@settings(deadline=None, max_examples=examples(150))
@given(batches, measures, st.floats(0, 1), st.floats(-5, 5))
def test_a_controller_takes_anything_and_stays_sane(
    told: list[tuple[list[float], int, int]], measure: Measure, target: float, start: float
) -> None:
    controller = ShareController.start(HardSettings(measure, start, cloud_share=target))
    for scores, large, kept in told:
        before = controller
        controller = controller.observe(len(scores) + large + kept, large, scores)
        assert -0.1 <= controller.alpha <= 1.1
        assert not math.isnan(controller.threshold)
        assert len(controller.recent) == len(controller.ordered) <= 250
        assert sorted(controller.recent) == list(controller.ordered)
        assert before == before.observe(0, 0, ())


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.floats(0, 1), min_size=400, max_size=800), measures, st.floats(0.05, 0.95))
def test_the_share_holds_for_any_row_of_scores(scores: list[float], measure: Measure, target: float) -> None:
    """By the sum of its steps: |share − target| ≤ 1.2 / (0.015 T), however the scores were chosen.

    Until there is something to cut (20 scores) the start decides, which is neither here nor there.
    """
    controller = ShareController.start(HardSettings(measure, 0.5, cloud_share=target))
    sent = 0
    for score in scores:
        sent += is_hard(score, measure, controller.threshold)
        controller = controller.observe(1, 0, (score,))
    assert abs(sent / len(scores) - target) <= 1.2 / (0.015 * len(scores)) + 0.05


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(0, 400), st.integers(0, 400), st.floats(0.001, 0.999), st.floats(0.5, 0.999))
def test_bounds_and_tails_are_two_sides_of_one_thing(count: int, more: int, chance: float, confidence: float) -> None:
    trials = count + more
    low, high = interval(count, trials, confidence)
    assert 0 <= low <= (count / trials if trials else 0.5) <= high <= 1
    total = at_most(count, trials, chance) + at_least(count + 1, trials, chance)
    assert math.isclose(total, 1.0, abs_tol=1e-9)
    bound = upper_bound(count, trials, confidence)
    if abs(bound - chance) > 1e-9:
        assert (at_most(count, trials, chance) <= 1 - confidence) == (chance > bound)


losses = st.sampled_from([0.0, 0.0, 0.0, 0.0, 1.0, math.nan])
samples = st.lists(st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([math.inf, -math.inf])), losses), max_size=400)


@settings(deadline=None, max_examples=examples(150))
@given(samples, st.floats(0.01, 0.5), st.floats(0.5, 0.99))
def test_a_cut_for_a_risk_is_certain_of_it_and_the_next_is_not(
    rows: list[tuple[float, float]], max_risk: float, confidence: float
) -> None:
    sample = Sample(np.array([score for score, _ in rows], float), np.array([loss for _, loss in rows], float))
    try:
        cut = cut_for_risk(sample, max_risk, confidence)
    except CannotCalibrate:
        return
    known = sample.known
    assert at_most(known.kept_wrong(cut), len(known), max_risk) <= 1 - confidence
    above = known.cuts()[known.cuts() > cut]
    if len(above):
        assert at_most(known.kept_wrong(float(above[0])), len(known), max_risk) > 1 - confidence


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.floats(0, 1), min_size=300, max_size=600), st.floats(0.15, 0.3))
def test_a_cut_for_a_share_is_the_nearest_there_is(scores: list[float], target: float) -> None:
    sample = Sample(np.array(scores), np.full(len(scores), math.nan))
    best = min((abs(sample.share(float(cut)) - target) for cut in sample.cuts()), default=1.0)
    try:
        assert math.isclose(abs(sample.share(cut_for_share(sample, target)) - target), best, abs_tol=1e-12)
    except CannotCalibrate:
        assert best > 0.02 or len(scores) < 336


names = st.sampled_from(["", "a", "b"])


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.tuples(st.integers(0, 50), names, names, names), min_size=1, max_size=30))
def test_every_line_is_in_one_group_that_it_agrees_with(rows: list[tuple[int, str, str, str]]) -> None:
    lines = [
        LogLine(t_s=t, model="m", size_bytes=n, edge_digest=edge, edge_runtime=runtime, cloud_digest=cloud)
        for n, (t, edge, runtime, cloud) in enumerate(rows)
    ]
    groups = by_model_pair(lines)
    assert sorted(line.size_bytes for group in groups.values() for line in group) == list(range(len(lines)))
    for model_pair, group in groups.items():
        assert [line.t_s for line in group] == sorted(line.t_s for line in group)
        for line in group:
            assert line.edge_digest in ("", model_pair.edge_digest)
            assert line.edge_runtime in ("", model_pair.edge_runtime)
            assert line.cloud_digest in ("", model_pair.cloud_digest)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.booleans(), max_size=200), st.floats(0, 1), st.integers(0, 20), st.integers(0, 20))
def test_a_tally_counts_right_and_its_capital_is_never_negative(
    told: list[bool], max_risk: float, kept: int, sent: int
) -> None:
    tally = AuditAlarm.start(HardSettings(max_risk=max_risk)).saw(kept + sent, kept)
    for disagreed in told:
        tally = tally.add(disagreed)
    assert (tally.n, tally.disagreed) == (len(told), sum(told))
    assert all(0 <= capital < math.inf for capital in tally.capitals)
    assert tally.low <= (tally.disagreed / tally.n if tally.n else 0.5) <= tally.high
