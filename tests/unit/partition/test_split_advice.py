"""Whether to split: what is compared, where each way wins, and when a cut counts as better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.partition.all_placements_for_tests import all_placements, best_placement
from tests.unit.partition.profiles_for_tests import profile
from upwell.shared.partition.bandwidth import BandwidthSweep, envelope
from upwell.shared.partition.cost_graph import CostTensor, TierLink, total_s
from upwell.shared.partition.objectives import Objective, Power, energy, latency
from upwell.shared.partition.split_advice import Advice, Encoded, OptionFactory, advise
from upwell.shared.partition.tier_profile import combine, cut_name, measured_cuts

TWO = ("edge", "cloud")
SIZES = [600_000, 700_000, 20_000, 4_000]
EDGE_S = {0: 0.0, 1: 0.01, 2: 0.05, 3: 0.2}
CLOUD_S = {0: 0.02, 2: 0.012, 3: 0.0}
LINK = TierLink(8e6, 0.02, 8e6)
JPEG = Encoded("JPEG 85", "x", 15_000, encode_s=0.004, decode_s=0.002)


def advice(
    sizes: Sequence[int] = SIZES,
    pictures: Sequence[Encoded] = (),
    bps: float = 8e6,
    objective: Objective | None = None,
    sent_whole: bool = True,
) -> Advice:
    edge, cloud = profile("edge", EDGE_S, sizes, [1, 1, 1]), profile("cloud", CLOUD_S, sizes, [1, 1, 1])
    graph = combine(edge, cloud, replace(LINK, bps=bps))
    if not sent_whole:
        graph = replace(graph, tensors={**graph.tensors, "x": CostTensor(0, splittable=False)})
    sweep = BandwidthSweep(graph, objective or latency(TWO))
    at_hand = sweep.at(1 / bps)
    proper = [one for one in all_placements(graph) if len(set(one.values())) == 2]
    best = min(proper, key=lambda placement: total_s(at_hand, placement), default=None)
    factory = OptionFactory(sweep, 1 / bps, measured_cuts(edge, cloud))
    return advise(factory, envelope(sweep, best_placement), best, pictures)


def names(found: Advice) -> list[str]:
    return [piece.line.of.name for piece in found.wins]


def test_everything_is_compared_and_the_best_cut_is_named() -> None:
    found = advice(pictures=[JPEG])
    assert [one.name for one in found.options] == [
        "edge only", "cloud with raw input", "cloud with JPEG 85", "c2",
    ]  # fmt: skip
    totals = [one.seconds.at(1 / 8e6) for one in found.options]
    back = 0.004
    assert totals == pytest.approx(
        [0.2, 0.02 + 0.6 + 0.02 + back, 0.02 + 0.015 + 0.02 + back + 0.006, 0.05 + 0.012 + 0.02 + 0.02 + back]
    )
    edge_only, raw, jpeg, cut = found.options
    assert (jpeg.edge_s, jpeg.cloud_s) == pytest.approx((0.004, 0.022))
    assert (raw.bytes, jpeg.bytes, cut.bytes, edge_only.bytes) == (600_000, 15_000, 20_000, 0)


def test_without_a_picture_the_cut_wins_in_the_middle() -> None:
    found = advice()
    assert names(found) == ["edge only", "c2", "cloud with raw input"]
    assert found.cuts_pay
    slow, middle, _ = found.wins
    edge_from = 20_000 * 8 / (0.2 - 0.05 - 0.012 - 0.02 - 0.004)
    raw_from = 580_000 * 8 / (0.05 + 0.012 - 0.02)
    assert (slow.to_bps, middle.to_bps) == pytest.approx((edge_from, raw_from))
    assert found.best.name == "c2"
    assert found.range_of(found.best) is middle


def test_the_gain_is_the_most_over_all_bandwidths() -> None:
    found = advice()
    edge_only, raw, cut = found.options
    bandwidths = [10 ** (4 + step / 500) for step in range(3000)]
    most = max(
        min(edge_only.value.at(1 / bps), raw.value.at(1 / bps)) / min(one.value.at(1 / bps) for one in found.options)
        for bps in bandwidths
    )
    assert found.gain == pytest.approx(most, rel=1e-3)
    assert found.gain >= most
    assert cut.is_measured


def test_a_compressed_picture_beats_it_everywhere() -> None:
    found = advice(pictures=[JPEG])
    assert not found.cuts_pay
    assert found.gain == 1.0
    assert names(found) == ["edge only", "cloud with JPEG 85", "cloud with raw input"]
    assert found.range_of(found.options[3]) is None
    assert found.best.name == "cloud with JPEG 85"
    assert [piece.line.of.name for piece in found.raw_wins] == ["edge only", "c2", "cloud with raw input"]
    assert found.raw_gain == advice().gain


def test_a_picture_that_takes_long_to_encode_leaves_the_cut_its_place() -> None:
    found = advice(pictures=[replace(JPEG, encode_s=0.4)])
    assert names(found) == ["edge only", "c2", "cloud with raw input"]
    assert found.raw_gain == found.gain


def test_a_cut_must_be_better_by_more_than_medians_can_tell() -> None:
    """It sends as much as the raw input and gains 1 ms of 200: that is no reason to split."""
    sizes = [20_200, 20_000, 600_000, 4_000]
    found = advice(sizes)
    assert found.gain == 1.0
    assert names(found) == ["edge only", "cloud with raw input"]


def test_what_is_between_two_measured_cuts_says_so() -> None:
    found = advice([600_000, 20_000, 300_000, 4_000])
    assert {one.name: one.is_measured for one in found.options}["c1"] is False


def test_where_the_cloud_alone_cannot_be_it_is_no_option() -> None:
    found = advice(sent_whole=False, pictures=[JPEG])
    assert {one.kind for one in found.options} == {"edge", "cut"}
    assert found.cuts_pay


def test_energy_decides_by_joules_and_still_tells_seconds() -> None:
    """A radio that costs nothing and a slow link: sending all saves energy, and takes a minute."""
    found = advice(bps=80e3, objective=energy(TWO, Power(busy_w=5.0)))
    assert found.best.name == "cloud with raw input"
    assert found.best.value.at(found.inverse) == 0.0
    assert found.best.seconds.at(found.inverse) > 60
    assert len(found.wins) == 1
    dear = advice(bps=80e3, objective=energy(TWO, Power(busy_w=5.0, joules_per_byte=1e-3)), pictures=[JPEG])
    assert dear.best.name == "edge only"
    assert dear.options[2].value.at(0.0) == pytest.approx(5 * JPEG.encode_s + (15_000 + 4_000) * 1e-3)


def test_a_cut_has_the_name_of_its_head() -> None:
    edge, cloud = profile("edge", EDGE_S, SIZES), profile("cloud", CLOUD_S, SIZES)
    graph = combine(edge, cloud, LINK)
    assert [cut_name(graph, dict(zip(("n0", "n1", "n2"), tiers, strict=True))) for tiers in (
        ("edge",) * 3, ("cloud",) * 3, ("edge", "cloud", "cloud"), ("edge", "edge", "cloud"),
    )] == ["edge", "cloud", "c1", "c2"]  # fmt: skip
    other = cut_name(graph, {"n0": "cloud", "n1": "edge", "n2": "cloud"})
    assert other.startswith("c1x")
    assert other != cut_name(graph, {"n0": "cloud", "n1": "cloud", "n2": "edge"})


def test_pieces_cover_every_bandwidth() -> None:
    for found in (advice(), advice(pictures=[JPEG])):
        assert (found.wins[0].from_bps, found.wins[-1].to_bps) == (0.0, math.inf)
