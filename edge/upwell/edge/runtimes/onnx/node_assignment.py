"""Where ONNX Runtime runs each node of a graph, by evidence: its own node assignment, or the profile of a run.

`get_providers()` lists loaded providers, used or not, so it is no evidence. Since 1.24 a session records the
assignment; before that, a profile of one run names the provider of every kernel that ran. Both report on the graph as
ONNX Runtime has rewritten it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.input_check import blank
from upwell.edge.runtimes.onnx.tensor_conversion import caller_for
from upwell.edge.runtimes.onnxruntime_import import onnxruntime
from upwell.edge.runtimes.placement import NodeCover
from upwell.shared.formats.onnx.graph import OnnxGraph, OnnxNode
from upwell.shared.formats.onnx.tensor_types import spec_of
from upwell.shared.formats.operator_work import work_of

RECORD_KEY = "session.record_ep_graph_assignment_info"
CAST_FOR_CPU = "InsertedPrecisionFreeCast_"
"""Prefix of the nodes that ONNX Runtime inserts if the CPU has no float16 kernel."""

_REWRITTEN = "_token_"  # suffix of a node that ONNX Runtime converted to a provider's layout


@dataclass(frozen=True)
class AssignedNode:
    """One node of the graph, and the full name of the provider that runs it."""

    name: str
    operator: str
    provider: str

    @property
    def label(self) -> str:
        """`conv1 (Conv)`, or `Conv` for a node without a name."""
        return f"{self.name} ({self.operator})" if self.name else self.operator


@dataclass(frozen=True)
class GraphPart:
    """Nodes assigned to a provider together; a compiling provider turns them into one kernel."""

    provider: str
    nodes: Sequence[AssignedNode]


def records_assignment() -> bool:
    """Whether this ONNX Runtime records the assignment of nodes (1.24 and later)."""
    return hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")


def assigned_nodes(session: Any) -> Sequence[AssignedNode]:
    """Every node of a session that was made with `RECORD_KEY` set, in the order of the assignment."""
    return tuple(node for part in parts_of(session) for node in part.nodes)


def parts_of(session: Any) -> Sequence[GraphPart]:
    """The same, grouped as ONNX Runtime assigned them."""
    return tuple(
        GraphPart(part.ep_name, tuple(AssignedNode(node.name, node.op_type, part.ep_name) for node in part.get_nodes()))
        for part in session.get_provider_graph_assignment_info()
    )


def from_profile(session: Any) -> Sequence[AssignedNode]:
    """Every kernel used by one run with synthetic inputs; ends the session's profiling.

    Inputs are zeros, with 1 for each dynamic dimension. Branches not taken are missing. Raises the runtime's error if
    the model fails on such inputs.
    """
    try:
        inputs, outputs = ([*map(spec_of, arguments)] for arguments in (session.get_inputs(), session.get_outputs()))
        caller_for(session, inputs, outputs)({spec.name: blank(spec.datatype, spec.shape) for spec in inputs})
    finally:
        profile = Path(session.end_profiling())
    return kernels_in_profile(json.loads(profile.read_text(encoding="utf-8")))


def kernels_in_profile(events: Iterable[Mapping[str, Any]]) -> Sequence[AssignedNode]:
    """The kernels among the events of an ONNX Runtime profile, without the copies between devices."""
    ran: dict[str, AssignedNode] = {}
    for event in events:
        facts = event.get("args", {})
        if event.get("cat") != "Node" or "provider" not in facts or str(facts.get("op_name", "")).startswith("Memcpy"):
            continue
        name = str(event.get("name", "")).removesuffix("_kernel_time")
        ran[name] = AssignedNode(name, str(facts.get("op_name", "")), str(facts["provider"]))
    return tuple(ran.values())


def covers(graph: OnnxGraph, parts: Sequence[GraphPart], provider: str) -> list[NodeCover]:
    """Each node of `graph`, then each that ONNX Runtime inserted on the CPU, with its partition and work.

    `parts` comes from ONNX Runtime's assignment or a profile, and may name nodes that the runtime inserted.
    """
    found = _Found.by(graph, parts, provider)
    constants = constant_tensors(graph)
    partitions = _partitions(graph, found)
    covers = [
        NodeCover(node.name, node.operator, partitions.get(node.name), _work(graph, constants, node))
        for node in graph.nodes
    ]
    return covers + list(found.made)


def constant_tensors(graph: OnnxGraph) -> set[str]:
    """Tensors that are the same in each run: initializers, and outputs of nodes without bodies that depend on nothing
    else."""
    constants = set(graph.constants)
    for node in graph.nodes:
        if not node.bodies and constants.issuperset(node.reads):
            constants.update(node.outputs)
    return constants


def _work(graph: OnnxGraph, constants: Collection[str], node: OnnxNode) -> float:
    """`work_of` one run of `node`; NaN for a node with bodies, 0 for one that depends only on `constants`."""
    if node.bodies:
        return math.nan
    if all(name in constants for name in node.reads):
        return 0.0
    inputs, outputs = ([_shape(graph, name) for name in names] for names in (node.inputs, filter(None, node.outputs)))
    return work_of(node.op, inputs, outputs, ())


def _shape(graph: OnnxGraph, name: str) -> tuple[int, ...] | None:
    """The shape of a tensor; a dynamic dimension counts as 1."""
    shape = graph.shapes.get(name)
    return None if shape is None else tuple(1 if size < 0 else size for size in shape)


@dataclass(frozen=True)
class _Found:
    """The placement by evidence: nodes on the accelerator with their part, nodes on the CPU, or unknown.

    `made` are nodes that ONNX Runtime inserted on the CPU, and `has_made` says whether the accelerator has inserted
    nodes, into which others may be merged. `is_compiled` says whether the parts are partitions.
    """

    taken: Mapping[str, int]
    left: frozenset[str]
    made: Sequence[NodeCover]
    has_made: bool
    is_compiled: bool

    @classmethod
    def by(cls, graph: OnnxGraph, parts: Sequence[GraphPart], provider: str) -> _Found:
        names = {node.name for node in graph.nodes}
        taken: dict[str, int] = {}
        left: set[str] = set()
        made: list[NodeCover] = []
        has_made = False
        for index, part in enumerate(parts):
            for node in part.nodes:
                name = node.name if node.name in names else node.name.partition(_REWRITTEN)[0]
                is_taken = part.provider == provider
                if name.startswith(CAST_FOR_CPU):
                    continue
                if name not in names:
                    has_made |= is_taken
                    if not is_taken:
                        made.append(NodeCover(node.name, node.operator, None, 0.0))
                elif is_taken:
                    taken[name] = index
                else:
                    left.add(name)
        is_compiled = any(part.provider == provider and len(part.nodes) > 1 for part in parts)
        return cls(taken, frozenset(left), made, has_made, is_compiled)


def _partitions(graph: OnnxGraph, found: _Found) -> dict[str, int]:
    """The partition of each node on the accelerator, counted from 0 in the order of the graph.

    For a compiling provider these are its parts; for one that runs single nodes, the connected groups.
    """
    neighbours = _neighbours(graph)
    taken = [node.name for node in graph.nodes if _is_taken(found, node.name, neighbours[node.name])]
    groups: dict[str, int] = {}
    if found.is_compiled:
        groups = {name: found.taken[name] for name in taken if name in found.taken}
        for name in list(groups):
            _spread(groups[name], name, set(taken), neighbours, groups)
    for name in taken:
        if name not in groups:
            groups[name] = -1 - len(groups)  # parts have numbers from 0
            _spread(groups[name], name, set(taken), neighbours, groups)
    order = {group: index for index, group in enumerate(dict.fromkeys(groups[name] for name in taken))}
    return {name: order[groups[name]] for name in taken}


def _is_taken(found: _Found, name: str, neighbours: Sequence[str]) -> bool:
    """Whether the node is on the accelerator.

    A node without evidence was merged into an inserted node on the accelerator if only that side has such nodes;
    otherwise it is where most of its neighbours are.
    """
    if name in found.taken or name in found.left:
        return name in found.taken
    if found.has_made and not found.made:
        return True
    return sum(near in found.taken for near in neighbours) > len(neighbours) / 2


def _spread(
    group: int, start: str, taken: set[str], neighbours: Mapping[str, Sequence[str]], groups: dict[str, int]
) -> None:
    """Put all nodes on the accelerator that are connected with `start` and have no group yet into `group`."""
    waiting = [start]
    while waiting:
        for near in neighbours[waiting.pop()]:
            if near in taken and near not in groups:
                groups[near] = group
                waiting.append(near)


def _neighbours(graph: OnnxGraph) -> dict[str, list[str]]:
    producers = {output: node.name for node in graph.nodes for output in node.outputs if output}
    neighbours: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for node in graph.nodes:
        for source in (producers[name] for name in node.inputs if name in producers):
            neighbours[source].append(node.name)
            neighbours[node.name].append(source)
    return neighbours
