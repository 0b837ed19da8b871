"""A link that carries less than wants up: who goes, by how likely it is in time, its rank and its share of the link."""

from __future__ import annotations

import pytest

from tests.unit.routing.asking import MODEL, router, signals
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import (
    CloudAnswered,
    CloudCallFailed,
    CloudSent,
    Decision,
    LinkProbed,
    RouterState,
)
from upwell.shared.routing.reasons import Reason

RTT_S = 0.06
POLICY = "defaults: {deadline: 300ms, hard: {measure: margin, below: 0.75}%s}"


def over(by: Router, bytes_per_s: float, candidate_bytes: int = 20_000, at_once: int = 1) -> RouterState:
    """After answers over a link of that rate, and candidates of every rank, five a second, so many of them at once."""
    state = RouterState()
    for index in range(12):
        at_s, size_bytes = index * 0.1, 15_000 + 5_000 * (index % 4)
        state = by.observe(state, CloudAnswered(MODEL, 1, size_bytes, RTT_S + size_bytes / bytes_per_s, 0.0), at_s)
    for index in range(40):
        decision = ask(by, state, index * 7 % 40 / 40 * 0.75, candidate_bytes)
        state, _ = by.acquire(state, decision, 1.2 - 0.2 * (40 - index // at_once * at_once) + 1e-4 * (index % at_once))
    return state


def ask(by: Router, state: RouterState, margin: float, size_bytes: int) -> Decision:
    """The decision about a candidate that the device has scored."""
    asked = signals((size_bytes,), at_s=1.2, scored_rows=(0,), hardness=(margin,))
    return by.decide(state, asked, 1.21)


def test_over_a_link_that_carries_everything_every_candidate_goes() -> None:
    by = router(POLICY % "")
    state = over(by, 5e6)
    assert all(ask(by, state, margin, 200_000).up_rows == (0,) for margin in (0.01, 0.4, 0.74))


def test_over_a_scarce_link_the_hardest_go_and_what_is_large_for_its_rank_stays() -> None:
    by = router(POLICY % "")
    state = over(by, 150e3)
    reasons = {
        (margin, size_bytes): ask(by, state, margin, size_bytes).obstacle
        for margin in (0.01, 0.7)
        for size_bytes in (20_000, 38_000, 200_000)
    }
    assert reasons[0.01, 20_000] is reasons[0.7, 20_000] is None
    assert reasons[0.01, 38_000] is None
    assert reasons[0.7, 38_000] is Reason.CLOUD_TOO_SLOW
    assert reasons[0.01, 200_000] is Reason.CLOUD_TOO_SLOW


def test_an_easy_one_that_the_link_carries_goes_where_the_others_are_too_large_to_use_its_time() -> None:
    by = router(POLICY % "")
    among_small, among_large = (ask(by, over(by, 50e3, size_bytes), 0.5, 12_000) for size_bytes in (12_000, 200_000))
    assert among_small.chance == among_large.chance < 0.5
    assert among_small.obstacle is Reason.CLOUD_TOO_SLOW
    assert among_large.up_rows == (0,)


def test_a_decision_says_how_likely_it_is_in_time_and_how_likely_it_must_be() -> None:
    by = router(POLICY % "")
    decision = ask(by, over(by, 150e3), 0.7, 38_000)
    assert 0.0 < decision.chance < decision.needed_chance <= 0.5


def test_on_an_idle_link_less_is_enough_where_no_other_candidate_comes_meanwhile() -> None:
    by = router(POLICY % "")
    steady, bursts = (over(by, 150e3, at_once=at_once) for at_once in (1, 4))
    goes, stays = (ask(by, state, 0.6, 35_000) for state in (steady, bursts))
    assert 0.25 < goes.needed_chance < goes.chance == stays.chance < stays.needed_chance
    assert goes.up_rows == stays.kept_rows == (0,)
    busy = by.observe(steady, CloudSent(MODEL, "now", 1, 20_000), 1.2)
    assert ask(by, busy, 0.6, 35_000).needed_chance > goes.needed_chance


def test_where_others_follow_at_once_one_that_is_likely_in_time_stays_unless_it_is_worth_as_much() -> None:
    by = router(POLICY % "")
    steady, bursts = (over(by, 150e3, at_once=at_once) for at_once in (1, 4))
    alone, easy, hard = ask(by, steady, 0.7, 20_000), ask(by, bursts, 0.7, 20_000), ask(by, bursts, 0.01, 20_000)
    assert alone.chance == easy.chance == hard.chance > 0.6
    assert alone.up_rows == hard.up_rows == easy.kept_rows == (0,)


def test_the_smallest_candidate_stays_if_the_cloud_itself_would_be_too_late() -> None:
    by = router(POLICY % "")
    state = after_late_ones(by, range(30_000, 160_000, 2_000))
    for _ in range(16):
        state = by.observe(state, CloudAnswered(MODEL, 1, 2_000, 0.5, 0.4), 1.2)
    decision = ask(by, state, 0.7, 33_000)
    assert decision.chance == 0.0
    assert decision.obstacle is Reason.CLOUD_TOO_SLOW


def test_a_written_confidence_of_less_than_half_is_the_least_that_is_enough_on_an_idle_link() -> None:
    default, written = (router(POLICY % confidence) for confidence in ("", ", confidence: 30%"))
    least, more = (ask(by, over(by, 150e3), 0.6, 35_000).needed_chance for by in (default, written))
    assert more - least == pytest.approx(0.30 - 0.25)


def test_a_written_confidence_of_more_than_half_holds_whatever_the_rank() -> None:
    by = router(POLICY % ", confidence: 90%")
    state = over(by, 150e3)
    decision = ask(by, state, 0.01, 28_000)
    assert 0.5 < decision.chance < decision.needed_chance == 0.9
    assert decision.obstacle is Reason.CLOUD_TOO_SLOW


@pytest.mark.parametrize(("size_bytes", "is_ready"), [(60_000, True), (500, False)])
def test_an_empty_call_that_comes_back_lets_a_case_try_where_large_ones_were_late(
    size_bytes: int, is_ready: bool
) -> None:
    """A cloud that is late with small messages is slow itself, whatever an empty call takes."""
    by, state = router("defaults: {deadline: 300ms}\nrules: [{name: up, match: {}, route: cloud}]"), RouterState()
    for index in range(4):
        call = str(index)
        state = by.observe(state, CloudSent(MODEL, call, 1, size_bytes), 0.0)
        state = by.observe(state, CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, (), 0.27, call), 0.27)
    about = signals((size_bytes,), at_s=0.3)
    assert by.decide(state, about, 0.3).obstacle is Reason.BREAKER_OPEN
    state = by.observe(state, LinkProbed(0.06), 0.3)
    assert bool(by.decide(state, about, 0.3).probes) is is_ready


def after_late_ones(by: Router, sizes_bytes: range) -> RouterState:
    """Over a link that carries none of the candidates, whose sizes are these, in time."""
    state = RouterState()
    for index in range(6):
        state = by.observe(state, CloudAnswered(MODEL, 1, 2_000, RTT_S + 0.02 * index, 0.0), 0.1 * index)
    for index, size_bytes in enumerate(sizes_bytes):
        state, _ = by.acquire(state, ask(by, state, index % 7 / 10, size_bytes), 0.01 * index)
    for call in ("a", "b"):
        state = by.observe(state, CloudSent(MODEL, call, 1, 90_000), 0.7)
        late = CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, (), 0.25, call, frees_link=True)
        state = by.observe(state, late, 0.95)
    return state


def test_the_smallest_candidates_find_out_what_an_idle_link_carries() -> None:
    by = router(POLICY % "")
    state = after_late_ones(by, range(30_000, 160_000, 2_000))
    among_smallest, larger = (ask(by, state, 0.7, size_bytes) for size_bytes in (33_000, 60_000))
    assert larger.obstacle is Reason.CLOUD_TOO_SLOW
    assert among_smallest.up_rows == (0,)
    assert among_smallest.needed_chance == 0.0
    assert among_smallest.chance < larger.needed_chance
    busy = by.observe(state, CloudSent(MODEL, "now", 1, 33_000), 1.2)
    assert ask(by, busy, 0.7, 33_000).obstacle is Reason.CLOUD_TOO_SLOW


def test_a_written_confidence_of_more_than_half_binds_the_smallest_too() -> None:
    by = router(POLICY % ", confidence: 90%")
    state = after_late_ones(by, range(30_000, 160_000, 2_000))
    assert ask(by, state, 0.7, 33_000).obstacle is Reason.CLOUD_TOO_SLOW


def test_a_message_that_the_link_would_be_late_with_is_no_probe_of_an_open_breaker() -> None:
    by = router(POLICY % ", confidence: 90%")
    state = over(by, 50e3)
    for call in ("a", "b", "c"):
        state = by.observe(state, CloudSent(MODEL, call, 1, 90_000), 1.3)
        late = CloudCallFailed(MODEL, Reason.CLOUD_DEADLINE, (), 0.25, call, frees_link=True)
        state = by.observe(state, late, 1.55)
    asked = signals((60_000,), at_s=2.1, scored_rows=(0,), hardness=(0.01,))
    decision = by.decide(state, asked, 2.11)
    assert decision.chance < decision.needed_chance
    assert decision.obstacle is Reason.BREAKER_OPEN
    assert not decision.probes
