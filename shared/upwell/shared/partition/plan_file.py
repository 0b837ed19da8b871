"""`plan.json`: what `upwell partition plan` prints with `--json`, and `upwell partition split --plan` takes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SentFacts(_Part):
    """A tensor that crosses a link upward."""

    tensor: str
    from_: str = Field(alias="from")
    to: str
    bytes: float
    codec: str = ""


class AlternativeFacts(_Part):
    """Another placement and its total."""

    placement: dict[str, str]
    total_s: float


class BaselineFacts(_Part):
    """Null where the model cannot run on that tier alone."""

    edge_only_s: float | None
    cloud_only_s: float | None


class PieceFacts(_Part):
    """A placement that is best between two uplink bandwidths (null: no bound): `base_s + bytes * 8 / bps` seconds.

    `edge_s` and `cloud_s` are the parts of `base_s` that the tiers' own work takes.
    """

    name: str
    placement: dict[str, str]
    edge_s: float
    cloud_s: float
    base_s: float
    bytes: float
    from_bps: float | None
    to_bps: float | None


class PlanFacts(_Part):
    """The file. `model` and `envelope` are there where the plan came from profiles of a model file."""

    total_s: float
    placement: dict[str, str]
    sent: tuple[SentFacts, ...]
    baselines: BaselineFacts
    alternatives: tuple[AlternativeFacts, ...] = ()
    model: str | None = Field(None, description="SHA-256 of the model file.")
    envelope: tuple[PieceFacts, ...] = ()
    kind: Literal["upwell.partition.plan"] = "upwell.partition.plan"
