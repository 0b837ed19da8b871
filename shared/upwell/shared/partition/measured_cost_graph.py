"""Combines two measured profiles of one model, a device's and a service's, into the planner's cost graph."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import read_file
from upwell.shared.partition.cost_graph import CostGraph, CostNode, CostTensor, Placement, TierLink
from upwell.shared.partition.tier_profile import Point, Profile

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
