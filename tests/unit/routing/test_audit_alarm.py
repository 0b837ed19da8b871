"""The tally of audits: exact numbers, few false alarms however often one looks, and an alarm when it is due."""

from __future__ import annotations

import math

import numpy as np
import pytest

from upwell.shared.routing.estimators.audit_alarm import AuditAlarm
from upwell.shared.routing.policy.settings import HardSettings

RISK = 0.02
KEPT = 0.8
EPOCH = 2000


def started(max_risk: float = RISK, kept: float = KEPT) -> AuditAlarm:
    return AuditAlarm.start(HardSettings(max_risk=max_risk)).saw(10_000, round(10_000 * kept))


def first_alarm(risk: float, audits: int, seed: int, tally: AuditAlarm | None = None) -> int:
    """After how many audits of requests with this risk there is an alarm; 0 where there is none."""
    tally = started() if tally is None else tally
    for index, drawn in enumerate((np.random.default_rng(seed).random(audits) < risk / KEPT).tolist(), 1):
        tally = tally.add(drawn)
        if tally.alarm:
            return index
    return 0


@pytest.mark.exhaustive
def test_false_alarms_at_the_very_risk_are_as_rare_as_promised() -> None:
    """At most 5 % of epochs, looked at after every audit: of 100, 12 or more have a chance below 1 in 200."""
    assert sum(first_alarm(RISK, EPOCH, seed) > 0 for seed in range(100)) <= 11


@pytest.mark.parametrize(("risk", "within"), [(0.05, 1000), (0.1, 250)])
def test_a_broken_risk_raises_the_alarm(risk: float, within: int) -> None:
    assert all(0 < first_alarm(risk, EPOCH, seed) <= within for seed in range(15))


def test_a_model_that_was_good_for_long_is_still_caught() -> None:
    good = started()
    for _ in range(1000):
        good = good.add(False)
    assert 0 < first_alarm(0.08, 1000, 1, good) <= 600


def test_few_kept_rows_make_a_small_risk_of_the_same_disagreement() -> None:
    drawn = (np.random.default_rng(4).random(1500) < 0.06).tolist()
    many, few = started(kept=0.9), started(kept=0.2)
    for disagreed in drawn:
        many, few = many.add(disagreed), few.add(disagreed)
    assert many.alarm
    assert not few.alarm


def test_an_alarm_stays_until_a_whole_epoch_was_good() -> None:
    tally = started()
    for _ in range(20):
        tally = tally.add(True)
    assert tally.alarm
    for _ in range(EPOCH - 20 + EPOCH):
        tally = tally.add(False)
        assert tally.alarm
    assert tally.n == EPOCH
    tally = tally.add(False)
    assert not tally.alarm
    assert (tally.n, tally.disagreed) == (1, 0)
    assert tally.kept_share == KEPT


def test_without_a_promised_risk_it_only_counts() -> None:
    tally = AuditAlarm.start(HardSettings())
    for _ in range(50):
        tally = tally.add(True)
    assert (tally.n, tally.disagreed, tally.alarm) == (50, 50, False)


def test_a_risk_of_nothing_is_broken_by_one() -> None:
    assert not started(max_risk=0.0).add(False).alarm
    assert started(max_risk=0.0).add(True).alarm


def test_the_interval_is_the_exact_one() -> None:
    """Clopper and Pearson's for 5 of 50, as tables have it; and nothing is known before the first audit."""
    tally = AuditAlarm.start(HardSettings())
    assert (tally.low, tally.high) == (0.0, 1.0)
    for index in range(50):
        tally = tally.add(index < 5)
    assert tally.low == pytest.approx(0.03327, abs=1e-5)
    assert tally.high == pytest.approx(0.21814, abs=1e-5)


def test_the_share_that_is_kept_follows_what_is_seen() -> None:
    tally = AuditAlarm.start(HardSettings(max_risk=RISK))
    assert tally.kept_share == 1.0
    assert tally.saw(10, 5).kept_share == 0.5
    assert tally.saw(0, 0) is tally
    drifted = started(kept=1.0).saw(20_000, 0)
    assert drifted.kept_share == pytest.approx(0.0, abs=1e-6)
    assert math.isfinite(drifted.add(True).capitals[0])


def test_it_knows_the_risk_that_it_was_started_for() -> None:
    assert started(0.02).fits(HardSettings(max_risk=0.02))
    assert not started(0.02).fits(HardSettings(max_risk=0.03))
    assert not started(0.02).fits(HardSettings())
    assert AuditAlarm.start(HardSettings()).fits(HardSettings(max_risk=float("nan")))
