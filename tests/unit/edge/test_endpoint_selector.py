"""Which endpoint is used: a value, checked against every short history and against what must always hold."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.edge.uplink.endpoint_selector import FAIL_OVER_AT_ONCE, EndpointSelector
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason

LATE = Reason.CLOUD_DEADLINE


@pytest.mark.parametrize("reason", sorted(FAIL_OVER_AT_ONCE))
def test_a_failure_of_the_endpoint_moves_on_at_once_and_stays_there(reason: Reason) -> None:
    moved = EndpointSelector(3).missed(0, reason, 10.0)
    assert (moved.place, moved.try_at_s) == (1, 10.0 + EndpointSelector.FIRST_WAIT_S)
    assert moved.answered(1).place == 1
    assert moved.missed(1, reason, 11.0).place == 2
    assert moved.missed(1, reason, 11.0).missed(2, reason, 12.0).place == 0


@pytest.mark.parametrize("reason", sorted(CLOUD_FAILURES - FAIL_OVER_AT_ONCE - {LATE}))
def test_other_failures_do_not(reason: Reason) -> None:
    order = EndpointSelector(2)
    for _ in range(10):
        order = order.missed(0, reason, 0.0)
    assert order.place == 0


def test_so_many_late_in_a_row_do_and_an_answer_between_starts_the_count_again() -> None:
    order = EndpointSelector(2)
    for _ in range(EndpointSelector.LATE - 1):
        order = order.missed(0, LATE, 0.0)
    assert order.place == 0
    assert order.missed(0, LATE, 0.0).place == 1
    assert order.answered(0).missed(0, LATE, 0.0).place == 0


def test_one_endpoint_is_always_the_one() -> None:
    assert EndpointSelector(1).missed(0, Reason.CLOUD_UNAVAILABLE, 0.0) == EndpointSelector(1)
    assert EndpointSelector(1).after(0) == 0


def test_stragglers_from_before_a_move_change_nothing() -> None:
    moved = EndpointSelector(2).missed(0, Reason.CLOUD_UNAVAILABLE, 0.0)
    assert moved.missed(0, Reason.CLOUD_UNAVAILABLE, 1.0) == moved
    assert moved.answered(0) == moved


def test_the_first_that_is_ready_is_gone_back_to_and_one_that_fails_again_is_tried_more_seldom() -> None:
    order, now_s, waits = EndpointSelector(3), 0.0, []
    for _ in range(8):
        order = order.missed(order.place, Reason.CLOUD_UNAVAILABLE, now_s)
        waits.append(order.try_at_s - now_s)
        now_s = order.try_at_s
        order = order.tried(0, now_s)
        assert order.place == 0
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert order.answered(0).wait_s == EndpointSelector.FIRST_WAIT_S
    assert order.missed(0, Reason.CLOUD_UNAVAILABLE, now_s).answered(1).wait_s == 30


def test_none_that_is_ready_leaves_the_place() -> None:
    order = EndpointSelector(2, place=1).tried(None, 5.0)
    assert (order.place, order.try_at_s) == (1, 5.0 + 2 * EndpointSelector.FIRST_WAIT_S)


def test_what_was_found_ready_does_not_undo_a_move_to_a_better_place() -> None:
    assert EndpointSelector(3, place=0).tried(1, 0.0).place == 0


def test_another_place_is_another() -> None:
    for count, place, used in itertools.product(range(2, 5), range(4), range(4)):
        if place < count and used < count:
            assert EndpointSelector(count, place=place).after(used) != used


EVENTS = st.one_of(
    st.tuples(st.just("answered"), st.integers(0, 3)),
    st.tuples(st.just("missed"), st.integers(0, 3), st.sampled_from(sorted(CLOUD_FAILURES))),
    st.tuples(st.just("tried"), st.one_of(st.none(), st.integers(0, 3))),
)


@settings(deadline=None, max_examples=examples(200))
@given(st.integers(1, 4), st.lists(EVENTS, max_size=40))
def test_whatever_happens_some_endpoint_is_in_use_and_waits_are_bounded(
    count: int, events: list[tuple[Any, ...]]
) -> None:
    order = EndpointSelector(count)
    for now_s, (kind, *details) in enumerate(events):
        before = order
        if kind == "answered":
            order = order.answered(details[0])
            assert order.place == before.place
        elif kind == "missed":
            order = order.missed(details[0], details[1], float(now_s))
        elif order.place:
            better = details[0] if details[0] in range(order.place) else None
            order = order.tried(better, float(now_s))
            assert order.place <= before.place
        assert 0 <= order.place < count
        assert 0 <= order.late < EndpointSelector.LATE
        assert EndpointSelector.FIRST_WAIT_S <= order.wait_s <= EndpointSelector.LONGEST_WAIT_S
