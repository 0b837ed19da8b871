"""What is to be as little as possible: seconds, joules of the device, money, or a weighted sum of them.

Every objective is linear in what `cost_graph` adds up, so that a graph is rewritten and the planner stays the same:
the "seconds" of the rewritten graph are seconds, joules or money. With c_t the seconds of computing on tier t, f_k the
fixed seconds of link k (each link used counts once), u_k and d_k the bytes up and back on link k:

    latency  Σ c_t + Σ f_k + Σ 8·u_k/bps_k + Σ 8·d_k/return_bps_k
    energy   busy_w·c_device + idle_w·(Σ other c_t + Σ f_k)
             + u_0·joules_per_byte + send_w·8·u_0/bps_0, the same back with receive_w, and idle_w for further links
    cost     Σ price of a second on t · c_t + per_request where the first link is used + u_0·per GB / 10⁹
    weighted Σ weight · objective

The device is the first tier. Codecs are rewritten for the first link; a graph of more than two tiers has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from upwell.shared.partition.cost_graph import Codec, CostGraph, CostTensor, Fused, TierLink

GB = 1e9


@dataclass(frozen=True)
class LinkRates:
    """Units of the objective on one link: per second and per byte up and back, per second of `fixed_s`, per use."""

    send: float = 0.0
    byte_up: float = 0.0
    receive: float = 0.0
    byte_back: float = 0.0
    wait: float = 0.0
    use: float = 0.0

    def weighed(self, link: TierLink) -> TierLink:
        """The link whose "seconds" are units of the objective."""
        return TierLink(
            _pace(self.byte_up + self.send * 8 / link.bps),
            self.wait * link.fixed_s + self.use,
            _pace(self.byte_back + self.receive * 8 / link.return_bps),
        )

    def times(self, weight: float, other: LinkRates) -> LinkRates:
        """`weight` times this, plus `other`."""
        return LinkRates(*(weight * getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Objective:
    """An objective. `compute` is units per second of computing, by tier; `links` are in order."""

    name: str
    unit: str
    compute: Mapping[str, float]
    links: tuple[LinkRates, ...]

    def of(self, graph: CostGraph) -> CostGraph:
        """The graph whose total is this objective's value. Raises `ValueError` for codecs on more than two tiers."""
        if len(graph.tiers) > 2 and any(tensor.codecs for tensor in graph.tensors.values()):
            raise ValueError("codecs can only be compared with two tiers")
        below, above = self.compute[graph.tiers[0]], self.compute[graph.tiers[-1]]
        return replace(
            graph,
            nodes=tuple(replace(node, cost_s=self._weighed(node.cost_s)) for node in graph.nodes),
            tensors={name: _recoded(tensor, below, above) for name, tensor in graph.tensors.items()},
            links=tuple(rates.weighed(link) for rates, link in zip(self.links, graph.links, strict=True)),
            fused=tuple(Fused(one.pair, self._weighed(one.saves_s)) for one in graph.fused),
        )

    def _weighed(self, seconds: Mapping[str, float]) -> dict[str, float]:
        return {tier: self.compute[tier] * one_s for tier, one_s in seconds.items()}


def _recoded(tensor: CostTensor, below: float, above: float) -> CostTensor:
    codecs = (Codec(c.name, c.bytes, below * c.encode_s, above * c.decode_s) for c in tensor.codecs)
    return replace(tensor, codecs=tuple(codecs))


def _pace(per_byte: float) -> float:
    """The bandwidth at which a byte takes `per_byte` "seconds"; infinite for 0."""
    return 8 / per_byte if per_byte > 0 else math.inf


def latency(tiers: Sequence[str]) -> Objective:
    """Seconds."""
    link = LinkRates(send=1.0, receive=1.0, wait=1.0)
    return Objective("latency", "s", dict.fromkeys(tiers, 1.0), (link,) * (len(tiers) - 1))


@dataclass(frozen=True)
class Power:
    """Power of the device in watts: computing, waiting, sending, receiving; and additional joules for each byte that
    its radio sends or receives."""

    busy_w: float
    idle_w: float = 0.0
    send_w: float = 0.0
    receive_w: float = 0.0
    joules_per_byte: float = 0.0


def energy(tiers: Sequence[str], power: Power) -> Objective:
    """Joules of the device, which is the first tier."""
    per_byte, idle = power.joules_per_byte, power.idle_w
    first = LinkRates(power.send_w, per_byte, power.receive_w, per_byte, idle)
    further = LinkRates(send=idle, receive=idle, wait=idle)
    compute = dict.fromkeys(tiers, idle) | {tiers[0]: power.busy_w}
    return Objective("energy", "J", compute, (first, *(further,) * (len(tiers) - 2)))


@dataclass(frozen=True)
class LinkPrices:
    """Prices in one currency: a second of computing in the cloud (the last tier), a request to it, a GB (10⁹ bytes)
    up."""

    cloud_second: float = 0.0
    cloud_request: float = 0.0
    uplink_gb: float = 0.0


def cost(tiers: Sequence[str], prices: LinkPrices) -> Objective:
    """Money in the currency of the prices; computing on the device and returned bytes are free."""
    first = LinkRates(byte_up=prices.uplink_gb / GB, use=prices.cloud_request)
    compute = dict.fromkeys(tiers, 0.0) | {tiers[-1]: prices.cloud_second}
    return Objective("cost", "", compute, (first, *(LinkRates(),) * (len(tiers) - 2)))


def weighted(parts: Sequence[tuple[float, Objective]]) -> Objective:
    """The sum of weight times objective; a weight is the worth of one second, joule or unit of money."""
    compute = {tier: sum(weight * one.compute[tier] for weight, one in parts) for tier in parts[0][1].compute}
    links: tuple[LinkRates, ...] = (LinkRates(),) * len(parts[0][1].links)
    for weight, one in parts:
        links = tuple(rates.times(weight, total) for rates, total in zip(one.links, links, strict=True))
    return Objective("weighted", "", compute, links)
