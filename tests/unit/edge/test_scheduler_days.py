"""Promises and those who wait behind them, on days of which every instant is written down."""

from __future__ import annotations

import math

from tests.unit.edge.virtual_scheduler import Arrival, Request, Reserved, VirtualScheduler
from upwell.shared.errors import Refused
from upwell.shared.routing.policy.settings import Priority
from upwell.shared.routing.scheduling.run_request import RunRequest


def came(at_s: float, run_s: float, allowed_s: float, priority: Priority = "normal") -> Arrival:
    return Arrival(at_s, RunRequest(run_s=run_s, priority=priority), allowed_s)


def played(instances: int, *day: Arrival | Reserved) -> list[Request]:
    """What became of each, in the order in which they asked for a turn."""
    device = VirtualScheduler(instances)
    device.play(day)
    assert not [*device.queue.waiting, *device.queue.running, *device.queue.slots]
    return device.requests


def ends(requests: list[Request]) -> list[float]:
    """When each ended; NaN for those who did not run."""
    return [request.ended_s if request.error is None else math.nan for request in requests]


def refused(requests: list[Request]) -> list[bool]:
    return [isinstance(request.error, Refused) for request in requests]


def test_two_who_wait_behind_a_reservation_do_not_break_it() -> None:
    first, second, owed = played(1, Reserved(0, 5, 5), came(0, 8, 19), came(0, 8, 100))
    assert ends([owed, first, second]) == [10, 18, 26]


def test_a_short_run_goes_before_the_reservation_for_which_a_long_one_waits() -> None:
    long, short, owed = played(1, Reserved(0, 5, 5), came(0, 8, 19), came(1, 3, 100))
    assert ends([short, owed, long]) == [4, 10, 18]


def test_who_has_no_time_for_a_second_reservation_is_refused() -> None:
    reservations = Reserved(0, 5, 5), Reserved(0, 14, 2)  # the second gets [12, 16], since runs may add up
    assert refused(played(1, *reservations, came(0, 8, 20)))[0]
    assert ends(played(1, *reservations, came(0, 8, 24)))[0] == 22


def test_who_came_at_the_instant_at_which_a_reservation_begins_goes_behind_it_or_not_at_all() -> None:
    tight, owed = played(1, Reserved(2, 11, 1), came(13, 1, 1))
    assert (refused([tight]), ends([owed])) == ([True], [14])
    patient, owed = played(1, Reserved(2, 11, 1), came(13, 1, 2))
    assert ends([owed, patient]) == [14, 15]


def test_who_was_taken_on_before_the_reservation_and_has_no_time_for_it_goes_first() -> None:
    running, waiting, owed = played(1, came(0, 4, 4), came(1, 4, 8), Reserved(2, 4, 3))
    assert ends([running, waiting, owed]) == [4, 8, 11]


def test_a_higher_priority_does_not_go_first_where_one_behind_a_reservation_would_be_late() -> None:
    day = came(0, 1, 1), Reserved(0, 5, 5), came(0, 3, 16), came(0, 8, 18), came(0, 3, 100, "high")
    _, soon, behind, high, owed = played(1, *day)
    assert ends([soon, owed, behind, high]) == [4, 10, 18, 21]


def test_the_other_place_is_free_for_those_who_come_while_a_reservation_is_kept() -> None:
    beside, owed = played(2, Reserved(0, 5, 5), came(1, 20, 100))
    assert ends([beside, owed]) == [21, 10]


def test_nobody_waits_for_a_reservation_that_is_late_whatever_they_do() -> None:
    beside, owed = played(2, Reserved(0, 5, 5, early_s=-2), came(6, 3, 100))
    assert ends([beside, owed]) == [9, 12]


def test_a_run_that_is_called_in_early_does_not_break_the_reservation_of_another() -> None:
    early, other = played(1, Reserved(0, 5, 1), Reserved(0, 8, 2, early_s=2))
    assert ends([other, early]) == [6, 8]


def test_who_must_wait_for_two_reservations_goes_beside_the_one_that_is_called_in_early() -> None:
    day = came(0, 8, 100), Reserved(0, 5, 4)
    waits, *owed = played(2, Reserved(0, 5, 2, early_s=4), *reversed(day))
    assert (ends([waits]), ends(owed)) == ([9], [3, 9])


def test_the_end_of_one_reservation_lets_those_go_who_are_not_in_the_way_of_the_next() -> None:
    long, owed = played(1, Reserved(0, 5, 5, is_needed=False), Reserved(0, 22, 2), came(0, 14, 100))
    assert ends([long, owed]) == [19, 22]
