"""Where the nodes of a graph are, from what ONNX Runtime tells of the graph that it made of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from upwell.edge.runtimes.coverage import NodeCover
from upwell.shared.formats.onnx.graph import OnnxGraph, OnnxNode
from upwell.shared.formats.work import work_of

CAST_FOR_CPU = "InsertedPrecisionFreeCast_"
"""Begins the name of a node that ONNX Runtime makes where the CPU has no kernel for float16."""

_REWRITTEN = "_token_"  # ends the name of a node that ONNX Runtime put into a provider's layout


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
    """Nodes that a provider was given together; one that compiles makes one kernel of them."""

    provider: str
    nodes: Sequence[AssignedNode]


def covers(graph: OnnxGraph, parts: Sequence[GraphPart], provider: str) -> list[NodeCover]:
    """Each node of `graph`, and then each that ONNX Runtime made for the CPU, with its partition and its work.

    `parts` is what ONNX Runtime handed out or a profile shows; names in it may be of nodes that the runtime made.
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
    """Tensors that are the same in each run: initializers, and what nodes without bodies make of nothing else."""
    constants = set(graph.constants)
    for node in graph.nodes:
        if not node.bodies and constants.issuperset(node.reads):
            constants.update(node.outputs)
    return constants


def _work(graph: OnnxGraph, constants: Collection[str], node: OnnxNode) -> float:
    """`work_of` one run of `node`; NaN of one with bodies. What depends on `constants` alone is done once at load."""
    if node.bodies:
        return math.nan
    if all(name in constants for name in node.reads):
        return 0.0
    inputs, outputs = ([_shape(graph, name) for name in names] for names in (node.inputs, filter(None, node.outputs)))
    return work_of(node.op, inputs, outputs, ())


def _shape(graph: OnnxGraph, name: str) -> tuple[int, ...] | None:
    """A dimension that varies counts as 1."""
    shape = graph.shapes.get(name)
    return None if shape is None else tuple(1 if size < 0 else size for size in shape)


@dataclass(frozen=True)
class _Found:
    """Where the evidence has the nodes: on the accelerator with the part they are in, on the CPU, or nowhere.

    `made` are nodes on the CPU that ONNX Runtime made, and `has_made` says whether the accelerator has such nodes, in
    which others may have gone. `is_compiled` says whether the parts are partitions.
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

    Those of a provider that compiles are its parts; of one that runs node by node, the connected groups.
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
            groups[name] = -1 - len(groups)  # no part has a number below 0
            _spread(groups[name], name, set(taken), neighbours, groups)
    order = {group: index for index, group in enumerate(dict.fromkeys(groups[name] for name in taken))}
    return {name: order[groups[name]] for name in taken}


def _is_taken(found: _Found, name: str, neighbours: Sequence[str]) -> bool:
    """Whether the node is on the accelerator.

    One that is nowhere went into a node that the accelerator's side has and the graph does not know, if that side
    alone has such nodes; else it is where most of its neighbours are.
    """
    if name in found.taken or name in found.left:
        return name in found.taken
    if found.has_made and not found.made:
        return True
    return sum(near in found.taken for near in neighbours) > len(neighbours) / 2


def _spread(
    group: int, start: str, taken: set[str], neighbours: Mapping[str, Sequence[str]], groups: dict[str, int]
) -> None:
    """Put all on the accelerator that is connected with `start`, and in no group yet, into `group`."""
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
