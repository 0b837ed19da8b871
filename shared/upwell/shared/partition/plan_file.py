"""`plan.json`: the output of `upwell partition plan --json`, and the input of `upwell partition split --plan`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from upwell.shared.config.yaml import FilePart
from upwell.shared.partition.cost_graph import PlacementPlan, Sent

OpenSizes = dict[str, Annotated[int, Field(ge=0, le=(1 << 31) - 1)]]
"""Sizes of open dimensions by name, without the rows."""


class SentFacts(FilePart):
    """A tensor that crosses a link upward."""

    tensor: str
    from_: str = Field(alias="from")
    to: str
    bytes: float
    codec: str = ""


class AlternativeFacts(FilePart):
    """Another placement and its total."""

    placement: dict[str, str]
    total_s: float


class BaselineFacts(FilePart):
    """Null if the model cannot run on that tier alone."""

    edge_only_s: float | None
    cloud_only_s: float | None


class PieceFacts(FilePart):
    """A placement that is best between two uplink bandwidths (null: unbounded): `base_s + bytes * 8 / bps` seconds.

    `edge_s` and `cloud_s` are the parts of `base_s` that the tiers take.
    """

    name: str
    placement: dict[str, str]
    edge_s: float
    cloud_s: float
    base_s: float
    bytes: float
    from_bps: float | None
    to_bps: float | None


class RangeFacts(FilePart):
    """From one uplink bandwidth to another; null means unbounded."""

    from_bps: float | None
    to_bps: float | None


class OptionFacts(FilePart):
    """An option: `base_s + bytes * 8 / bps` seconds, `total_s` at the given bandwidth.

    `value` is the objective there, and `wins` the range where it is the best of all, null if none. `measured`: both
    profiles have measured times for this cut; otherwise they are interpolated. Encoding and decoding are in `edge_s`
    and `cloud_s`.
    """

    name: str
    kind: Literal["edge", "cloud", "cut"]
    placement: dict[str, str]
    measured: bool
    edge_s: float
    cloud_s: float
    base_s: float
    bytes: float
    total_s: float
    value: float
    wins: RangeFacts | None


class AdviceFacts(FilePart):
    """Whether splitting pays. `uplink_bps` is one over the inverse bandwidth used for planning.

    `downlink_bps` null: always as fast as the uplink; `bytes` then include returned bytes. `gain` is the largest
    factor, over all bandwidths, by which the best option is better than the best one without a cut; 1 if no cut wins.
    `notes` say what the figures do not include.
    """

    objective: str
    unit: str
    uplink_bps: float
    downlink_bps: float | None
    rtt_s: float
    options: tuple[OptionFacts, ...]
    best: str
    cuts_pay: bool
    gain: float
    verdict: str
    notes: tuple[str, ...] = ()


class PlanFacts(FilePart):
    """The file. `model`, `sizes`, `envelope` and `advice` exist if the plan was made from profiles of a model file."""

    total_s: float
    placement: dict[str, str]
    sent: tuple[SentFacts, ...]
    baselines: BaselineFacts
    alternatives: tuple[AlternativeFacts, ...] = ()
    model: str | None = Field(None, description="SHA-256 of the model file.")
    sizes: OpenSizes = Field(default_factory=dict)
    envelope: tuple[PieceFacts, ...] = ()
    advice: AdviceFacts | None = None
    kind: Literal["upwell.partition.plan"] = "upwell.partition.plan"


def plan_document(plan: PlacementPlan) -> dict[str, Any]:
    """The output of `upwell partition plan --graph --json`; with `codec` if a tensor is encoded."""
    return {
        "total_s": plan.total_s,
        "placement": dict(plan.placement),
        "sent": [_sent(one) for one in plan.sent],
        "baselines": {"edge_only_s": plan.edge_only_s, "cloud_only_s": plan.cloud_only_s},
        "alternatives": [{"placement": dict(other.placement), "total_s": other.total_s} for other in plan.alternatives],
    }


def _sent(one: Sent) -> dict[str, Any]:
    size = int(one.bytes) if one.bytes == int(one.bytes) else one.bytes
    facts = {"tensor": one.tensor, "from": one.source, "to": one.target, "bytes": size}
    return {**facts, "codec": one.codec} if one.codec else facts
