"""Measured profiles of a model: a JSON file per tier, times made monotone, and the cost graph of two of them.

Written by `upwell partition profile`, on the device for prefixes (heads) and at the service for suffixes (tails), and
combined by `combine`. Bound to the model's digest, so that profiles of different files are never combined.

Times are made monotone by weighted isotonic regression: of all rising sequences, the one with the least Σ wᵢ·(xᵢ −
yᵢ)², wᵢ the measurement's weight. Pool adjacent violators finds it exactly in linear time: neighbours in the wrong
order are replaced by their weighted mean until none are (Ayer, Brunk, Ewing, Reid, Silverman: An empirical distribution
function for sampling with incomplete information, Annals of Mathematical Statistics 26, 1955; weights as in Barlow et
al., 1972). Otherwise the noise of two heads would show as a layer with negative cost, which a planner would exploit.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from upwell.shared.config.yaml import FilePart
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import read_file
from upwell.shared.partition.cost_graph import CostGraph, CostNode, CostTensor, Placement, TierLink
from upwell.shared.partition.model_graph import GraphFormat
from upwell.shared.partition.plan_file import OpenSizes


class Spread(FilePart):
    """Warm repeated runs: median, and the 10th and 90th percentile, in seconds."""

    median_s: float = Field(ge=0)
    p10_s: float = Field(ge=0)
    p90_s: float = Field(ge=0)
    runs: int = Field(ge=1)


class Point(FilePart):
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


class ModelFacts(FilePart):
    """The model file: `digest` is its SHA-256 in hex (external data included), `rows` the batch that was measured.

    `sizes` are those of the other open dimensions by name.
    """

    name: str
    format: GraphFormat
    digest: str
    rows: int = Field(1, ge=1)
    sizes: OpenSizes = Field(default_factory=dict)


class Machine(FilePart):
    """The machine of the measurement. `simulated` is a note if the device only stands for another."""

    name: str
    system: str
    processor: str
    simulated: str = ""


class RuntimeFacts(FilePart):
    """The runtime of the measurement: `accelerator` is "" for the CPU."""

    name: str
    version: str
    accelerator: str = ""
    threads: int = 1


class NodeFacts(FilePart):
    """A node of the contracted graph; `work` divides the time between two measured cuts."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    work: float = Field(0.0, ge=0)


class TensorFacts(FilePart):
    """Bytes for `rows` rows; null if the tensor has no known size and cannot cross."""

    datatype: str
    bytes: int | None = Field(None, ge=0)


class Profile(FilePart):
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


_DECILES_PER_SIGMA = 2.563
"""Between the 10th and the 90th percentile of a normal distribution there are 2 · 1.2816 standard deviations."""
_LEAST_DEVIATION = 0.005
"""Minimum relative uncertainty of a median, however close its runs are."""
_LEAST_S = 1e-9


def rising(values: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """The nearest sequence that never falls; `weights` are positive. A rising sequence is unchanged."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, count
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, others, more = blocks.pop()
            mean = (other * others + mean * total) / (others + total)
            total, count = others + total, count + more
        blocks.append((mean, total, count))
    return tuple(mean for mean, _, count in blocks for _ in range(count))


def falling(values: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """The nearest sequence that never rises."""
    return rising(values[::-1], weights[::-1])[::-1]


def certainty(spread: Spread) -> float:
    """The weight of a measurement: runs / variance, proportional to the inverse variance of its median."""
    deviation_s = (spread.p90_s - spread.p10_s) / _DECILES_PER_SIGMA
    return float(spread.runs / max(deviation_s, _LEAST_DEVIATION * spread.median_s, _LEAST_S) ** 2)


EDGE, CLOUD = "edge", "cloud"
MAX_PROFILE_BYTES = 64 << 20


def load_profile(path: Path) -> Profile:
    """Load and check a profile. Raises `ConfigError` with every problem found."""
    data = read_file(path, "a profile", MAX_PROFILE_BYTES)
    try:
        profile = Profile.model_validate_json(data)
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(path, None, None, ".".join(map(str, details["loc"])), details["msg"])
                for details in error.errors(include_url=False, include_input=False)
            ]
        ) from None
    problems = _problems(profile)
    if problems:
        raise ConfigError([Problem(path, None, None, key, message) for key, message in problems])
    return profile


def combine(edge: Profile, cloud: Profile, link: TierLink) -> CostGraph:
    """The cost graph, from the heads of one profile and the tails of the other.

    The difference of `corrected_s` between two neighbouring measured points is the time of the nodes between them; each
    gets a part proportional to its `work`, or an equal part if no work is known. So the total of a cut that both
    profiles measured is the measured one, and all others are interpolated (`measured_cuts`). A tensor of unknown size
    must not cross; if it is a model output made in the cloud, its way back counts nothing. Outputs are needed on the
    edge.

    Raises `ConfigError` if the profiles do not belong together.
    """
    _check_together(edge, cloud)
    edge_s, cloud_s = _node_seconds(edge), _node_seconds(cloud)
    nodes = tuple(
        CostNode(node.name, node.inputs, node.outputs, {EDGE: edge_s[index], CLOUD: cloud_s[index]})
        for index, node in enumerate(edge.nodes)
    )
    tensors = {
        name: CostTensor(float(tensor.bytes or 0), splittable=tensor.bytes is not None)
        for name, tensor in edge.tensors.items()
    }
    return CostGraph((EDGE, CLOUD), nodes, tensors, edge.inputs, edge.outputs, (link,), EDGE, EDGE)


def measured_cuts(edge: Profile, cloud: Profile) -> frozenset[int]:
    """The cuts that both profiles measured, by number of nodes: 0 is the cloud alone, all nodes the edge alone."""
    return frozenset(point.nodes for point in edge.points) & frozenset(point.nodes for point in cloud.points)


def cut_name(graph: CostGraph, placement: Placement) -> str:
    """`edge` or `cloud` for one of them alone, `c17` for the first 17 nodes on the edge.

    Another head of 17 nodes gets a suffix made from the names of its nodes: `c17x3fa2b1`.
    """
    head = [node.name for node in graph.nodes if placement[node.name] == EDGE]
    if len(head) in (0, len(graph.nodes)):
        return EDGE if head else CLOUD
    if head == [node.name for node in graph.nodes[: len(head)]]:
        return f"c{len(head)}"
    return f"c{len(head)}x{hashlib.sha256(repr(sorted(head)).encode()).hexdigest()[:6]}"


def _node_seconds(profile: Profile) -> list[float]:
    """Seconds of each node, in the profile's order."""
    seconds: list[float] = []
    for before, after in itertools.pairwise(profile.points):
        together_s = abs(after.corrected_s - before.corrected_s)
        work = [node.work for node in profile.nodes[before.nodes : after.nodes]]
        whole = sum(work)
        seconds += [together_s * (one / whole if whole > 0 else 1 / len(work)) for one in work]
    return seconds


def _problems(profile: Profile) -> list[tuple[str, str]]:
    """Key and message of every problem in a profile that the types of its fields do not exclude."""
    named = {name for node in profile.nodes for name in (*node.inputs, *node.outputs)}
    named |= {*profile.inputs, *profile.outputs, *(name for point in profile.points for name in point.tensors)}
    unknown = sorted(named - profile.tensors.keys())
    problems = [("tensors", f"missing: {', '.join(map(repr, unknown))}")] if unknown else []
    if len({node.name for node in profile.nodes}) < len(profile.nodes):
        problems.append(("nodes", "two nodes have the same name"))
    if not all(math.isfinite(node.work) for node in profile.nodes):
        problems.append(("nodes", "expected finite numbers as `work`"))
    made = {name for node in profile.nodes for name in node.outputs}
    seen = {*profile.inputs}
    for node in profile.nodes:
        late = [name for name in node.inputs if name in made and name not in seen]
        if late:
            problems.append(
                ("nodes", f"{node.name!r} reads {late[0]!r} before it is produced; expected a topological order")
            )
        seen.update(node.outputs)
    return problems + _point_problems(profile.points, len(profile.nodes), profile.tier)


def _point_problems(points: Sequence[Point], nodes: int, tier: str) -> list[tuple[str, str]]:
    counts = [point.nodes for point in points]
    if len(points) < 2 or counts[0] != 0 or counts[-1] != nodes:
        return [("points", f"expected cuts after 0 to {nodes} nodes, including both ends")]
    if any(after <= before for before, after in itertools.pairwise(counts)):
        return [("points", "expected each node once, in the order of `nodes`")]
    times = [point.corrected_s for point in points]
    rising = times if tier == EDGE else times[::-1]
    nothing = "0 nodes" if tier == EDGE else f"all {nodes} nodes"
    if not all(map(math.isfinite, times)) or rising[0] != 0.0:
        return [("points", f"expected finite times, and 0 s for the point that runs nothing, after {nothing}")]
    if any(after < before for before, after in itertools.pairwise(rising)):
        wanted = "a longer head cannot take less time" if tier == EDGE else "a shorter tail cannot take more time"
        return [("points", f"`corrected_s` is not corrected: {wanted}")]
    return []


def _check_together(edge: Profile, cloud: Profile) -> None:
    """Raise `ConfigError` unless one has heads and the other tails of the same model, profiled in the same way."""
    for profile, wanted in ((edge, EDGE), (cloud, CLOUD)):
        if profile.tier != wanted:
            raise ConfigError.at(
                None,
                f"this profile was taken on the {profile.tier} side; expected one from the {wanted} side",
                f"--{wanted}",
            )
    a, b = edge.model, cloud.model
    if a.digest != b.digest:
        raise _apart(f"of different model files ({a.name} {a.digest[:12]}, {b.name} {b.digest[:12]})", "the same file")
    if a.rows != b.rows:
        raise _apart(f"for different batches ({a.rows} and {b.rows} rows)", "the same batch")
    if _shape(edge) != _shape(cloud):
        raise _apart("of different graphs of the same file", "both with the same version of upwell")


def _apart(what: str, wanted: str) -> ConfigError:
    return ConfigError.at(None, f"the two profiles are {what}; profile {wanted} on both sides", "--edge, --cloud")


def _shape(profile: Profile) -> object:
    nodes = [(node.name, node.inputs, node.outputs) for node in profile.nodes]
    return nodes, profile.tensors, profile.inputs, profile.outputs
