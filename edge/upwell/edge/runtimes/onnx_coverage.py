"""What of an ONNX model an execution provider takes.

The nodes are those that a provider is offered: ONNX Runtime first removes and rewrites some, whatever the hardware
(its basic optimizations), and that graph is what is surveyed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

from upwell.edge.runtimes.coverage import Coverage, NodeCover
from upwell.edge.runtimes.inputs import check_file
from upwell.edge.runtimes.onnx_evidence import Part, parts_of, records_assignment
from upwell.edge.runtimes.onnx_graph import Graph, named_apart, read_graph
from upwell.edge.runtimes.onnx_providers import CPU, plain_text
from upwell.edge.runtimes.onnx_sessions import Opening, session_options
from upwell.edge.runtimes.onnx_work import constant_tensors, work_of
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.onnx_files import BadOnnxFile, external_weights

_REWRITTEN = "_token_"  # ends the name of a node that ONNX Runtime put into a provider's layout


def coverage_of(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions) -> Coverage:
    """What `accelerator` takes of the model at `path`. Work is NaN where the `onnx` package is not installed.

    With `require: must` the provider is asked as it is then: some take more where the CPU is no choice. Raises
    `ConfigError` where the CPU cannot load the model and `AcceleratorNotUsable` where the provider is not there or
    refuses it.
    """
    return survey(path, options, accelerator, by_profile=not records_assignment())


def survey(path: Path, options: RuntimeOptions, accelerator: AcceleratorOptions, *, by_profile: bool) -> Coverage:
    """The same, by the profile of a run or by the assignment that ONNX Runtime records from 1.24 on."""
    check_file(path)
    with tempfile.TemporaryDirectory(prefix="upwell-coverage-") as folder:
        try:
            external_weights(path)
            offered = _offered(path, options, Path(folder))
            graph = read_graph(offered)
        except BadOnnxFile as error:
            raise ConfigError.at(path, str(error)) from None
        opening = Opening(offered, options, accelerator, by_profile=by_profile, is_basic=True)
        session, nodes = opening.open()
        parts = [Part(node.provider, (node,)) for node in nodes] if by_profile else parts_of(session)
        found = _Found.by(graph, parts, opening.provider.name)
    return Coverage(
        accelerator=accelerator.provider,
        runtime=f"onnxruntime {onnxruntime.__version__}",
        source="profile" if by_profile else "graph assignment",
        nodes=_covers(graph, found),
    )


def _offered(path: Path, options: RuntimeOptions, folder: Path) -> Path:
    """The model as providers are offered it, in a file, with a name for each node."""
    offered = folder / "offered.onnx"
    # Weights in a file of their own, so that a model may be larger than the 2 GB of a protobuf message.
    entries = {
        "session.optimized_model_external_initializers_file_name": "weights.bin",
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    }
    settings = session_options(options, entries)
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(offered)
    try:
        onnxruntime.InferenceSession(str(path), settings, providers=[CPU], enable_fallback=0)
    except Exception as error:  # noqa: BLE001 (ONNX Runtime's errors share no base class)
        raise ConfigError.at(path, f"ONNX Runtime cannot load the model: {plain_text(error)}") from None
    offered.write_bytes(_with_shapes(named_apart(offered.read_bytes())))
    return offered


def _with_shapes(model: bytes) -> bytes:
    """The model with the shapes that can be told for its tensors; as it is where the `onnx` package is missing."""
    try:
        import onnx
        import onnx.shape_inference
    except ModuleNotFoundError:
        return model
    return bytes(onnx.shape_inference.infer_shapes(onnx.load_from_string(model)).SerializeToString())


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
    def by(cls, graph: Graph, parts: Sequence[Part], provider: str) -> _Found:
        names = {node.name for node in graph.nodes}
        taken: dict[str, int] = {}
        left: set[str] = set()
        made: list[NodeCover] = []
        has_made = False
        for index, part in enumerate(parts):
            for node in part.nodes:
                name = node.name if node.name in names else node.name.partition(_REWRITTEN)[0]
                is_taken = part.provider == provider
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


def _covers(graph: Graph, found: _Found) -> list[NodeCover]:
    constants = constant_tensors(graph)
    partitions = _partitions(graph, found)
    covers = [
        NodeCover(node.name, node.operator, partitions.get(node.name), work_of(graph, constants, node))
        for node in graph.nodes
    ]
    return covers + list(found.made)


def _partitions(graph: Graph, found: _Found) -> dict[str, int]:
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


def _neighbours(graph: Graph) -> dict[str, list[str]]:
    producers = {output: node.name for node in graph.nodes for output in node.outputs if output}
    neighbours: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for node in graph.nodes:
        for source in (producers[name] for name in node.inputs if name in producers):
            neighbours[source].append(node.name)
            neighbours[node.name].append(source)
    return neighbours
