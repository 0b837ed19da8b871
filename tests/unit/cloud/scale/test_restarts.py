"""When a worker that died is started again."""

from __future__ import annotations

import itertools

from upwell.cloud.workers.supervisor import Restarts


def test_each_death_in_a_row_is_followed_by_twice_the_wait_and_the_last_by_none() -> None:
    states = list(itertools.accumulate([0.0] * Restarts.LIMIT, Restarts.died, initial=Restarts()))[1:]
    assert [state.wait_s for state in states[:-1]] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert [state.is_hopeless for state in states] == [False] * (Restarts.LIMIT - 1) + [True]
    assert Restarts(20).wait_s == Restarts.LONGEST_WAIT_S


def test_one_that_has_served_for_long_begins_anew() -> None:
    assert Restarts(Restarts.LIMIT - 1).died(Restarts.WELL_S) == Restarts(1)
    assert Restarts(1).died(Restarts.WELL_S - 1.0) == Restarts(2)
