"""What ONNX Runtime does not record about models with float16.

A node with float16 that no provider takes, and for which the CPU has no kernel, is computed there in float32 between
casts that are made after the assignment was recorded. So the record has it nowhere, and all that it has is on the
accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from upwell.edge.runtimes.onnx_graph import read_graph
from upwell.edge.runtimes.onnx_partitions import AssignedNode
from upwell.edge.runtimes.onnx_work import constant_tensors
from upwell.shared.onnx_bytes import BadOnnxFile

_CPU = "CPUExecutionProvider"
_FLOAT16 = 10
_REMOVED = ("Identity", "Dropout")


def has_float16(path: Path) -> bool:
    """Whether an input, an output or a weight of the model at `path` is float16."""
    try:
        return _FLOAT16 in read_graph(path).dtypes.values()
    except (BadOnnxFile, OSError):
        return False  # ONNX Runtime says what is wrong with it


def unassigned(path: Path, assigned: Sequence[AssignedNode]) -> Sequence[AssignedNode]:
    """The nodes of a model with float16 that the record has nowhere, of which strict mode says that there are some.

    One of them without a name is told only if nothing else is left on the CPU.
    """
    graph = read_graph(path)
    constants, known = constant_tensors(graph), {node.name for node in assigned}
    found = [
        AssignedNode(node.name, node.operator, _CPU)
        for node in graph.nodes
        if node.name
        and node.name not in known
        and node.operator not in _REMOVED
        and not constants.issuperset(node.outputs)
    ]
    if found or any(node.provider == _CPU for node in assigned):
        return found
    return [AssignedNode("", "one that ONNX Runtime does not name", _CPU)]
