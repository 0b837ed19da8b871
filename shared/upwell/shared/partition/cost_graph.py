"""What the planner minimizes: nodes with a cost on each tier, tensors, links between neighbouring tiers.

A cost graph is made from measured profiles, or by anyone who writes the JSON of `upwell partition plan --graph`
(`cost_graph_file`). All times are seconds, all sizes bytes, all bandwidths bits per second.

The total of a placement is

    sum over nodes of cost_s on their tier
    - saves_s of every fused pair whose nodes share a tier, as written for that tier
    + fixed_s of every link beyond which any node is placed, once
    + bytes * 8 / bps, once for every tensor and every link that it crosses upward, however many consume it; inputs of
      the model are made at `input_tier`. Where the tensor has codecs, the cheapest way of sending it counts:
      min(bytes * 8 / bps, encode_s + codec bytes * 8 / bps + decode_s)
    + bytes * 8 / return_bps for every output of the model made beyond `output_tier` and every link on its way back

No node may stand below a tier that feeds it, and a tensor that is not splittable crosses no link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CostNode:
    """A node by name; `cost_s` by tier, in which a missing tier cannot run it; `only` pins it to one tier."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cost_s: Mapping[str, float]
    only: str | None = None

    def cost_on(self, tier: str) -> float:
        """Seconds on a tier; infinite if it cannot or must not run there."""
        return math.inf if self.only not in (None, tier) else self.cost_s.get(tier, math.inf)


@dataclass(frozen=True)
class Codec:
    """Another way to send a tensor: `bytes` on the wire, and the time to encode below and decode above the link."""

    name: str
    bytes: float
    encode_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class CostTensor:
    """The cost of sending a tensor. `splittable`: whether it may cross a link."""

    bytes: float
    splittable: bool = True
    codecs: tuple[Codec, ...] = ()


@dataclass(frozen=True)
class TierLink:
    """From a tier to the next. `fixed_s` is paid once if anything is placed beyond; `return_bps` is the way back."""

    bps: float
    fixed_s: float = 0.0
    return_bps: float = math.inf

    def up_s(self, tensor: CostTensor) -> float:
        """Seconds to send a tensor up this link, by the cheapest codec."""
        return self.sent(tensor)[0]

    def sent(self, tensor: CostTensor) -> tuple[float, str, float]:
        """Seconds up this link, codec ("" for none) and bytes; the plain tensor if no codec is cheaper."""
        ways = [(tensor.bytes * 8 / self.bps, "", tensor.bytes)]
        ways += [(c.encode_s + c.bytes * 8 / self.bps + c.decode_s, c.name, c.bytes) for c in tensor.codecs]
        return min(ways, key=lambda way: way[0])

    def back_s(self, tensor: CostTensor) -> float:
        """Seconds to send a tensor back down this link."""
        return tensor.bytes * 8 / self.return_bps


@dataclass(frozen=True)
class Fused:
    """Two nodes that cost less when they share a tier: `saves_s` by tier."""

    pair: tuple[str, str]
    saves_s: Mapping[str, float]


@dataclass(frozen=True)
class CostGraph:
    """Everything on which a plan depends. `links[k]` leads from `tiers[k]` to `tiers[k + 1]`; nodes in any order.

    `output_tier` None: outputs may stay where they are made. Tiers in `non_empty` must have a node.
    """

    tiers: tuple[str, ...]
    nodes: tuple[CostNode, ...]
    tensors: Mapping[str, CostTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    links: tuple[TierLink, ...]
    input_tier: str
    output_tier: str | None
    fused: tuple[Fused, ...] = ()
    non_empty: tuple[str, ...] = ()


Placement = Mapping[str, str]
"""A tier for every node, by name."""


@dataclass(frozen=True)
class Sent:
    """A tensor that crosses a link upward, as `bytes` on the wire; `codec` is "" for the plain tensor."""

    tensor: str
    source: str
    target: str
    bytes: float
    codec: str = ""


def sent(graph: CostGraph, placement: Placement) -> tuple[Sent, ...]:
    """The tensors that cross each link upward: inputs of the model first, then in the order of nodes and links."""
    levels = {node.name: graph.tiers.index(placement[node.name]) for node in graph.nodes}
    made = dict.fromkeys(graph.inputs, graph.tiers.index(graph.input_tier))
    made |= {name: levels[node.name] for node in graph.nodes for name in node.outputs}
    highest = dict(made)
    for node in graph.nodes:
        for name in node.inputs:
            highest[name] = max(highest[name], levels[node.name])
    found = []
    for name, level in made.items():
        for link in range(level, highest[name]):
            _, codec, size_bytes = graph.links[link].sent(graph.tensors[name])
            found.append(Sent(name, graph.tiers[link], graph.tiers[link + 1], size_bytes, codec))
    return tuple(found)


@dataclass(frozen=True)
class Alternative:
    """Another placement, and its total."""

    placement: Placement
    total_s: float


@dataclass(frozen=True)
class PlacementPlan:
    """The best placement, the tensors it sends, and alternatives.

    `total_s` is computed from the placement in floating point by the formula above. Among placements of equal total it
    has the smallest edge side (every other optimal edge side includes it). `edge_only_s` and `cloud_only_s` are the
    totals with every node on the first and on the last tier, None if that is impossible.
    """

    placement: Placement
    total_s: float
    sent: tuple[Sent, ...]
    edge_only_s: float | None
    cloud_only_s: float | None
    alternatives: tuple[Alternative, ...] = field(default=())
