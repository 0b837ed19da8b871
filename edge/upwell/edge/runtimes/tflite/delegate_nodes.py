"""The nodes of a TFLite interpreter: which ones a delegate took, and the estimated work of each.

Only this module uses private names of the TFLite packages, for which there is no public function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from upwell.edge.runtimes.placement import NodeCover
from upwell.shared.formats.operator_work import work_of

_DELEGATE = "DELEGATE"


def apply_delegates(interpreter: Any, delegates: list[Any]) -> None:
    """Apply delegates as the interpreter's constructor does, but after the batch is fixed."""
    interpreter._delegates = delegates  # keeps them alive
    for delegate in delegates:
        interpreter._interpreter.ModifyGraphWithDelegate(delegate._get_native_delegate_pointer())


def walk(interpreter: Any) -> tuple[NodeCover, ...]:
    """The nodes of the main graph in its order, each with the partition of the delegate that took it.

    The nodes that a delegate replaced stay in the interpreter's list: they lie between the inputs and outputs of a
    DELEGATE node and are found by walking back from its outputs. So a node with unused outputs counts as left on the
    CPU even if a delegate took it.

    Before the first allocation every DELEGATE node belongs to a configured delegate; the interpreter's own (XNNPACK)
    takes remaining nodes during it. Names are as in `3 CONV_2D features/0/relu`: position, operator, first output. Work
    counts one run with the interpreter's present shapes.
    """
    listed = interpreter._get_ops_details()
    originals = [node for node in listed if node["op_name"] != _DELEGATE]
    partitions = _partitions(originals, [node for node in listed if node["op_name"] == _DELEGATE])
    tensors = {int(tensor["index"]): tensor for tensor in interpreter.get_tensor_details()}
    return tuple(
        NodeCover(
            f"{node['index']} {node['op_name']} {_first_output(node, tensors)}".rstrip(),
            node["op_name"],
            partitions.get(node["index"]),
            _work(node, tensors),
        )
        for node in originals
    )


def _partitions(originals: Sequence[Mapping[str, Any]], delegates: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """The partition, counted from 0, of each node that a delegate took, by the node's index."""
    producers = {int(tensor): node for node in originals for tensor in node["outputs"]}
    taken: dict[int, int] = {}
    for partition, delegate in enumerate(delegates):
        borders = {int(tensor) for tensor in delegate["inputs"]}
        reached = [int(tensor) for tensor in delegate["outputs"]]
        while reached:
            node = producers.get(reached.pop())
            if node is not None and node["index"] not in taken:
                taken[node["index"]] = partition
                reached += [int(tensor) for tensor in node["inputs"] if int(tensor) not in borders]
    return taken


def _first_output(node: Mapping[str, Any], tensors: Mapping[int, Mapping[str, Any]]) -> str:
    return str(tensors[int(node["outputs"][0])]["name"]) if len(node["outputs"]) else ""


def _work(node: Mapping[str, Any], tensors: Mapping[int, Mapping[str, Any]]) -> float:
    inputs, outputs = ([_shape(int(tensor), tensors) for tensor in node[side]] for side in ("inputs", "outputs"))
    return work_of(node["op_name"], inputs, outputs, ())


def _shape(tensor: int, tensors: Mapping[int, Mapping[str, Any]]) -> tuple[int, ...] | None:
    """The shape of a tensor; None for an omitted input (-1)."""
    return tuple(int(size) for size in tensors[tensor]["shape"]) if tensor in tensors else None
