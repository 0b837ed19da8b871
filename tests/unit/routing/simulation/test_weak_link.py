"""A link that comes back weaker than it was: how soon it is used for what it carries, and what is tried on it."""

from __future__ import annotations

import random

from tests.unit.routing.simulation.scenes import line, rules, scene
from upwell.shared.routing.reasons import Route
from upwell.shared.routing.simulation.link_capacity import StepTrace
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome
from upwell.shared.routing.simulation.strategies import routed

POLICY = "defaults: {deadline: 300ms, hard: {measure: margin, below: 1.0}}"
BACK_S, RTT_S = 13.0, 0.06
GOOD_BITS_PER_S, WEAK_BITS_PER_S = 16e6, 1.2e6
CARRIED_BYTES = WEAK_BITS_PER_S / 8 * (0.3 - RTT_S - 0.05)
SEEDS = 6


def since_the_outage(seed: int) -> list[SimulatedOutcome]:
    """Five cases a second of 20 to 200 kB, all candidates: those since the link, away for 3 s, is back."""
    dice = random.Random(seed)
    lines = [
        line(index / 5, size_bytes=int(dice.uniform(20e3, 200e3)), hardness={"margin": dice.random()})
        for index in range(200)
    ]
    rates = [GOOD_BITS_PER_S, 0.0, WEAK_BITS_PER_S, WEAK_BITS_PER_S]
    served = routed(rules(POLICY), scene(lines, capacity=StepTrace([0.0, 10.0, BACK_S, 60.0], rates), rtt_s=RTT_S))
    assert all(one.in_time for one in served)
    return [one for one in served if one.request.t_s >= BACK_S]


def test_a_link_that_comes_back_weak_is_used_for_what_it_carries_and_little_is_sent_in_vain() -> None:
    """One case in thirteen is small enough, so that what is missed is missed for seconds."""
    delays_s, vain_bytes = [], []
    for served in map(since_the_outage, range(SEEDS)):
        possible_s = next(one.request.t_s for one in served if one.request.size_bytes <= CARRIED_BYTES)
        delays_s.append(next(one.request.t_s for one in served if one.route is Route.CLOUD) - possible_s)
        vain_bytes.append(sum(one.left_bytes for one in served if one.route is Route.EDGE))
    assert max(delays_s) <= 5.0
    assert sum(vain_bytes) / SEEDS < 1.7e6
