"""Each objective's value of a rewritten graph is its formula, term by term."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from upwell.shared.partition.cost_graph import Codec, CostGraph, CostNode, CostTensor, Fused, TierLink, total_s
from upwell.shared.partition.objectives import LinkPrices, Objective, Power, cost, energy, latency, weighted

TWO = ("edge", "cloud")
GRAPH = CostGraph(
    TWO,
    (
        CostNode("a", ("x",), ("t",), {"edge": 0.2, "cloud": 0.01}),
        CostNode("b", ("t",), ("u",), {"edge": 0.4, "cloud": 0.02}),
        CostNode("c", ("u",), ("y",), {"edge": 0.8, "cloud": 0.04}),
    ),
    {"x": CostTensor(600_000), "t": CostTensor(100_000), "u": CostTensor(50_000), "y": CostTensor(4_000)},
    ("x",),
    ("y",),
    (TierLink(8e6, 0.04, 16e6),),
    "edge",
    "edge",
    fused=(Fused(("a", "b"), {"edge": 0.1, "cloud": 0.005}),),
)
HALF = {"a": "edge", "b": "edge", "c": "cloud"}
WHOLE = dict.fromkeys("abc", "edge")
POWER = Power(busy_w=5.0, idle_w=1.0, send_w=3.0, receive_w=2.0, joules_per_byte=1e-6)
PRICES = LinkPrices(cloud_second=0.5, cloud_request=0.001, uplink_gb=4.0)
SECONDS = 0.5 + 0.04 + 0.05 + 0.04 + 0.002
JOULES = 5 * 0.5 + 1 * (0.04 + 0.04) + 3 * 0.05 + 50_000e-6 + 2 * 0.002 + 4_000e-6
MONEY = 0.5 * 0.04 + 0.001 + 4 * 50_000e-9


@pytest.mark.parametrize(
    ("objective", "half", "whole"),
    [
        (latency(TWO), SECONDS, 1.3),
        (energy(TWO, POWER), JOULES, 5 * 1.3),
        (cost(TWO, PRICES), MONEY, 0.0),
        (
            weighted([(2.0, latency(TWO)), (0.5, energy(TWO, POWER)), (100.0, cost(TWO, PRICES))]),
            2 * SECONDS + 0.5 * JOULES + 100 * MONEY,
            2 * 1.3 + 0.5 * 5 * 1.3,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Objective) else None,
)
def test_the_value_is_the_formula(objective: Objective, half: float, whole: float) -> None:
    assert total_s(objective.of(GRAPH), HALF) == pytest.approx(half)
    assert total_s(objective.of(GRAPH), WHOLE) == pytest.approx(whole)


def test_latency_leaves_a_graph_as_it_is() -> None:
    assert latency(TWO).of(GRAPH) == GRAPH


def test_only_the_device_counts_where_there_are_more_tiers() -> None:
    """Above the first link everything is waiting for the device, and only the last tier has a price."""
    tiers = ("edge", "gateway", "cloud")
    graph = replace(
        GRAPH,
        tiers=tiers,
        nodes=tuple(replace(node, cost_s={**node.cost_s, "gateway": 0.1}) for node in GRAPH.nodes),
        links=(TierLink(8e6, 0.04, 16e6), TierLink(80e6, 0.01, 160e6)),
        fused=(),
    )
    spread = dict(zip("abc", tiers, strict=True))
    joules = 5 * 0.2 + 1 * (0.1 + 0.04 + 0.04 + 0.01 + 0.005 + 0.0002) + 3 * 0.1 + 0.1 + 2 * 0.002 + 0.004
    assert total_s(energy(tiers, POWER).of(graph), spread) == pytest.approx(joules)
    assert total_s(cost(tiers, PRICES).of(graph), spread) == pytest.approx(0.5 * 0.04 + 0.001 + 4 * 100_000e-9)


def test_a_codec_is_chosen_by_what_is_asked_for() -> None:
    """It costs more time to encode than it saves on the way, and saves money."""
    codec = Codec("int8", 12_500, encode_s=0.1, decode_s=0.02)
    tensors = {**GRAPH.tensors, "u": CostTensor(50_000, codecs=(codec,))}
    graph = replace(GRAPH, tensors=tensors)
    assert total_s(latency(TWO).of(graph), HALF) == pytest.approx(SECONDS)
    cheaper = MONEY - 4 * 37_500e-9 + 0.5 * 0.02
    assert total_s(cost(TWO, replace(PRICES, uplink_gb=1e4)).of(graph), HALF) == pytest.approx(
        cheaper - 4 * 12_500e-9 + 1e4 * 12_500e-9
    )
    joules = JOULES - 3 * 0.0375 - 37_500e-6 + 5 * 0.1 + 1 * 0.02
    assert total_s(energy(TWO, POWER).of(graph), HALF) == pytest.approx(min(JOULES, joules))


def test_codecs_on_more_than_two_tiers_are_refused() -> None:
    tensors = {**GRAPH.tensors, "u": CostTensor(1, codecs=(Codec("int8", 1),))}
    graph = replace(GRAPH, tiers=("a", "b", "c"), tensors=tensors, links=GRAPH.links * 2)
    with pytest.raises(ValueError, match="two tiers"):
        latency(("a", "b", "c")).of(graph)


def test_what_costs_nothing_is_infinitely_fast() -> None:
    assert [link.bps for link in cost(TWO, LinkPrices(cloud_second=1.0)).of(GRAPH).links] == [math.inf]
