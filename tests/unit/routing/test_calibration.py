"""From logged lines to a threshold: the parts of a calibration, against brute force where that gives an answer."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.routing.calibration.binomial import at_least, at_most, interval, lower_bound, upper_bound
from upwell.shared.routing.calibration.discrimination import auroc
from upwell.shared.routing.calibration.logged_hardness import fitted_temperature, measured
from upwell.shared.routing.calibration.object_chances import fitted_chances, why_unfitted
from upwell.shared.routing.calibration.pair_calibration import CalibrationResult, Target, by_model_pair, calibration_of
from upwell.shared.routing.calibration.threshold_choice import (
    CannotCalibrate,
    Sample,
    cut_for_risk,
    cut_for_share,
    found,
    requests_for_risk,
    requests_for_share,
)
from upwell.shared.routing.hardness import UNCALIBRATED, UNMOVED, LogitFit, Measure, hardness, uncalibrated
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import ModelPair
from upwell.shared.routing.request_log_line import LogLine, QualityAnswer
from upwell.tools.policy.calibrate_cli import _sentence
from upwell.tools.policy.policy_yaml_writer import PolicyText, evidence


def line(t_s: float = 0.0, **fields: Any) -> LogLine:
    return LogLine.model_validate({"t_s": t_s, "model": "digits", "size_bytes": 1000, **fields})


def lines(count: int, seed: int = 0, **fields: Any) -> list[LogLine]:
    """The device is wrong with probability 0.3 (1 − margin), the cloud with 0.03."""
    rng = np.random.default_rng(seed)
    return [
        line(
            index / 5,
            hardness={"margin": margin, "entropy": 1 - margin},
            edge_correct=bool(rng.random() >= 0.3 * (1 - margin)),
            cloud_correct=bool(rng.random() >= 0.03),
            **fields,
        )
        for index, margin in enumerate(rng.random(count).tolist())
    ]


def calibrated(logged: list[LogLine], target: Target, **policy: Any) -> CalibrationResult:
    """As the command does it, with the target written in the defaults."""
    named = {"cloud_share": target.cloud_share} if target.is_share else {"max_risk": target.max_risk}
    defaults: dict[str, Any] = policy.pop("defaults", {})
    hard = {**defaults.pop("hard", {}), **named}
    parsed = Policy.model_validate({"defaults": {**defaults, "hard": hard}, **policy})
    settings = parsed.settings("digits", None).hard
    assert settings is not None
    return calibration_of(logged, CompiledPolicy(parsed), settings, ModelPair(), target)


SHARE, RISK = Target(cloud_share=0.2), Target(max_risk=0.02)


def test_what_lower_qualities_cost_is_counted_and_written_as_evidence() -> None:
    logged = [
        one.model_copy(update={"qualities": (
            QualityAnswer(quality=20, up_bytes=500, whole_bytes=1000, agrees=index >= 8),
            QualityAnswer(quality=60, up_bytes=800, whole_bytes=1000, agrees=True),
        )})
        for index, one in enumerate(lines(400))
    ]  # fmt: skip
    found = calibrated(logged, SHARE)
    best, worse = found.qualities
    assert (best.quality, best.requests, best.bytes_share, best.agreement) == (60, 400, 0.8, 1.0)
    assert (worse.quality, worse.bytes_share, worse.agreement) == (20, 0.5, 0.98)
    assert best.agreement_bound == pytest.approx(0.05 ** (1 / 400)), "Clopper and Pearson's, without a miss"
    assert 0.96 < worse.agreement_bound < 0.98
    assert evidence(found)["qualities"][1] == {
        "quality": 20, "requests": 400, "bytes_share": 0.5, "agreement": 0.98,
        "agreement_bound": round(worse.agreement_bound, 4),
    }  # fmt: skip
    assert "qualities" not in evidence(calibrated(lines(400), SHARE))


def test_binomial_tails_are_the_sums_of_their_terms() -> None:
    for trials, count, chance in [(1, 0, 0.3), (7, 3, 0.5), (20, 20, 0.9), (60, 2, 0.02)]:
        terms = [math.comb(trials, i) * chance**i * (1 - chance) ** (trials - i) for i in range(trials + 1)]
        assert at_most(count, trials, chance) == pytest.approx(sum(terms[: count + 1]), rel=1e-12)
        assert at_least(count, trials, chance) == pytest.approx(sum(terms[count:]), rel=1e-12)


def test_binomial_tails_at_the_edges() -> None:
    assert at_most(-1, 5, 0.5) == 0.0
    assert at_most(5, 5, 0.5) == 1.0
    assert at_most(0, 5, 0.0) == 1.0
    assert at_most(4, 5, 1.0) == 0.0
    assert at_most(0, 400_000, 0.5) == 0.0
    assert at_least(0, 0, 0.5) == 1.0


def test_bounds_are_those_of_the_tables() -> None:
    assert upper_bound(0, 149, 0.95) == pytest.approx(1 - 0.05 ** (1 / 149), rel=1e-9)
    assert upper_bound(0, 0, 0.95) == upper_bound(9, 9, 0.95) == 1.0
    assert lower_bound(0, 9, 0.95) == 0.0
    assert interval(5, 50, 0.95) == pytest.approx((0.03327, 0.21814), abs=1e-5)


def test_a_share_cuts_off_the_hardest() -> None:
    scores = np.random.default_rng(0).permutation(1000) / 1000
    cut = cut_for_share(Sample(scores, np.full(1000, np.nan)), 0.2)
    assert cut == pytest.approx(0.7995)
    assert (scores > cut).sum() == 200


def test_what_goes_up_anyway_is_part_of_the_share() -> None:
    scores = np.arange(1000) / 1000
    scores[:100] = np.inf
    assert Sample(scores, scores).share(cut_for_share(Sample(scores, np.full(1000, np.nan)), 0.2)) == 0.2


def test_a_share_that_ties_do_not_allow_is_refused_with_the_nearest() -> None:
    scores = np.repeat([0.1, 0.5, 0.9], [500, 150, 350])
    with pytest.raises(CannotCalibrate, match=r"3 distinct values, and the nearest shares are 35.0% and 0.0%"):
        cut_for_share(Sample(scores, np.full(1000, np.nan)), 0.2)


def test_a_share_that_large_requests_alone_exceed_is_refused() -> None:
    scores = np.where(np.arange(1000) < 300, np.inf, np.arange(1000) / 1000)
    with pytest.raises(CannotCalibrate, match=r"30.0% are offloaded whatever the threshold"):
        cut_for_share(Sample(scores, np.full(1000, np.nan)), 0.2)


def test_a_share_that_nothing_can_be_cut_for_is_refused() -> None:
    with pytest.raises(CannotCalibrate, match="no request has a score"):
        cut_for_share(Sample(np.full(1000, -np.inf), np.full(1000, np.nan)), 0.2)


def test_a_share_needs_requests() -> None:
    assert [requests_for_share(share) for share in (0.01, 0.2, 0.5, 0.99)] == [1000, 256, 400, 1000]
    with pytest.raises(CannotCalibrate, match=r"255 requests are too few.* at least 256 are needed") as refused:
        cut_for_share(Sample(np.arange(255.0), np.full(255, np.nan)), 0.2)
    assert refused.value.growth == 256 / 255


def brute_force_cut(sample: Sample, max_risk: float, confidence: float) -> float | None:
    """Fixed sequence testing as it is written: from the cut that sends most, one after the other."""
    best = None
    for cut in sample.cuts().tolist():
        if at_most(sample.kept_wrong(cut), len(sample), max_risk) > 1 - confidence:
            break
        best = cut
    return best


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("digits", [1, 6])
def test_the_risk_is_tested_cut_by_cut(seed: int, digits: int) -> None:
    """With ties and without."""
    rng = np.random.default_rng(seed)
    scores = rng.random(800).round(digits)
    sample = Sample(scores, (rng.random(800) < 0.2 * scores).astype(float))
    wanted = brute_force_cut(sample, 0.05, 0.9)
    assert wanted is not None
    assert cut_for_risk(sample, 0.05, 0.9) == wanted


def test_a_risk_that_the_device_keeps_alone_sends_nothing() -> None:
    scores = np.random.default_rng(0).random(500)
    sample = Sample(scores, np.zeros(500))
    cut = cut_for_risk(sample, 0.02, 0.95)
    assert found(sample, cut, 0.95).share == 0.0


def test_a_risk_needs_requests() -> None:
    assert requests_for_risk(0.02, 0.95) == 149
    sample = Sample(np.random.default_rng(0).random(149), np.zeros(149))
    assert cut_for_risk(sample, 0.02, 0.95) <= 1
    with pytest.raises(
        CannotCalibrate, match=r"148 requests with both answers known are too few.* at least 149 are needed"
    ):
        cut_for_risk(sample.where(np.arange(149) < 148), 0.02, 0.95)
    nobody_knows = Sample(np.arange(500.0), np.full(500, np.nan))
    with pytest.raises(CannotCalibrate, match="no line of the log has both"):
        cut_for_risk(nobody_knows, 0.02, 0.95)


def test_a_risk_out_of_reach_is_refused_with_the_best_that_is_not() -> None:
    """A fifth has the easiest score, and a quarter of those is wrong: nothing can send them up."""
    scores = np.concatenate([np.zeros(200), np.linspace(0.1, 1, 800)])
    wrong = np.concatenate([np.tile([1.0, 0, 0, 0], 50), np.zeros(800)])
    best = upper_bound(50, 1000, 0.95)
    with pytest.raises(CannotCalibrate, match=f"out of reach: .* the bound is {best:.4g}"):
        cut_for_risk(Sample(scores, wrong), 0.02, 0.95)


def test_a_score_on_the_other_side_of_a_rounding_stays_on_its_side_of_the_cut() -> None:
    cuts = Sample(np.array([0.1, 0.3, 0.3, 0.5, np.inf, -np.inf]), np.zeros(6)).cuts()
    assert cuts == pytest.approx([0.2, 0.4, 0.5])


def overconfident(count: int, seed: int, factor: float) -> list[LogLine]:
    """Logits `factor` times as large as those that tell the truth."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        logits = rng.normal(0, 1.5, 10)
        chances = np.exp(logits) / np.exp(logits).sum()
        label = int(rng.choice(10, p=chances))
        made.append(line(index, logits=(logits * factor).tolist(), edge_correct=bool(logits.argmax() == label)))
    return made


@pytest.mark.parametrize("factor", [pytest.param(0.4, marks=pytest.mark.exhaustive), 2.5])
def test_the_temperature_undoes_a_factor(factor: float) -> None:
    assert fitted_temperature(overconfident(4000, 1, factor), "margin", 1.0) == pytest.approx(factor, rel=0.15)


def test_a_temperature_that_does_not_help_is_left_alone() -> None:
    assert fitted_temperature(overconfident(2000, 2, 1.0), "margin", 1.0) == 1.0
    assert fitted_temperature(overconfident(40, 2, 3.0), "margin", 1.0) == 1.0
    assert fitted_temperature(lines(500), "margin", 1.5) == 1.5


def test_a_temperature_survives_odd_logits() -> None:
    odd = [line(logits=(math.inf, 0.0), edge_correct=True), line(logits=(1e300, -1e300), edge_correct=False)] * 40
    assert 0.01 < fitted_temperature(odd + overconfident(400, 3, 2.0), "margin", 1.0) < 100


def test_a_device_that_is_always_right_keeps_the_order_of_its_scores() -> None:
    """The likeliest temperature would make all of them 1, so that no threshold reaches a share."""
    apart = np.random.default_rng(0).uniform(2.0, 10.0, 500).tolist()
    right = [line(index, logits=(by, 0.0), edge_correct=True, cloud_correct=True) for index, by in enumerate(apart)]
    one = calibrated(right, SHARE)
    assert one.hard.temperature == 1.0
    assert one.chosen.share == pytest.approx(0.2, abs=0.01)


def test_hardness_comes_from_logits_where_they_are_and_else_from_the_line() -> None:
    logged = [
        line(logits=(2.0, 0.0, 1.0)),
        line(hardness={"margin": 0.25}),
        line(logits=(1.0, 0.0), hardness={"margin": 9.0}),
        line(),
    ]
    values = measured(logged, "margin", LogitFit(2.0))
    assert values[0] == hardness(np.array([[2.0, 0.0, 1.0]]), "margin", logits=True, temperature=2.0)[0]
    assert values[1] == 0.25
    assert values[2] == pytest.approx(1 / (1 + math.exp(-0.5)) - 1 / (1 + math.exp(0.5)))
    assert math.isnan(values[3])
    assert measured([line(hardness={"count": 7})], "count").tolist() == [7.0]


def detected(
    count: int, seed: int, temperature: float, bias: float, weight: float = 0.0, slope: float = 1.0
) -> list[LogLine]:
    """Up to eight possible objects a line, each there with the chance that such a calibration gives it."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        chances = rng.uniform(0.02, 0.98, rng.integers(0, 9))
        supports = np.exp(rng.uniform(0, 3, len(chances))) if weight else np.ones(len(chances))
        slopes = np.where(chances < 0.5, slope, 1.0) / temperature
        logits = np.log(chances / (1 - chances)) * slopes + bias + weight * np.log(supports)
        there = rng.random(len(chances)) < 1 / (1 + np.exp(-logits))
        is_right = bool(((chances >= 0.5) == there).all())
        objects = {"chances": chances.tolist(), "supports": supports.tolist()}
        made.append(line(index, edge_correct=is_right, cloud_correct=True, **objects))
    return made


@pytest.mark.parametrize("measure", ["margin", "doubtful"])
def test_the_chances_of_objects_are_moved_to_where_the_cloud_finds_them(measure: Measure) -> None:
    fit = fitted_chances(detected(2000, 1, 0.4, 1.0), measure, 1.0)
    assert fit.temperature == pytest.approx(0.4, rel=0.3)
    assert fit.bias == pytest.approx(1.0, abs=0.3)
    assert fit.support == 0


def test_few_wrong_answers_are_shared_out_to_both_halves() -> None:
    logged = detected(2000, 1, 0.4, 1.0)
    wrong = [one for one in logged if not one.edge_correct][:16]
    right = [one for one in logged if one.edge_correct][:150]
    every_second = [one for pair in zip(wrong, right, strict=False) for one in pair] + right[len(wrong) :]
    assert why_unfitted(every_second, len(every_second)) == ""
    assert fitted_chances(every_second, "margin", 1.0) != uncalibrated("margin")


@pytest.mark.parametrize("weight", [0.8, -1.2])
def test_objects_count_as_far_as_boxes_support_them(weight: float) -> None:
    logged = detected(2000, 1, 0.8, 0.5, weight)
    fit = fitted_chances(logged, "margin", 1.0)
    assert fit.temperature == pytest.approx(0.8, rel=0.3)
    assert fit.bias == pytest.approx(0.5, abs=0.4)
    assert fit.support == pytest.approx(weight, rel=0.25)
    without = [one.model_copy(update={"supports": None}) for one in logged]
    assert fitted_chances(without, "margin", 1.0).support == 0
    wrong = np.array([not one.edge_correct for one in logged])
    other = measured(logged, "margin", fitted_chances(without, "margin", 1.0))
    assert auroc(-measured(logged, "margin", fit), wrong) > auroc(-other, wrong) + 0.005


@pytest.mark.parametrize(("temperature", "bias", "slope"), [(1.0, 1.0, 10.0), (0.8, 1.3, 4.0)])
def test_objects_that_are_not_shown_have_a_slope_of_their_own(temperature: float, bias: float, slope: float) -> None:
    fit = fitted_chances(detected(2000, 1, temperature, bias, slope=slope), "margin", 1.0)
    assert fit.temperature == pytest.approx(temperature, rel=0.35)
    assert fit.bias == pytest.approx(bias, abs=0.3)
    assert fit.hidden_slope == pytest.approx(slope, rel=0.35)
    check = detected(2000, 2, temperature, bias, slope=slope)
    wrong = np.array([not one.edge_correct for one in check])
    areas = [auroc(-measured(check, "margin", one), wrong) for one in (fit, UNCALIBRATED, LogitFit())]
    assert areas[0] > areas[1] > areas[2] + 0.01


def test_a_calibration_without_a_slope_is_one_of_before() -> None:
    one = calibrated(detected(1200, 1, 2.0, 0.7, slope=20.0), SHARE)
    assert one.hard.hidden_slope > 10
    text = PolicyText("version: 1\n", Path("policy.yaml"))
    text.set_target("digits", SHARE)
    text.add(one)
    older = "\n".join(line for line in text.text().splitlines() if "hidden_slope:" not in line)
    found = [parse_yaml(each, Policy).settings("digits", None).hard for each in (text.text(), older)]
    assert [hard and hard.fit for hard in found] == [one.hard.fit, one.hard.fit._replace(hidden_slope=1.0)]


def test_a_calibration_of_classes_says_nothing_of_objects() -> None:
    assert calibrated(lines(1200), SHARE).hard.fit[1:] == LogitFit()[1:]


def test_a_policy_file_carries_the_whole_fit_and_one_from_before_has_no_weight() -> None:
    one = calibrated(detected(1200, 1, 0.8, 0.5, -1.2), SHARE)
    assert one.hard.support < -0.8
    text = PolicyText("version: 1\n", Path("policy.yaml"))
    text.set_target("digits", SHARE)
    text.add(one)
    read = text.policy().settings("digits", None).hard
    assert read is not None
    assert (read.fit, read.threshold) == (one.hard.fit, one.threshold)
    older = [line for line in text.text().splitlines() if "support:" not in line]
    assert len(older) == len(text.text().splitlines()) - 1
    read = parse_yaml("\n".join(older), Policy).settings("digits", None).hard
    assert read is not None
    assert read.fit == one.hard.fit._replace(support=0.0)


def test_a_support_that_tells_nothing_gets_almost_no_weight() -> None:
    noise = np.random.default_rng(6)
    logged = [
        one.model_copy(update={"supports": tuple(noise.uniform(1, 20, len(one.chances or ())).tolist())})
        for one in detected(2000, 1, 0.4, 1.0)
    ]
    assert fitted_chances(logged, "margin", 1.0).support == pytest.approx(0, abs=0.15)


def test_scores_that_all_look_sure_are_moved_to_where_the_doubts_lie() -> None:
    logged = detected(2000, 5, 1.0, 0.0)
    squeezed = [one.model_copy(update={"chances": tuple(0.9 + x / 10 for x in one.chances or ())}) for one in logged]
    shown = [one.model_copy(update={"edge_correct": all(x > 0.5 for x in one.chances or ())}) for one in logged]
    lines = [a.model_copy(update={"edge_correct": b.edge_correct}) for a, b in zip(squeezed, shown, strict=True)]
    fit = fitted_chances(lines, "margin", 1.0)
    assert -fit.bias * fit.temperature == pytest.approx(math.log(0.95 / 0.05), abs=0.2)


@pytest.mark.parametrize("measure", ["margin", "doubtful", "near"])
def test_too_few_lines_or_of_one_kind_leave_a_measure_as_it_is_without_a_calibration(measure: Measure) -> None:
    assert fitted_chances(detected(40, 2, 0.4, 1.0), measure, 1.0) == uncalibrated(measure)
    right = [line(chances=(0.9,), edge_correct=True)] * 100
    assert fitted_chances(right, measure, 2.0) == uncalibrated(measure)._replace(temperature=2.0)


def with_wrong(wrong: int, right: int, seed: int) -> list[LogLine]:
    """So many of each kind, of chances that a temperature of 0.4 and a bias of 1 make true."""
    made = detected(6000, seed, 0.4, 1.0)
    kinds = ([one for one in made if one.edge_correct is kind] for kind in (False, True))
    picked = [one for kind, count in zip(kinds, (wrong, right), strict=True) for one in kind[:count]]
    return sorted(picked, key=lambda one: one.t_s)


def test_too_few_wrong_answers_are_told_with_the_lines_that_would_do() -> None:
    one = calibrated(with_wrong(6, 394, 1), SHARE)
    assert one.hard.fit == UNCALIBRATED
    (text,) = one.warnings
    found = re.fullmatch(
        r"no chances are fitted: 321 usable lines with (\d+) wrong answers, where it takes 50 with 16: "
        r"about (\d+) lines of such a log",
        text,
    )
    assert found is not None, text
    assert int(found[2]) == math.ceil(400 * 16 / int(found[1]))
    (text,) = calibrated(with_wrong(0, 400, 1), SHARE).warnings
    assert text.endswith("with 0 wrong answers, where it takes 50 with 16")


@pytest.mark.parametrize("seed", range(6))
def test_chances_that_tell_the_truth_uncalibrated_are_left_alone(seed: int) -> None:
    logged = detected(400, seed, 1.0, UNCALIBRATED.bias, slope=UNCALIBRATED.hidden_slope)
    assert fitted_chances(logged, "margin", 1.0) == UNCALIBRATED


def surprise(fit: LogitFit, fitted_on: list[LogLine], check: list[LogLine]) -> float:
    """The mean of −ln P of what `check` saw; the chance of unseen objects is the likeliest of `fitted_on`."""

    def mean(lines: list[LogLine], unseen: float) -> float:
        right = np.clip(math.exp(-unseen) * measured(lines, "margin", fit), 1e-6, 1 - 1e-6)
        was_right = np.array([one.edge_correct for one in lines], bool)
        return float(-np.log(np.where(was_right, right, 1 - right)).mean())

    return mean(check, min((0.0, 0.01, 0.1, 0.3, 1.0), key=lambda unseen: mean(fitted_on, unseen)))


@pytest.mark.parametrize("seed", range(4, 8))
def test_chances_that_tell_nothing_are_left_alone_or_fitted_to_say_little(seed: int) -> None:
    """The best that can be said of other lines is the share of right answers, 0.7."""

    def noise(seed: int) -> list[LogLine]:
        rng = np.random.default_rng(seed)
        logged = detected(400, seed, 1.0, 0.0)
        return [one.model_copy(update={"edge_correct": bool(rng.random() < 0.7)}) for one in logged]

    logged, check = noise(seed), noise(seed + 100)
    fit = fitted_chances(logged, "margin", 1.0)
    best = -0.7 * math.log(0.7) - 0.3 * math.log(0.3)
    assert fit == UNCALIBRATED or surprise(fit, logged, check) < best + 0.05 < surprise(UNCALIBRATED, logged, check)


def test_a_fit_whose_order_is_no_better_than_chance_is_left() -> None:
    def noise(seed: int) -> list[LogLine]:
        rng = np.random.default_rng(seed)
        return [
            one.model_copy(update={"edge_correct": bool(rng.random() < 0.7)}) for one in detected(200, seed, 1.0, 0.0)
        ]

    fits = [fitted_chances(noise(seed), "margin", 1.0) for seed in range(10)]
    assert fits.count(UNCALIBRATED) >= 8


def test_a_policy_measures_near_unmoved_until_a_calibration_moves_it_by_any_fit() -> None:
    logged = [line(chances=(0.9, 0.7, 0.55, 0.3, 0.1))]
    settings = parse_yaml("version: 1\ndefaults: {hard: {measure: near, above: 2}}\n", Policy).settings("m", None).hard
    assert settings is not None
    assert settings.fit == UNMOVED
    assert measured(logged, "near").tolist() == measured(logged, "near", settings.fit).tolist() == [3]
    moved = [measured(logged, "near", UNCALIBRATED._replace(bias=bias)).tolist() for bias in (1.5, 1.501)]
    assert moved[0] == moved[1] != [3], "a calibration may find just what holds for other measures"


def test_a_detector_with_moved_chances_is_calibrated_as_the_policy_will_measure_it() -> None:
    logged = detected(1200, 3, 0.4, 1.5)
    one = calibrated(logged, SHARE)
    assert one.hard.bias > 0.5
    values = measured(logged, "margin", one.hard.fit)
    plain = measured(logged, "margin")
    assert (values < one.threshold).mean() == pytest.approx(0.2, abs=0.02)
    wrong = np.array([not x.edge_correct for x in logged])
    assert wrong[np.argsort(values)[:240]].mean() > wrong[np.argsort(plain)[:240]].mean()


@pytest.mark.parametrize("target", [SHARE, Target(max_risk=0.5)], ids=["share", "risk"])
def test_a_row_that_nothing_could_measure_does_not_prevent_the_fit(target: Target) -> None:
    """A box that was not finite: such a line has neither chances nor the measure, and is hard."""
    logged = detected(1200, 3, 0.4, 1.5)
    logged[7] = logged[7].model_copy(update={"chances": None})
    one = calibrated(logged, target)
    assert one.hard.bias > 0.5
    assert one.warnings == ()
    assert math.isnan(measured(logged, "margin", one.hard.fit)[7])


def test_lines_that_were_logged_without_chances_prevent_the_fit_and_are_counted() -> None:
    logged = detected(1200, 3, 0.4, 1.5)
    older = [one.model_copy(update={"chances": None, "hardness": {"margin": 0.8}}) for one in logged[:12]]
    one = calibrated([*older, *logged[12:]], SHARE)
    assert one.hard.fit == LogitFit()
    assert one.warnings == ("12 lines have margin without `chances`, so no chances are fitted; leave these lines out",)
    assert calibrated(lines(1200), SHARE).warnings == ()


def test_lines_that_were_logged_without_supports_prevent_their_weight_and_are_counted() -> None:
    logged = detected(1200, 1, 0.8, 0.5, -1.2)
    older = [one.model_copy(update={"supports": None}) for one in logged]
    mixed = [*older[:12], *logged[12:]]
    count = sum(bool(one.chances) for one in older[:12])
    one = calibrated(mixed, SHARE)
    assert one.hard.support == 0
    assert one.hard.fit != LogitFit()
    assert one.warnings == (
        f"{count} lines have `chances` without `supports`, so these get no weight; leave these lines out",
    )
    assert (measured(logged, "margin", one.hard.fit) < one.threshold).mean() == pytest.approx(0.2, abs=0.02)
    assert calibrated(logged, SHARE).hard.support < -0.8
    assert calibrated(older, SHARE).warnings == ()


def test_what_a_line_without_supports_means_to_a_fit_that_weighs_them_is_unknown() -> None:
    known, unknown, none = (line(chances=(0.9,), supports=(3.0,)), line(chances=(0.9,)), line(chances=(), supports=()))
    assert np.isnan(measured([known, unknown, none], "margin", LogitFit(support=-1.0))).tolist() == [False, True, False]
    assert measured([unknown], "margin", LogitFit(bias=1.0)) > 0.9


@pytest.mark.parametrize(
    "wrong", [{"supports": [1.0]}, {"chances": [0.9, 0.2], "supports": [1.0]}, {"chances": [], "supports": [1.0]}]
)
def test_supports_are_those_of_the_chances(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="supports needs one number for each of chances"):
        line(**wrong)


def test_lines_are_grouped_by_what_they_ran_on() -> None:
    logged = [
        line(3, edge_digest="e2", cloud_digest="c"),
        line(0, edge_digest="e1"),
        line(1, edge_digest="e1", cloud_digest="c"),
        line(2),
        line(4),
        line(5, edge_digest="e1", cloud_digest="d"),
        line(6, edge_digest="e1"),
    ]
    groups = {(one.edge_digest, one.cloud_digest): [x.t_s for x in g] for one, g in by_model_pair(logged).items()}
    assert groups == {("e1", "c"): [0, 1, 2], ("e2", "c"): [3, 4], ("e1", "d"): [5, 6]}


def test_lines_that_name_nothing_are_one_group() -> None:
    assert list(by_model_pair([line(), line()])) == [ModelPair()]


def test_a_share_is_reached_in_both_directions() -> None:
    falling = calibrated(lines(2000), SHARE)
    rising = calibrated(lines(2000), SHARE, defaults={"hard": {"measure": "entropy"}})
    for one in (falling, rising):
        assert one.chosen.share == pytest.approx(0.2, abs=0.001)
        assert one.held_out.share == pytest.approx(0.2, abs=0.05)
        assert one.chosen.requests + one.held_out.requests == one.requests == 2000
    assert falling.threshold == pytest.approx(1 - rising.threshold)


def test_large_requests_and_rules_are_decided_before_the_threshold() -> None:
    logged = [
        one.model_copy(update={"size_bytes": 10**6 if index % 10 == 0 else 10, "tags": {"kept": str(index % 10 == 1)}})
        for index, one in enumerate(lines(4000))
    ]
    one = calibrated(
        logged,
        SHARE,
        defaults={"large": {"above": "1kB"}},
        rules=[{"name": "kept", "match": {"tags": {"kept": "True"}}, "egress": "deny"}],
    )
    assert one.chosen.share == pytest.approx(0.2, abs=0.001)
    assert one.threshold == pytest.approx(0.125, abs=0.03), "10 % are large, so 10 of the 80 that are free go up"


def test_a_rule_with_a_threshold_of_its_own_keeps_it() -> None:
    logged = [one.model_copy(update={"tags": {"all": str(index % 2)}}) for index, one in enumerate(lines(4000))]
    own = {"name": "own", "match": {"tags": {"all": "1"}}, "set": {"hard": {"below": 0.1}}}
    one = calibrated(logged, SHARE, rules=[own])
    assert one.chosen.share == pytest.approx(0.2, abs=0.001)
    assert one.threshold == pytest.approx(0.3, abs=0.03), "half sends its 10 %, so the other half sends 30 %"


def test_lines_of_unknown_answers_are_left_out_of_a_risk_and_counted() -> None:
    known = lines(3000)
    unknown = [one.model_copy(update={"cloud_correct": None}) if i % 3 == 0 else one for i, one in enumerate(known)]
    one = calibrated(unknown, RISK)
    assert one.unknown == 1000
    assert one.chosen.known < one.chosen.requests
    assert one.warnings == ("1000 lines without known answers of both sides are left out",)


def test_a_log_that_knows_the_hard_ones_only_is_warned_of() -> None:
    biased = [
        one.model_copy(update={"cloud_correct": None}) if one.hardness["margin"] > 0.5 and index % 10 else one
        for index, one in enumerate(lines(4000))
    ]
    assert "not a random sample" in calibrated(biased, RISK).warnings[1]


def test_too_small_a_log_says_how_many_lines_it_takes() -> None:
    with pytest.raises(CannotCalibrate, match=r"at least 149 are needed even if .*: about 18\d lines of such a log"):
        calibrated(lines(100), RISK)
    for number in range(1, 6):  # none of the first ones is held out, but a fifth of many are
        with pytest.raises(CannotCalibrate, match="about 187 lines of such a log"):
            calibrated(lines(number), RISK)


def test_a_log_without_the_measure_says_what_it_has() -> None:
    with pytest.raises(CannotCalibrate, match="uses the measure max_prob, but the log has only entropy, margin"):
        calibrated(lines(1000), SHARE, defaults={"hard": {"measure": "max_prob"}})
    with pytest.raises(CannotCalibrate, match="no hardness and no logits"):
        calibrated([line() for _ in range(500)], SHARE)


def test_a_policy_that_decides_everything_itself_leaves_nothing_to_calibrate() -> None:
    with pytest.raises(CannotCalibrate, match="margin decides none"):
        calibrated(lines(500), SHARE, rules=[{"name": "all", "match": {}, "route": "edge"}])


def test_a_log_whose_parts_disagree_is_refused() -> None:
    """Every held-out line is hard: the split runs along something that decides how hard they are."""
    held_out = [math.modf(index * (math.sqrt(5) - 1) / 2)[0] < 0.2 for index in range(1, 2001)]
    logged = [
        one.model_copy(update={"hardness": {"margin": one.hardness["margin"] * (0.1 if out else 1)}})
        for one, out in zip(lines(2000), held_out, strict=True)
    ]
    with pytest.raises(CannotCalibrate, match=r"the check failed: .* held out would be offloaded, not 20"):
        calibrated(logged, SHARE)
    wrong = [
        one.model_copy(update={"edge_correct": not out, "cloud_correct": True})
        for one, out in zip(lines(2000), held_out, strict=True)
    ]
    with pytest.raises(CannotCalibrate, match=r"the check failed: .* are kept and wrong"):
        calibrated(wrong, RISK)


def test_the_temperature_is_fitted_on_lines_of_its_own() -> None:
    logged = [one.model_copy(update={"cloud_correct": True}) for one in overconfident(4000, 5, 3.0)]
    one = calibrated(logged, RISK)
    assert one.hard.temperature == pytest.approx(3.0, rel=0.2)
    assert one.chosen.requests == pytest.approx(2400, abs=2)
    assert one.held_out.requests == pytest.approx(800, abs=2)


def test_more_risk_is_less_cloud() -> None:
    shares = [calibrated(lines(3000), Target(max_risk=risk)).chosen.share for risk in (0.01, 0.02, 0.05, 0.1)]
    assert all(more > less for more, less in pairwise(shares))


@pytest.mark.parametrize(
    ("fit", "says"),
    [
        (LogitFit(), "is hard, so"),
        (LogitFit(2.0), "is hard, logits divided by 2, so"),
        (LogitFit(bias=0.5), "is hard, logits shifted by 0.5, so"),
        (LogitFit(2.0, 0.5), "is hard, logits divided by 2 and shifted by 0.5, so"),
        (
            LogitFit(2.0, 0.5, 1.5),
            "is hard, logits divided by 2, shifted by 0.5 and raised by 1.5 ln of the support, so",
        ),
        (LogitFit(hidden_slope=8.0), "is hard, logits 8 times as steep for objects not shown, so"),
        (LogitFit(support=-1.5), "is hard, logits lowered by 1.5 ln of the support, so"),
    ],
)
def test_the_result_says_how_the_logits_are_moved(fit: LogitFit, says: str) -> None:
    one = calibrated(lines(500), SHARE)
    assert says in _sentence(replace(one, hard=replace(one.hard, **fit._asdict())))
