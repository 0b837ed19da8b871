"""The breaker's states and moves, by table."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest

from upwell.shared.routing.breaker import Admission, Breaker

T = 100.0
ALLOW, PROBE, REFUSE = Admission.ALLOW, Admission.PROBE, Admission.REFUSE


def opened(at_s: float = T, failures: int = Breaker.FAILURES) -> Breaker:
    breaker = Breaker()
    for _ in range(failures):
        breaker = breaker.failed(at_s)
    return breaker


def test_a_new_breaker_lets_everything_through() -> None:
    assert not Breaker().is_open
    for now_s in (-math.inf, 0.0, T, 1e12):
        assert Breaker().admit(now_s) is ALLOW


def test_it_opens_with_the_third_failure_in_a_row_and_not_before() -> None:
    assert [opened(failures=count).is_open for count in range(5)] == [False, False, False, True, True]
    assert opened(failures=2).admit(T) is ALLOW


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker().failed(T).failed(T).succeeded().failed(T).failed(T)
    assert not breaker.is_open
    assert breaker.failed(T).is_open


WAITS = [(0.0, REFUSE), (0.49, REFUSE), (0.5, PROBE), (1.0, PROBE), (1e6, PROBE)]


@pytest.mark.parametrize(("after_s", "expected"), WAITS)
def test_open_it_refuses_until_the_wait_is_over(after_s: float, expected: Admission) -> None:
    assert opened().admit(T + after_s) is expected


def test_one_probe_at_a_time() -> None:
    probing = opened().take_probe(T + 0.5)
    assert probing.is_open
    for after_s in (0.5, 0.6, 2.0, 30.4):
        assert probing.admit(T + after_s) is REFUSE
    assert probing.release_probe().admit(T + 0.6) is PROBE


def test_a_probe_that_nobody_reports_on_is_forgotten() -> None:
    probing = opened().take_probe(T + 0.5)
    assert probing.admit(T + 0.5 + Breaker.PROBE_TIMEOUT_S) is PROBE


def test_a_probe_that_succeeds_closes_it_with_a_clean_record() -> None:
    closed = opened().take_probe(T + 0.5).succeeded()
    assert closed == Breaker()
    assert not closed.failed(T + 1).failed(T + 1).is_open


def test_the_wait_doubles_with_each_failed_probe_up_to_its_limit() -> None:
    breaker, now_s, waits = opened(), T, []
    for _ in range(5):
        waits.append(breaker.wait_s)
        assert breaker.admit(now_s + breaker.wait_s - 1e-6) is REFUSE
        now_s += breaker.wait_s
        assert breaker.admit(now_s) is PROBE
        breaker = breaker.take_probe(now_s).failed(now_s)
        assert breaker.admit(now_s) is REFUSE
    assert waits == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert opened(now_s).wait_s == 0.5, "the next time it starts with the shortest wait again"


def test_failures_sent_before_it_opened_change_neither_the_wait_nor_its_end() -> None:
    breaker = opened()
    for _ in range(100):
        breaker = breaker.failed(T + 0.3)
    assert (breaker.wait_s, breaker.open_until_s) == (0.5, T + 0.5)
    assert breaker.admit(T + 0.5) is PROBE


def test_a_clock_that_goes_back_neither_opens_nor_closes_it() -> None:
    assert opened().admit(T - 50) is REFUSE
    assert opened(failures=2).admit(T - 50) is ALLOW
    assert opened().take_probe(T + 0.5).admit(T) is REFUSE
    assert opened().failed(T - 50).open_until_s == T + 0.5


def test_it_is_a_value() -> None:
    before = opened()
    before.failed(T), before.succeeded(), before.take_probe(T), before.release_probe()
    assert before == opened()
    with pytest.raises(FrozenInstanceError):
        before.failures = 0  # type: ignore[misc]  # that is the point
