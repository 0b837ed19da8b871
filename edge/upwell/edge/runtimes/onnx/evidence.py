"""Evidence of the execution provider to which ONNX Runtime assigned each node.

`get_providers()` lists loaded providers, used or not, so it is no evidence. Since 1.24 a session records the
assignment; before that, a profile of one run names the provider of every kernel that ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.inputs import blank
from upwell.edge.runtimes.onnx.partitions import AssignedNode, GraphPart
from upwell.edge.runtimes.onnx.tensors import caller_for
from upwell.edge.runtimes.ort import onnxruntime
from upwell.shared.formats.onnx.tensor_types import spec_of

RECORD_KEY = "session.record_ep_graph_assignment_info"


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
