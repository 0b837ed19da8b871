"""Minimum cuts of capacities that 32 bits cannot hold, against all cuts of small networks."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.examples import examples
from upwell.shared.partition.mincut import SINK, SOURCE, Network
from upwell.shared.tensors import Array


def all_cuts(vertices: int, tails: Array, heads: Array, capacities: Array) -> list[tuple[int, Array]]:
    """What every cut costs, and which vertices are on the source's side."""
    found = []
    for others in itertools.product((False, True), repeat=vertices - 2):
        side = np.array([True, False, *others])
        found.append((int(capacities[side[tails] & ~side[heads]].sum()), side))
    return found


@pytest.mark.parametrize("bits", [1, 8, 29, 31, 32, 40, 50])
def test_a_cut_is_the_least_and_its_source_side_the_smallest(bits: int) -> None:
    chance = random.Random(bits)
    for _ in range(examples(200)):
        vertices = chance.randint(2, 8)
        pairs = [pair for pair in itertools.permutations(range(vertices), 2) if chance.random() < 0.5]
        arcs = np.array([*pairs, *pairs[:2], (SOURCE, SINK)])  # the same two vertices twice, too
        tails, heads = arcs[:, 0], arcs[:, 1]
        capacities = np.array([chance.choice((0, 1, chance.getrandbits(bits))) for _ in arcs])
        cuts = all_cuts(vertices, tails, heads, capacities)
        least = min(cost for cost, _ in cuts)
        network = Network(vertices, tails, heads)
        for limit in (least, least + 1, 1 << 52):
            flow = network.flow(network.residual(capacities, limit), limit)
            assert flow.value == least
            smallest = np.logical_and.reduce([side for cost, side in cuts if cost == least])
            assert (network.source_side(flow.residual) == smallest).all()
        if least:
            assert network.flow(network.residual(capacities, least - 1), least - 1).value == least  # more than asked


def test_a_flow_goes_on_when_capacities_are_raised() -> None:
    chance = random.Random(3)
    for _ in range(60):
        vertices = chance.randint(3, 7)
        arcs = np.array(list(itertools.permutations(range(vertices), 2)))
        capacities = np.array([chance.getrandbits(chance.choice((4, 45))) for _ in arcs])
        network, limit = Network(vertices, arcs[:, 0], arcs[:, 1]), 1 << 52
        before = network.flow(network.residual(capacities, limit), limit)
        which = np.array(chance.sample(range(len(arcs)), 2))
        by = np.array([chance.getrandbits(45), 1])
        raised = network.raised(before.residual, which, by)
        more = network.flow(raised, limit - before.value)
        capacities[which] += by
        cuts = all_cuts(vertices, arcs[:, 0], arcs[:, 1], capacities)
        assert before.value + more.value == min(cost for cost, _ in cuts)
