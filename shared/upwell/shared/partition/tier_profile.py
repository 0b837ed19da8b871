"""A measured profile of a model on one tier, as a JSON file: times of prefixes (or suffixes), not of single operators.

Written by `upwell partition profile`, on the device for prefixes (heads) and at the service for suffixes (tails), and
combined by `combining.combine`. Bound to the model's digest, so that profiles of different files are never combined.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from upwell.shared.partition.model_graph import GraphFormat


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(_Part):
    """Warm repeated runs: median, and the 10th and 90th percentile, in seconds."""

    median_s: float = Field(ge=0)
    p10_s: float = Field(ge=0)
    p90_s: float = Field(ge=0)
    runs: int = Field(ge=1)


class Point(_Part):
    """A measured cut after the first `nodes` nodes of the profile's order.

    On the edge `measured` is the time of the head (the first `nodes` nodes), in the cloud that of the tail (the
    others). `corrected_s` is the median after monotone correction: a longer head never takes less, a shorter tail never
    more. `tensors` are those that cross. `placement` is the part that the accelerator took, "" on the CPU.
    """

    nodes: int = Field(ge=0)
    tensors: tuple[str, ...]
    measured: Spread
    corrected_s: float = Field(ge=0)
    placement: str = ""


class ModelFacts(_Part):
    """The model file: `digest` is its SHA-256 in hex (external data included), `rows` the batch that was measured."""

    name: str
    format: GraphFormat
    digest: str
    rows: int = Field(1, ge=1)


class Machine(_Part):
    """The machine of the measurement. `simulated` is a note if the device only stands for another."""

    name: str
    system: str
    processor: str
    simulated: str = ""


class RuntimeFacts(_Part):
    """The runtime of the measurement: `accelerator` is "" for the CPU."""

    name: str
    version: str
    accelerator: str = ""
    threads: int = 1


class NodeFacts(_Part):
    """A node of the contracted graph; `work` divides the time between two measured cuts."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    work: float = Field(0.0, ge=0)


class TensorFacts(_Part):
    """Bytes for `rows` rows; null if the tensor has no known size and cannot cross."""

    datatype: str
    bytes: int | None = Field(None, ge=0)


class Profile(_Part):
    """The file. `tier` says whether its points are heads (`edge`) or tails (`cloud`).

    `points` include at least the two ends: on the edge nothing (0 s) and the whole, in the cloud the whole and nothing.
    """

    version: Literal[1] = 1
    kind: Literal["upwell.partition.profile"] = "upwell.partition.profile"
    tier: Literal["edge", "cloud"]
    model: ModelFacts
    machine: Machine
    runtime: RuntimeFacts
    nodes: tuple[NodeFacts, ...]
    tensors: dict[str, TensorFacts]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    points: tuple[Point, ...]
