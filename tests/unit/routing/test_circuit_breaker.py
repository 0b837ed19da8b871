"""The breaker's states and moves, by table."""

from __future__ import annotations

import math

import pytest

from upwell.shared.routing.estimators.circuit_breaker import CLOSED, Breaker, BreakerVerdict

T = 100.0
ALLOW, PROBE, REFUSE = BreakerVerdict.ALLOW, BreakerVerdict.PROBE, BreakerVerdict.REFUSE


def opened(at_s: float = T, failures: int = Breaker.FAILURES) -> Breaker:
    breaker = CLOSED
    for _ in range(failures):
        breaker = breaker.failed(at_s)
    return breaker


def test_a_new_breaker_lets_everything_through() -> None:
    assert not CLOSED.is_open
    for now_s in (-math.inf, 0.0, T, 1e12):
        assert CLOSED.admit(now_s, 0.0) is ALLOW


def test_it_opens_with_the_third_failure_in_a_row_and_not_before() -> None:
    assert [opened(failures=count).is_open for count in range(5)] == [False, False, False, True, True]
    assert opened(failures=2).admit(T, 0.0) is ALLOW


WAITS = [(0.0, REFUSE), (0.49, REFUSE), (0.5, PROBE), (1.0, PROBE), (1e6, PROBE)]


@pytest.mark.parametrize(("after_s", "expected"), WAITS)
def test_open_it_refuses_until_the_wait_is_over(after_s: float, expected: BreakerVerdict) -> None:
    assert opened().admit(T + after_s, 0.0) is expected


def test_one_probe_at_a_time() -> None:
    probing = opened().take_probe(T + 0.5)
    assert probing.is_open
    for after_s in (0.5, 0.6, 2.0, 30.4):
        assert probing.admit(T + after_s, 0.0) is REFUSE
    assert probing.release_probe().admit(T + 0.6, 0.0) is PROBE


def test_a_probe_that_nobody_reports_on_is_forgotten() -> None:
    probing = opened().take_probe(T + 0.5)
    assert probing.admit(T + 0.5 + Breaker.PROBE_TIMEOUT_S, 0.0) is PROBE


def test_the_wait_doubles_with_each_failed_probe_up_to_its_limit() -> None:
    breaker, now_s, waits = opened(), T, []
    for _ in range(5):
        waits.append(breaker.wait_s)
        assert breaker.admit(now_s + breaker.wait_s - 1e-6, 0.0) is REFUSE
        now_s += breaker.wait_s
        assert breaker.admit(now_s, 0.0) is PROBE
        breaker = breaker.take_probe(now_s).failed(now_s)
        assert breaker.admit(now_s, 0.0) is REFUSE
    assert waits == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert opened(now_s).wait_s == 0.5, "the next time it starts with the shortest wait again"


def test_a_hasty_probe_that_fails_holds_back_the_hasty_and_not_the_patient() -> None:
    breaker = opened().take_probe(T + 0.5).failed(T + 0.55, 0.05)
    assert breaker.admit(T + 0.6, 0.05) is REFUSE
    assert breaker.admit(T + 0.6, 1.0) is PROBE
    assert breaker.take_probe(T + 0.6).admit(T + 0.7, 10.0) is REFUSE, "one probe at a time"


def test_who_waited_in_vain_beside_an_open_breaker_raises_its_patience() -> None:
    hasty = CLOSED
    for _ in range(Breaker.FAILURES):
        hasty = hasty.failed(T, 0.01)
    assert (hasty.admit(T, 0.01), hasty.admit(T, 0.5)) == (REFUSE, ALLOW)
    assert hasty.outlasted(0.5).admit(T, 0.5) is REFUSE


def test_a_clock_that_goes_back_neither_opens_nor_closes_it() -> None:
    assert opened().admit(T - 50, 0.0) is REFUSE
    assert opened(failures=2).admit(T - 50, 0.0) is ALLOW
    assert opened().take_probe(T + 0.5).admit(T, 0.0) is REFUSE


def test_it_is_a_value() -> None:
    before = opened()
    before.failed(T), before.take_probe(T), before.release_probe()
    assert before == opened()


def late(size_bytes: float, times: int = 3) -> Breaker:
    """Open after calls of so many bytes that got no answer within 0.2 s."""
    breaker = CLOSED
    for _ in range(times):
        breaker = breaker.failed(T, 0.2, size_bytes)
    return breaker


def test_a_much_smaller_message_passes_where_large_ones_were_late() -> None:
    assert late(100_000).admit(T + 0.1, 0.2, 50_000) is ALLOW
    assert late(100_000).admit(T + 0.1, 0.2, 60_000) is REFUSE
    assert late(100_000).outlasted(0.2, 50_000).admit(T + 0.1, 0.2, 40_000) is REFUSE


@pytest.mark.parametrize("size_bytes", [0, 20, 100, 8_000])
def test_of_small_messages_none_passes_for_its_size(size_bytes: float) -> None:
    assert late(100).admit(T + 0.1, 0.2, size_bytes) is REFUSE
    assert late(16_000).admit(T + 0.1, 0.2, size_bytes) is REFUSE


def test_after_a_failure_of_another_kind_size_does_not_matter() -> None:
    assert late(100_000, times=2).failed(T).admit(T + 0.1, 0.2, 1_000) is REFUSE


def test_a_smaller_probe_need_not_sit_out_what_a_large_one_added() -> None:
    breaker = late(40_000)
    at_s = T
    for _ in range(3):
        at_s = breaker.open_until_s
        breaker = breaker.take_probe(at_s).failed(at_s, 0.2, 200_000)
    assert breaker.wait_s == Breaker.LONGEST_WAIT_S
    assert breaker.admit(at_s + 0.4, 0.2, 30_000) is REFUSE
    assert breaker.admit(at_s + 0.6, 0.2, 30_000) is PROBE
    assert breaker.admit(at_s + 0.6, 0.2, 150_000) is REFUSE


def test_a_larger_probe_than_the_one_that_was_late_waits_until_no_smaller_one_came() -> None:
    breaker = late(40_000)
    again_s = breaker.open_until_s
    assert breaker.admit(again_s, 0.27, 80_000) is BreakerVerdict.PROBE
    assert breaker.admit(again_s, 0.27, 100_000) is BreakerVerdict.REFUSE
    assert breaker.admit(again_s + breaker.wait_s, 0.27, 100_000) is BreakerVerdict.PROBE
    heartened = breaker.heartened(breaker.failed_s)
    assert heartened.admit(breaker.failed_s, 0.27, 40_000) is BreakerVerdict.PROBE
    assert heartened.admit(breaker.failed_s, 0.27, 60_000) is BreakerVerdict.REFUSE


def test_after_news_of_the_link_the_wait_begins_anew_and_larger_probes_follow_soon() -> None:
    breaker = late(40_000)
    for _ in range(3):
        at_s = breaker.open_until_s
        breaker = breaker.take_probe(at_s).failed(at_s, 0.2, 25_000)
    assert breaker.wait_s == Breaker.LONGEST_WAIT_S
    heard_s = breaker.failed_s + 1.0
    heartened = breaker.heartened(heard_s)
    assert heartened.admit(heard_s, 0.2, 90_000) is PROBE, "two doublings of half a second"
    assert heartened.admit(heard_s, 0.2, 110_000) is REFUSE
    again = heartened.take_probe(heard_s).failed(heard_s, 0.2, 90_000)
    assert again.wait_s == 2 * Breaker.FIRST_WAIT_S


def test_among_the_smallest_of_all_that_comes_a_probe_waits_for_no_smaller_one() -> None:
    breaker = late(40_000)
    for _ in range(3):
        at_s = breaker.open_until_s
        breaker = breaker.take_probe(at_s).failed(at_s, 0.2, 25_000)
    again_s = breaker.failed_s - breaker.probed_s + Breaker.FIRST_WAIT_S
    assert breaker.admit(again_s, 0.2, 30_000) is REFUSE
    assert breaker.admit(again_s + 0.01, 0.2, 30_000, tries_link=True) is PROBE
    assert breaker.admit(again_s - 0.01, 0.2, 30_000, tries_link=True) is REFUSE
    assert breaker.take_probe(again_s).admit(again_s + 0.01, 0.2, 30_000, tries_link=True) is REFUSE
    slow_cloud = late(1_000).take_probe(T + 0.5).failed(T + 0.5, 0.2, 1_000)
    assert slow_cloud.admit(T + 1.0, 0.2, 1_000, tries_link=True) is REFUSE, "size was not what made it late"


def test_what_opened_it_counts_as_a_probe_of_the_least_size_and_the_longest_wait() -> None:
    breaker = CLOSED
    for waited_s, size_bytes in ((0.1, 40_000), (0.3, 20_000), (0.2, 60_000)):
        breaker = breaker.failed(T, waited_s, size_bytes)
    assert (breaker.probed_s, breaker.probed_bytes) == (0.3, 20_000)


def test_of_calls_without_a_chance_twelve_open_it() -> None:
    breaker, opens = CLOSED, []
    for _ in range(12):
        breaker = breaker.failed(T, 0.1, 40_000, weight=0.0)
        opens.append(breaker.is_open)
    assert opens == [False] * 11 + [True]
