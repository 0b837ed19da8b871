"""How often a version that is no worse is rejected, and how soon one that is."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.edge.updates.model_versions.version_comparison import AUDITS, ERROR_RATE, MOST_AUDITS, SignTest

DELTA = ERROR_RATE / 4


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_formula_is_the_integral_that_it_stands_for(worse: int, better: int) -> None:
    steps = 20_000
    count = worse + better
    middles = (0.5 + (index + 0.5) / (2 * steps) for index in range(steps))
    logs = [worse * math.log(p) + better * math.log1p(-p) + count * math.log(2.0) for p in middles]
    most = max(logs)
    integral = most + math.log(sum(math.exp(one - most) for one in logs) / steps)
    assert SignTest(worse, better).evidence == pytest.approx(integral, abs=1e-4)


def test_without_a_request_nothing_speaks_against_it() -> None:
    assert SignTest().evidence == pytest.approx(0.0, abs=1e-12)
    assert not SignTest().rejects(0.5)


def ever_rejected(chance: float, requests: int) -> float:
    """P(it is ever rejected within so many requests on which the two differ), exactly: by the paths that never were."""
    alive = {0: 1.0}
    for count in range(1, requests + 1):
        after: dict[int, float] = {}
        for worse, mass in alive.items():
            for more, share in ((1, chance), (0, 1.0 - chance)):
                after[worse + more] = after.get(worse + more, 0.0) + mass * share
        alive = {worse: mass for worse, mass in after.items() if not SignTest(worse, count - worse).rejects(DELTA)}
    return 1.0 - sum(alive.values())


@pytest.mark.slow
def test_one_that_is_as_good_is_rejected_no_more_often_than_promised() -> None:
    assert 0.0 < ever_rejected(0.5, 200) <= DELTA
    assert ever_rejected(0.4, 200) < DELTA / 10


def trial_of(new: float, former: float, audits: int, draw: random.Random) -> bool:
    """Whether a version that is right so often is rejected within so many audits of independent requests."""
    test = SignTest()
    for _ in range(audits):
        is_right, former_right = draw.random() < new, draw.random() < former
        if is_right != former_right:
            test = test.add(is_worse=former_right)
            if test.rejects(DELTA):
                return True
    return False


@pytest.mark.exhaustive
def test_of_many_healthy_versions_few_are_rolled_back() -> None:
    draw = random.Random(7)
    trials = 2000
    rejected = sum(trial_of(0.92, 0.92, MOST_AUDITS, draw) for _ in range(trials))
    assert rejected <= ERROR_RATE * trials


def test_a_version_that_is_right_half_as_often_is_always_rolled_back() -> None:
    draw = random.Random(7)
    trials = 500
    assert sum(trial_of(0.51, 0.92, AUDITS, draw) for _ in range(trials)) >= 0.99 * trials
    assert sum(trial_of(0.51, 0.92, MOST_AUDITS, draw) for _ in range(trials)) == trials
