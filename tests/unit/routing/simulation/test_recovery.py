"""How soon the cloud is used again after an outage, where the link comes back too weak for most that comes."""

from __future__ import annotations

import random

from tests.unit.routing.simulation.scenes import line, rules
from upwell.shared.routing.reasons import Route
from upwell.shared.routing.simulation.link_capacity import StepTrace
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.strategies import Scene, routed

OUTAGE_S, BACK_S, END_S = 15.0, 30.0, 90.0
RTT_S = 0.06
FITS_BYTES = 22_000
"""What a link of 1 Mbps surely brings back within 300 ms."""


def test_after_an_outage_most_of_the_few_that_a_weak_link_carries_go_up() -> None:
    """One in ninety fits, so that it is a matter of whether each of them is tried."""
    policy = rules("defaults: {deadline: 300ms, hard: {measure: margin, below: 1.0}}")
    fit = []
    for seed in range(6):
        dice = random.Random(seed)
        lines = [
            line(number / 5, size_bytes=dice.randint(20_000, 200_000), hardness={"margin": dice.random()})
            for number in range(int(5 * END_S))
        ]
        link = StepTrace([0.0, OUTAGE_S, BACK_S, END_S], [8.0e6, 0.0, 1.0e6, 1.0e6])
        served = routed(policy, Scene(prepare(lines), link, RTT_S))
        assert all(one.in_time for one in served)
        fit += [
            one.route is Route.CLOUD
            for one in served
            if one.request.t_s >= BACK_S and one.request.size_bytes <= FITS_BYTES
        ]
    assert sum(fit) >= 0.6 * len(fit)
