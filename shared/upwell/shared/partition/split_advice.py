"""Whether to split at all: compares the device alone, the cloud alone with raw or compressed input, and the best cuts.

Each option is a line over inverse bandwidth, so the best option at each bandwidth is on the lower envelope of all
lines, and cuts off the envelope can be ignored.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from upwell.shared.partition.bandwidth import SLOWEST_BPS, BandwidthSweep, LabelledCost, Line, Piece, lower
from upwell.shared.partition.cost_graph import CostGraph, Placement
from upwell.shared.partition.objectives import latency
from upwell.shared.partition.tier_profile import CLOUD, EDGE, cut_name

Kind = Literal["edge", "cloud", "cut"]
EDGE_ONLY, CLOUD_RAW = "edge only", "cloud with raw input"
WORTH = 0.01
"""Margin by which a cut must be better than all alternatives at some bandwidth: the accuracy of measured medians."""


@dataclass(frozen=True)
class Encoded:
    """The input `tensor` as a compressed picture: its name, bytes, and seconds to encode and decode."""

    name: str
    tensor: str
    bytes: float
    encode_s: float
    decode_s: float


@dataclass(frozen=True, eq=False)
class Option:
    """One option: `seconds` is its latency over inverse bandwidth, `value` that of the objective.

    `edge_s` and `cloud_s` are the times of the tiers, encoding and decoding included. `is_measured`: both profiles have
    measured times for this cut; otherwise they are interpolated.
    """

    name: str
    kind: Kind
    placement: Placement
    edge_s: float
    cloud_s: float
    seconds: Line[LabelledCost]
    value: Line[LabelledCost]
    is_measured: bool

    @property
    def bytes(self) -> float:
        """The bytes sent for one request; if the link is symmetric, returned bytes included."""
        return self.seconds.slope / 8


Wins = tuple[Piece[Option], ...]
"""The best option by bandwidth, from the slowest link to the fastest."""


@dataclass(frozen=True)
class Advice:
    """All options, with the best cut at the given bandwidth first among the cuts, and the bandwidths at which each
    wins.

    `gain` is the factor by which the best option is better than the best one without a cut, at the bandwidth where that
    is largest; 1 if no cut wins. `raw_wins` and `raw_gain` are the same without compressed pictures.
    """

    options: tuple[Option, ...]
    inverse: float
    wins: Wins
    gain: float
    raw_wins: Wins
    raw_gain: float

    @property
    def cuts_pay(self) -> bool:
        """Whether a cut beats all other options at any bandwidth."""
        return self.gain > 1

    @property
    def best(self) -> Option:
        """The best option at the given bandwidth."""
        return min((piece.line for piece in self.wins), key=lambda line: line.at(self.inverse)).of

    def range_of(self, option: Option) -> Piece[Option] | None:
        """The bandwidths at which this option is best; None if there are none."""
        return next((piece for piece in self.wins if piece.line.of is option), None)


@dataclass(frozen=True)
class OptionFactory:
    """Makes options from placements, with the planner's costs and the cuts that both profiles measured.

    `measured` counts the nodes in the head, in the order of the graph; `inverse` is the given inverse bandwidth.
    """

    sweep: BandwidthSweep
    inverse: float
    measured: Collection[int]

    def option(self, placement: Placement) -> Option:
        """The option of this placement, with raw input."""
        graph = self.sweep.graph
        in_head = [placement[node.name] == EDGE for node in graph.nodes]
        count = sum(in_head)
        name = cut_name(graph, placement)
        in_seconds = replace(self.sweep, objective=latency(graph.tiers))
        return Option(
            {EDGE: EDGE_ONLY, CLOUD: CLOUD_RAW}.get(name, name),
            "edge" if name == EDGE else "cloud" if name == CLOUD else "cut",
            placement,
            tier_s(graph, placement, EDGE),
            tier_s(graph, placement, CLOUD),
            in_seconds.line(placement, self.inverse),
            self.sweep.line(placement, self.inverse),
            all(in_head[:count]) and count in self.measured,
        )

    def encoded(self, raw: Option, picture: Encoded) -> Option:
        """The cloud alone with the input as a compressed picture; `raw` is the option with raw input."""
        tensors = dict(self.sweep.graph.tensors)
        tensors[picture.tensor] = replace(tensors[picture.tensor], bytes=picture.bytes, codecs=())
        smaller = replace(self, sweep=replace(self.sweep, graph=replace(self.sweep.graph, tensors=tensors)))
        option, price = smaller.option(raw.placement), self.sweep.objective.compute
        value = price[EDGE] * picture.encode_s + price[CLOUD] * picture.decode_s
        return replace(
            option,
            name=f"cloud with {picture.name}",
            edge_s=option.edge_s + picture.encode_s,
            cloud_s=option.cloud_s + picture.decode_s,
            seconds=replace(option.seconds, base=option.seconds.base + picture.encode_s + picture.decode_s),
            value=replace(option.value, base=option.value.base + value),
        )

    def measured_cuts(self) -> Iterator[Option]:
        """The cuts that both profiles measured, without the two ends."""
        names = [node.name for node in self.sweep.graph.nodes]
        for count in sorted(set(self.measured) - {0, len(names)}):
            option = self.option({name: EDGE if index < count else CLOUD for index, name in enumerate(names)})
            if math.isfinite(option.value.base):
                yield option


def advise(
    factory: OptionFactory,
    pieces: Sequence[Piece[LabelledCost]],
    best_cut: Placement | None,
    encoded: Sequence[Encoded],
) -> Advice:
    """Compare all options.

    `pieces` is the envelope of the graph in `factory.sweep`, `best_cut` its best placement with nodes on both sides at
    the given bandwidth, None if there is none; `encoded` are compressed pictures to try.
    """
    names = [node.name for node in factory.sweep.graph.nodes]
    both = [factory.option(dict.fromkeys(names, tier)) for tier in (EDGE, CLOUD)]
    whole = [option for option in both if math.isfinite(option.value.base)]
    pictures = [factory.encoded(option, one) for option in whole if option.kind == "cloud" for one in encoded]
    placements = [] if best_cut is None else [best_cut]
    found = [factory.option(placement) for placement in (*placements, *(piece.line.of.placement for piece in pieces))]
    cuts = list({option.name: option for option in reversed(found) if option.kind == "cut"}.values())[::-1]
    raw_wins, raw_gain = _wins(whole, cuts)
    wins, gain = _wins([*whole, *pictures], cuts)
    return Advice((*whole, *pictures, *cuts), factory.inverse, wins, gain, raw_wins, raw_gain)


def tier_s(graph: CostGraph, placement: Placement, tier: str) -> float:
    """Total seconds of a placement's nodes on a tier."""
    return math.fsum(node.cost_on(tier) for node in graph.nodes if placement[node.name] == tier)


def _wins(whole: Sequence[Option], cuts: Sequence[Option]) -> tuple[Wins, float]:
    """The winners by bandwidth, and the gain of cuts; cuts are left out if it is less than `WORTH`.

    `whole` is never empty: a profile of heads includes the whole model.
    """
    alone, together = _lower(whole), _lower([*whole, *cuts])
    corners = [1 / piece.from_bps for piece in (*alone, *together) if piece.from_bps > 0]
    gain = max(_least(alone, inverse) / _least(together, inverse) for inverse in (0.0, *corners, 1 / SLOWEST_BPS))
    return (together, gain) if gain >= 1 + WORTH else (alone, 1.0)


def _least(wins: Wins, inverse: float) -> float:
    """The least value; never 0, since it is a divisor."""
    return max(1e-300, min(piece.line.at(inverse) for piece in wins))


def _lower(options: Sequence[Option]) -> Wins:
    return lower([Line(option, option.value.base, option.value.slope) for option in options])
