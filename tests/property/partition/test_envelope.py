"""The envelope is the least of all placements at every bandwidth, and each piece says exactly where it holds."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from tests.examples import sampled
from tests.unit.partition.all_placements_for_tests import all_placements, best_placement
from tests.unit.partition.profiles_for_tests import LINK, random_profiles
from upwell.shared.partition.bandwidth import (
    SLOWEST_BPS,
    BandwidthSweep,
    LabelledCost,
    Line,
    Piece,
    envelope,
    lower,
)
from upwell.shared.partition.cost_graph import Codec, CostGraph, CostNode, CostTensor, TierLink, total_s
from upwell.shared.partition.objectives import LinkPrices, Objective, Power, cost, energy, latency, weighted
from upwell.shared.partition.planner import Cutter, plan
from upwell.shared.partition.tier_profile import combine

TWO = ("edge", "cloud")
POWER = Power(busy_w=5.0, idle_w=1.0, send_w=3.0, receive_w=2.0, joules_per_byte=1e-7)
OBJECTIVES = (
    latency(TWO),
    energy(TWO, POWER),
    cost(TWO, LinkPrices(0.5, 0.001, 4.0)),
    weighted([(1.0, latency(TWO)), (0.1, energy(TWO, POWER))]),
)
GRID = [SLOWEST_BPS * 10 ** (step / 4) for step in range(29)]


def at(sweep: BandwidthSweep, bps: float) -> CostGraph:
    return sweep.at(1 / bps)


def piece_at(pieces: tuple[Piece[LabelledCost], ...], bps: float) -> Piece[LabelledCost]:
    return next(piece for piece in pieces if piece.from_bps <= bps <= piece.to_bps)


def check(sweep: BandwidthSweep) -> tuple[Piece[LabelledCost], ...]:
    pieces = envelope(sweep, best_placement)
    everything = list(all_placements(sweep.graph))
    for bps in [*GRID, *(piece.to_bps * (1 + step) for piece in pieces[:-1] for step in (-1e-6, 1e-6))]:
        graph = at(sweep, bps)
        least = min(total_s(graph, placement) for placement in everything)
        piece = piece_at(pieces, bps)
        assert piece.line.at(1 / bps) == pytest.approx(least, rel=1e-9, abs=1e-15)
        assert total_s(graph, piece.line.of.placement) == pytest.approx(least, rel=1e-9, abs=1e-15)
    assert [piece.to_bps for piece in pieces[:-1]] == [piece.from_bps for piece in pieces[1:]]
    assert all(piece.from_bps < piece.to_bps for piece in pieces)
    assert pieces[-1].to_bps == math.inf
    assert all(slow.line.slope < fast.line.slope for slow, fast in itertools.pairwise(pieces))
    return pieces


@pytest.mark.parametrize("seed", sampled(range(40), 4))
def test_it_is_the_least_of_all_placements(seed: int) -> None:
    rng = random.Random(seed)
    graph = combine(*random_profiles(rng, rng.randint(1, 7)), LINK)
    pieces = check(BandwidthSweep(graph, OBJECTIVES[seed % 4], symmetric=rng.random() < 0.5))
    assert pieces[0].from_bps == 0.0


@pytest.mark.slow
def test_most_graphs_have_several_pieces() -> None:
    """So that the tests above look at something."""
    counts = []
    for seed in range(10):
        rng = random.Random(seed)
        graph = combine(*random_profiles(rng, 7), replace(LINK, fixed_s=0.0))
        counts.append(len(envelope(BandwidthSweep(graph, latency(TWO)), best_placement)))
    assert sum(count >= 3 for count in counts) >= 5, counts


@pytest.mark.parametrize("seed", sampled(range(10), 3))
def test_a_codec_bends_it(seed: int) -> None:
    rng = random.Random(seed)
    graph = combine(*random_profiles(rng, 5), LINK)
    tensors = {
        name: replace(tensor, codecs=(Codec("int8", tensor.bytes / 4, rng.random() * 0.02, rng.random() * 0.002),))
        for name, tensor in graph.tensors.items()
    }
    check(BandwidthSweep(replace(graph, tensors=tensors), latency(TWO)))


@pytest.mark.parametrize("link", [0, 1])
@pytest.mark.parametrize("seed", sampled(range(8), 4))
def test_each_link_of_three_tiers_has_its_own(seed: int, link: int) -> None:
    rng = random.Random(seed)
    graph = combine(*random_profiles(rng, 5), LINK)
    tiers = ("edge", "gateway", "cloud")
    nodes = tuple(
        replace(node, cost_s={**node.cost_s, "gateway": math.sqrt(node.cost_s["edge"] * node.cost_s["cloud"])})
        for node in graph.nodes
    )
    links = (TierLink(20e6, 0.005, 20e6), TierLink(5e6, 0.03, 5e6))
    check(
        BandwidthSweep(
            replace(graph, tiers=tiers, nodes=nodes, links=links), latency(tiers), link, symmetric=seed % 2 == 0
        )
    )


def test_where_something_must_be_sent_nothing_is_claimed_of_slower_links() -> None:
    nodes = (CostNode("a", ("x",), ("y",), {"cloud": 0.1}),)
    graph = CostGraph(TWO, nodes, {"x": CostTensor(10), "y": CostTensor(1)}, ("x",), ("y",), (LINK,), "edge", "edge")
    (piece,) = envelope(BandwidthSweep(graph, latency(TWO)), best_placement)
    assert (piece.from_bps, piece.to_bps) == (SLOWEST_BPS, math.inf)


def test_on_a_symmetric_link_the_way_back_counts_like_the_way_up() -> None:
    nodes = (CostNode("a", ("x",), ("y",), {"edge": 9.0, "cloud": 0.1}),)
    graph = CostGraph(
        TWO,
        nodes,
        {"x": CostTensor(1000), "y": CostTensor(500)},
        ("x",),
        ("y",),
        (TierLink(1.0, 0.0, 8e6),),
        "edge",
        "edge",
    )
    fast = envelope(BandwidthSweep(graph, latency(TWO)), best_placement)[-1].line
    assert [fast.base, fast.slope] == pytest.approx([0.1005, 8000])
    fast = envelope(BandwidthSweep(graph, latency(TWO), symmetric=True), best_placement)[-1].line
    assert [fast.base, fast.slope] == pytest.approx([0.1, 12000])


@pytest.mark.parametrize("seed", sampled(range(12), 4))
def test_the_planner_finds_nothing_better_at_any_bandwidth(seed: int) -> None:
    """With its prepared solver, on graphs that are too large to try everything."""
    rng = random.Random(seed)
    graph = combine(*random_profiles(rng, rng.randint(15, 60)), replace(LINK, fixed_s=rng.choice((0.0, 0.01))))
    sweep = BandwidthSweep(graph, OBJECTIVES[seed % 4], symmetric=seed % 2 == 0)
    cutter = Cutter(sweep.weighed)
    pieces = envelope(sweep, lambda at: cutter.solve(at.links))
    for bps in [10 ** (3 + step / 4) for step in range(25)]:
        fresh = plan(sweep.at(1 / bps))
        assert piece_at(pieces, bps).line.at(1 / bps) == pytest.approx(fresh.total_s, rel=1e-8)


def test_the_prepared_solver_gives_the_same_envelope_as_trying_everything() -> None:
    rng = random.Random(5)
    graph = combine(*random_profiles(rng, 7), replace(LINK, fixed_s=0.0))
    sweep = BandwidthSweep(graph, latency(TWO), symmetric=True)
    cutter = Cutter(sweep.weighed)
    solved, tried = envelope(sweep, lambda at: cutter.solve(at.links)), envelope(sweep, best_placement)
    assert len(solved) > 2
    assert [piece.line.slope for piece in solved] == [piece.line.slope for piece in tried]
    assert [piece.line.base for piece in solved] == pytest.approx([piece.line.base for piece in tried])


def line(name: str, base: float, slope: float) -> Line[str]:
    return Line(name, base, slope)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([("edge", 1.0, 0.0)], ["edge"]),
        ([("edge", 1.0, 0.0), ("cloud", 0.1, 1e6)], ["edge", "cloud"]),
        ([("cloud", 0.1, 1e6), ("edge", 0.1, 0.0)], ["edge"]),
        ([("edge", 1.0, 0.0), ("same", 1.0, 0.0)], ["edge"]),
        ([("edge", 1.0, 0.0), ("cut", 0.7, 5e5), ("cloud", 0.1, 1e6)], ["edge", "cloud"]),
        ([("edge", 1.0, 0.0), ("cut", 0.3, 5e5), ("cloud", 0.1, 1e6)], ["edge", "cut", "cloud"]),
        ([("edge", 1.0, 0.0), ("cut", 0.55, 5e5), ("cloud", 0.1, 1e6)], ["edge", "cloud"]),
        ([("worse", 0.2, 1e6), ("cloud", 0.1, 1e6), ("edge", 1.0, 0.0)], ["edge", "cloud"]),
    ],
)
def test_the_least_of_lines(lines: list[tuple[str, float, float]], expected: list[str]) -> None:
    for order in itertools.permutations(lines) if len(lines) < 4 and lines[0][1:] != lines[-1][1:] else [lines]:
        assert [piece.line.of for piece in lower([line(*one) for one in order])] == expected


def test_where_two_lines_meet_is_told_in_bits_per_second() -> None:
    pieces = lower([line("edge", 1.0, 0.0), line("cloud", 0.5, 4e6)])
    assert [(piece.from_bps, piece.to_bps) for piece in pieces] == [(0.0, 8e6), (8e6, math.inf)]


def test_objectives_that_know_no_bandwidth_have_one_piece() -> None:
    graph = combine(*random_profiles(random.Random(3), 5), LINK)
    objective: Objective = cost(TWO, LinkPrices(0.5, 0.0, 4.0))
    assert len(envelope(BandwidthSweep(graph, objective), best_placement)) == 1
