"""Several network interfaces: rows go up by the first that will do; each has its own link, failures and price."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.routing.asking import MODEL, NOW_S, learnt, router, signals
from upwell.shared.routing.decide.router import GOOD_CHANCE, Router
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudHeld,
    CloudMoved,
    CloudSent,
    EdgeRan,
    LinkProbed,
    LinkState,
    Outcome,
    RouterState,
)
from upwell.shared.routing.decide.send_turn import turn
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.scheduling.send_queue import QueuedMessage

FREE, METERED = "wlan0", "wwan0"
UP = "rules: [{name: up, match: {}, route: cloud}]"
PAID = "defaults: {deadline: 300ms, prices: {uplink_gb: 1, interfaces: {wlan0: 0, wwan0: 4}}, budget: {money: 1/day}}"
SIZE_BYTES = 20_000


def paid() -> Router:
    return router(f"{PAID}\n{UP}")


def two(by: Router, *outcomes: Outcome) -> RouterState:
    return learnt(by, outcomes, state=RouterState(interface=FREE, others={METERED: LinkState()}))


def answers(interface: str, bytes_per_s: float, rtt_s: float = 0.02) -> list[Outcome]:
    """Answers to messages of several sizes over a link of that rate."""
    return [
        CloudAnswered(MODEL, 1, size_bytes, rtt_s + size_bytes / bytes_per_s, 0.0, interface=interface)
        for size_bytes in (1000, 10_000, 20_000, 30_000) * 3
    ]


def test_the_first_is_taken_while_it_will_do_and_while_nothing_is_known() -> None:
    by = paid()
    for state in (two(by), two(by, *answers(FREE, 1e6), *answers(METERED, 1e7))):
        decision = by.decide(state, signals((SIZE_BYTES,)), NOW_S)
        assert (decision.up_rows, decision.interface) == ((0,), FREE)


def test_what_the_first_is_too_slow_for_goes_over_the_next_and_the_rest_does_not() -> None:
    by = paid()
    state = two(by, *answers(FREE, 50_000), *answers(METERED, 1e6))
    large, small = (by.decide(state, signals((size_bytes,)), NOW_S) for size_bytes in (SIZE_BYTES, 2000))
    assert (large.up_rows, large.interface) == ((0,), METERED)
    assert (small.up_rows, small.interface) == ((0,), FREE)
    alone = by.decide(replace(state, others={}), signals((SIZE_BYTES,)), NOW_S)
    assert (alone.up_rows, alone.obstacle) == ((), Reason.CLOUD_TOO_SLOW)


@pytest.mark.parametrize("is_dear", [True, False])
def test_a_first_that_costs_more_than_is_left_is_left_for_a_free_one(is_dear: bool) -> None:
    by = router(f"{PAID.replace('wlan0: 0, wwan0: 4', 'wlan0: 1e6, wwan0: ' + ('1e6' if is_dear else '0'))}\n{UP}")
    state = two(by, *answers(FREE, 1e6), *answers(METERED, 1e6))
    decision = by.decide(state, signals((SIZE_BYTES,)), NOW_S)
    if is_dear:
        assert (decision.up_rows, decision.interface, decision.obstacle) == ((), FREE, Reason.BUDGET_SPENT)
    else:
        assert (decision.up_rows, decision.interface) == ((0,), METERED)


def test_a_doubtful_first_is_passed_over_for_a_surer_one_and_taken_where_that_is_gone() -> None:
    by = paid()
    doubtful = [
        CloudAnswered(MODEL, 1, SIZE_BYTES, 0.02 + SIZE_BYTES / rate, 0.0, interface=FREE)
        for rate in (40_000, 120_000) * 8
    ]
    state = two(by, *doubtful, *answers(METERED, 1e6))
    alone = by.decide(replace(state, others={}), signals((SIZE_BYTES,)), NOW_S)
    assert alone.up_rows
    assert alone.chance < GOOD_CHANCE
    assert by.decide(state, signals((SIZE_BYTES,)), NOW_S).interface == METERED
    down = learnt(by, [CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE, interface=METERED)] * 3, state=state)
    assert by.decide(down, signals((SIZE_BYTES,)), NOW_S).interface == FREE


@pytest.mark.parametrize("has_edge", [True, False])
def test_a_first_that_fails_is_left_for_the_next_and_taken_back(has_edge: bool) -> None:
    by = paid()
    down = [CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE, interface=FREE)] * 3
    state = two(by, *down)
    decision = by.decide(state, signals((SIZE_BYTES,), has_edge=has_edge), NOW_S)
    assert (decision.up_rows, decision.interface) == ((0,), METERED)
    assert not decision.probes
    back = learnt(by, answers(FREE, 1e6), state=state)
    assert by.decide(back, signals((SIZE_BYTES,), has_edge=has_edge), NOW_S).interface == FREE


def test_the_only_one_is_named_too() -> None:
    decision = paid().decide(RouterState(interface=METERED), signals((SIZE_BYTES,)), NOW_S)
    assert decision.interface == METERED
    assert decision.draws[0].amount == pytest.approx(SIZE_BYTES * 4e-9)


@pytest.mark.parametrize(
    ("about", "objective"), [({"has_edge": False}, "accuracy"), ({}, "latency")], ids=["no edge", "latency"]
)
def test_a_surer_one_is_taken_too_where_no_chance_is_asked_for(about: dict[str, Any], objective: str) -> None:
    by = router(f"{PAID.replace('deadline', f'objective: {objective}, deadline')}\n{UP}")
    noisy = [
        CloudAnswered(MODEL, 1, SIZE_BYTES, 0.02 + SIZE_BYTES / rate, 0.0, interface=FREE)
        for rate in (40_000, 120_000) * 8
    ]
    state = two(by, EdgeRan(MODEL, 1, 5.0), *noisy, *answers(METERED, 1e6))
    alone = by.decide(replace(state, others={}), signals((SIZE_BYTES,), **about), NOW_S)
    assert alone.up_rows
    assert math.isnan(alone.chance)
    assert by.decide(state, signals((SIZE_BYTES,), **about), NOW_S).interface == METERED


def test_the_last_one_is_not_tried_just_because_it_was_idle() -> None:
    by = paid()
    state = learnt(by, answers(METERED, 60_000), NOW_S - 15.0, two(by))
    state = learnt(by, answers(FREE, 90_000), NOW_S, state)
    found = {
        name: by.decide(replace(state.over(name), others={}), signals((SIZE_BYTES,)), NOW_S).chance
        for name in (FREE, METERED)
    }
    assert GOOD_CHANCE > found[FREE] > found[METERED]
    assert by.decide(state, signals((SIZE_BYTES,)), NOW_S).interface == FREE


def test_a_move_of_one_does_not_make_the_others_forget_that_the_cloud_asked_for_a_pause() -> None:
    by = paid()
    for moved in (FREE, METERED):
        state = two(by, CloudHeld(MODEL, 20.0), CloudMoved(interface=moved))
        assert state.is_held(MODEL, NOW_S + 1.0)


def test_one_that_failed_costs_no_request_until_it_is_heard_again() -> None:
    by = paid()
    down = [CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE, interface=FREE)] * 3
    known = two(by, *answers(FREE, 1e6), *answers(METERED, 1e6))
    state, now_s = learnt(by, down, NOW_S + 1.0, known), NOW_S + 60.0
    request = signals((SIZE_BYTES,), at_s=now_s)
    assert by.decide(replace(state, others={}), request, now_s).probes
    decision = by.decide(state, request, now_s)
    assert (decision.interface, decision.probes) == (METERED, ())
    heard = learnt(by, [LinkProbed(0.02, interface=FREE)], now_s, state)
    decision = by.decide(heard, request, now_s)
    assert decision.interface == FREE
    assert decision.probes


def test_one_that_was_too_slow_is_tried_again_now_and_then() -> None:
    by = paid()
    state, taken, now_s = two(by, *answers(FREE, 90_000), *answers(METERED, 1e6)), [], NOW_S
    for _ in range(300):
        now_s += 0.1
        decision = by.decide(state, signals((SIZE_BYTES,), at_s=now_s), now_s)
        taken.append(decision.interface)
        total_s = 0.5 if decision.interface == FREE else 0.04
        state = learnt(by, [CloudSent(MODEL, "c", 1, SIZE_BYTES, "", decision.interface)], now_s, state)
        if total_s > decision.give_up_s - now_s:
            waited_s = decision.give_up_s - now_s
            outcome: Outcome = CloudCallFailed(
                MODEL, Reason.CLOUD_DEADLINE, decision.probes, waited_s, "c", decision.chance, interface=FREE
            )
        else:
            outcome = CloudAnswered(MODEL, 1, SIZE_BYTES, total_s, 0.0, call="c", interface=decision.interface)
        state = learnt(by, [outcome], now_s + 0.09, state)
    assert 1 <= taken[30:].count(FREE) <= 6


def test_where_none_will_do_the_first_says_why() -> None:
    by = paid()
    state = two(by, *answers(FREE, 20_000), *[CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE, interface=METERED)] * 3)
    decision = by.decide(state, signals((SIZE_BYTES,)), NOW_S)
    assert (decision.up_rows, decision.obstacle, decision.interface) == ((), Reason.CLOUD_TOO_SLOW, FREE)


@pytest.mark.parametrize("reason", ["egress: deny", "route: edge"])
def test_what_the_policy_keeps_goes_over_none(reason: str) -> None:
    by = router(f"rules: [{{name: stay, match: {{}}, {reason}}}]")
    assert not by.decide(two(by), signals((SIZE_BYTES,)), NOW_S).up_rows


def test_each_interface_has_its_price() -> None:
    by = paid()
    slow = [*answers(FREE, 50_000), *answers(METERED, 1e6)]
    for past, price in ((slow, 4e-9), (answers(FREE, 1e6), 0.0)):
        state = two(by, *past)
        decision = by.decide(state, signals((SIZE_BYTES,)), NOW_S)
        (draw,) = decision.draws
        assert draw.amount == pytest.approx(SIZE_BYTES * price)
        state, granted = by.acquire(state, decision, NOW_S)
        assert granted
        settled = by.settle(state, decision, 30_000)
        spent = [windows[0].spent for windows in settled.budgets.windows.values()] if price else [0.0]
        assert sum(spent) == pytest.approx(30_000 * price)


def test_money_that_is_spent_ends_the_metered_one_alone() -> None:
    by = router(f"{PAID.replace('1/day', '0.0001/day')}\n{UP}")
    state, used = two(by, *answers(FREE, 50_000), *answers(METERED, 1e6)), 0
    while (decision := by.decide(state, signals((SIZE_BYTES,)), NOW_S)).up_rows:
        assert decision.interface == METERED
        state, _ = by.acquire(state, decision, NOW_S)
        used += 1
    assert used == 1
    assert by.decide(state, signals((2000,)), NOW_S).interface == FREE


def test_outcomes_are_learnt_of_the_interface_that_they_came_over() -> None:
    by = paid()
    state = two(by, *answers(METERED, 1e6), LinkProbed(0.5, interface=FREE), CloudSent(MODEL, "a", 1, 9, "", METERED))
    assert math.isclose(state.link.rtt_s, 0.5)
    assert (state.interface, state.over(METERED).interface) == (FREE, METERED)
    assert state.over(METERED).link.rtt_s == pytest.approx(0.02, rel=0.2)
    assert not state.backlog.in_flight
    assert [one.call for one in state.over(METERED).backlog.in_flight] == ["a"]
    moved = by.observe(state, CloudMoved(interface=METERED), NOW_S)
    assert not moved.over(METERED).link.is_known
    assert moved.link == state.link


def test_messages_wait_for_their_own_link() -> None:
    by = paid()
    sent = [CloudSent(MODEL, str(index), 1, 50_000, "", METERED) for index in range(3)]
    state = two(by, *answers(FREE, 1e6), *answers(METERED, 1e6), *sent)
    message = QueuedMessage("b", MODEL, 1, 1000, 1.0, math.nan, NOW_S + 10.0, FREE)
    assert turn(state, message, NOW_S).at_s == -math.inf
    assert turn(state, replace(message, interface=METERED), NOW_S).at_s > NOW_S


def test_a_probe_of_one_link_takes_no_slot_of_the_other() -> None:
    by = paid()
    down = [CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE, interface=one) for one in (FREE, METERED)] * 3
    state, seen, now_s = two(by, *down), [], NOW_S + 60.0
    for _ in range(2):
        decision = by.decide(state, signals((SIZE_BYTES,), at_s=now_s), now_s)
        state, granted = by.acquire(state, decision, now_s)
        assert granted
        seen.append((decision.interface, bool(decision.probes)))
    assert seen == [(FREE, True), (METERED, True)]
