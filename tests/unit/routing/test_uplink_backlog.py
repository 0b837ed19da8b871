"""The queue before the link against one that is simulated byte by byte."""

from __future__ import annotations

import itertools
import random

import pytest

from upwell.shared.routing.estimators.uplink_backlog import Backlog, InFlight

BYTES_PER_S = 1e5
S_PER_BYTE = 1 / BYTES_PER_S
RTT_S = 0.05


def queued(*messages: tuple[str, int, float]) -> Backlog:
    backlog = Backlog()
    for call, size_bytes, sent_s in messages:
        backlog = backlog.sent(InFlight(call, size_bytes, sent_s), S_PER_BYTE)
    return backlog


def wait_s(backlog: Backlog, now_s: float) -> float:
    return backlog.wait_s(now_s, S_PER_BYTE, RTT_S)[0]


def test_an_empty_link_makes_nobody_wait() -> None:
    assert Backlog().wait_s(1.0, S_PER_BYTE, RTT_S) == (0.0, S_PER_BYTE)


def test_what_is_before_one_must_leave_first() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.05))
    assert wait_s(backlog, 0.05) == pytest.approx(0.25)
    assert wait_s(backlog, 0.12) == pytest.approx(0.18)


def test_an_answer_proves_that_all_before_it_have_left() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.0)).answered("b", 0.1)
    assert wait_s(backlog, 0.1) == 0.0
    assert backlog.find("a") is not None
    assert backlog.answered("a", 0.12).in_flight == ()


def test_the_time_on_the_link_is_told_without_the_waiting() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.01)).answered("a", 0.1)
    assert backlog.carried("b", 0.1 + 0.2 + RTT_S, S_PER_BYTE) == pytest.approx((20_000, 0.2 + RTT_S))


def test_what_went_with_it_in_one_stretch_counts_with_it() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.01)).cancelled("a", 0.05, S_PER_BYTE)
    assert backlog.carried("b", 0.3 + RTT_S, S_PER_BYTE) == pytest.approx((30_000, 0.3 + RTT_S))


def test_a_message_that_found_the_link_idle_counts_alone() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 5.0))
    assert backlog.carried("b", 5.2 + RTT_S, S_PER_BYTE) == pytest.approx((20_000, 0.2 + RTT_S))


def test_nothing_is_told_of_a_message_that_nobody_knows_or_that_had_left() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.0)).answered("b", 0.1)
    assert backlog.carried("x", 1.0, S_PER_BYTE) is None
    assert backlog.carried("a", 1.0, S_PER_BYTE) is None


def test_a_cancelled_message_that_had_begun_still_leaves_and_one_that_had_not_is_gone() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.0), ("c", 30_000, 0.0))
    assert wait_s(backlog, 0.05) == pytest.approx(0.55)
    backlog = backlog.cancelled("b", 0.05, S_PER_BYTE)
    assert wait_s(backlog, 0.05) == pytest.approx(0.35)
    backlog = backlog.cancelled("a", 0.05, S_PER_BYTE)
    assert wait_s(backlog, 0.05) == pytest.approx(0.35)


def test_cancelled_messages_are_forgotten_when_they_have_left() -> None:
    backlog = queued(("a", 10_000, 0.0)).cancelled("a", 0.05, S_PER_BYTE)
    assert [in_flight.call for in_flight in backlog.in_flight] == ["a"]
    assert [in_flight.call for in_flight in backlog.sent(InFlight("b", 1, 0.2), S_PER_BYTE).in_flight] == ["b"]


def test_an_overdue_message_says_that_the_link_is_slower_but_no_more_than_so_much() -> None:
    backlog = queued(("a", 10_000, 0.0))
    assert backlog.wait_s(0.1 + RTT_S, S_PER_BYTE, RTT_S)[1] == pytest.approx(S_PER_BYTE)
    assert backlog.wait_s(0.2 + RTT_S, S_PER_BYTE, RTT_S)[1] == pytest.approx(2 * S_PER_BYTE)
    assert backlog.wait_s(60.0, S_PER_BYTE, RTT_S)[1] == pytest.approx(Backlog.OVERDUE * S_PER_BYTE)


def test_a_message_that_is_dropped_where_it_is_given_up_frees_the_link_from_then_on() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 5_000, 0.0))
    now_s = 4_000 * S_PER_BYTE
    assert wait_s(backlog.cancelled("a", now_s, S_PER_BYTE), now_s) == pytest.approx(11_000 * S_PER_BYTE)
    freed = backlog.cancelled("a", now_s, S_PER_BYTE, frees_link=True)
    assert wait_s(freed, now_s) == pytest.approx(5_000 * S_PER_BYTE)


def test_the_servers_own_time_is_not_overdue() -> None:
    backlog = Backlog().sent(InFlight("a", 10_000, 0.0, server_s=0.5), S_PER_BYTE)
    assert backlog.wait_s(0.6 + RTT_S, S_PER_BYTE, RTT_S)[1] == pytest.approx(S_PER_BYTE)


def test_it_forgets_what_is_too_old_and_too_much() -> None:
    backlog = queued(*((str(index), 10, index * 1e-3) for index in range(500)))
    assert len(backlog.in_flight) == Backlog.LONGEST
    assert len(backlog.sent(InFlight("late", 1, Backlog.LONGEST_S + 10), S_PER_BYTE).in_flight) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_wait_is_that_of_a_first_in_first_out_queue(seed: int) -> None:
    rng, backlog, free_s, now_s = random.Random(seed), Backlog(), 0.0, 0.0
    due: list[tuple[float, str]] = []
    for index in itertools.count():
        now_s += rng.expovariate(4.0)
        if index == 60:
            break
        while due and due[0][0] + RTT_S <= now_s:
            left_s, call = due.pop(0)
            backlog = backlog.answered(call, left_s)
        assert wait_s(backlog, now_s) == pytest.approx(max(0.0, free_s - now_s), abs=1e-9)
        size_bytes = rng.randint(1, 60_000)
        backlog = backlog.sent(InFlight(str(index), size_bytes, now_s), S_PER_BYTE)
        free_s = max(free_s, now_s) + size_bytes * S_PER_BYTE
        due.append((free_s, str(index)))


def test_what_was_cancelled_before_an_answer_has_left_with_it() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.01)).cancelled("a", 0.05, S_PER_BYTE)
    assert backlog.find("a") is not None
    assert backlog.answered("b", 0.3).in_flight == ()


def test_a_late_answer_does_not_take_back_what_has_left() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.0)).answered("b", 0.3)
    backlog = backlog.sent(InFlight("c", 1000, 0.4), S_PER_BYTE).answered("c", 0.2)
    assert backlog.left_s == 0.3


def test_what_has_left_is_gone_when_it_is_cancelled() -> None:
    assert queued(("a", 10_000, 0.0)).cancelled("a", 0.05, S_PER_BYTE).find("a") is not None
    assert queued(("a", 10_000, 0.0)).cancelled("a", 0.5, S_PER_BYTE).in_flight == ()


def test_what_is_dropped_where_it_is_given_up_keeps_the_link_busy_until_then() -> None:
    freed = queued(("a", 10_000, 0.0)).cancelled("a", 0.04, S_PER_BYTE, frees_link=True)
    assert freed.left_s == 0.04
    late = freed.sent(InFlight("b", 10_000, 0.01), S_PER_BYTE)  # it was sent before, so it waited
    assert late.carried("b", 0.04 + 0.1 + RTT_S, S_PER_BYTE) == pytest.approx((10_000, 0.1 + RTT_S))


def test_an_answer_that_was_overtaken_by_a_later_one_moves_nothing_else() -> None:
    backlog = queued(("a", 10_000, 0.0), ("b", 20_000, 0.0), ("c", 30_000, 0.0)).answered("b", 0.3)
    after = backlog.answered("a", 0.9)
    assert after.left_s == backlog.left_s == 0.3
    assert [one.call for one in after.in_flight] == ["c"]
