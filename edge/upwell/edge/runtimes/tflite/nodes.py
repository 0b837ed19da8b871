"""The nodes of a TFLite interpreter: which of them a delegate took, and an estimate of what each costs.

This module alone uses names that begin with an underscore in the TFLite packages; what they do is not to be had in
public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from upwell.edge.runtimes.coverage import NodeCover
from upwell.shared.formats.work import work_of

_DELEGATE = "DELEGATE"


def apply_delegates(interpreter: Any, delegates: list[Any]) -> None:
    """What the interpreter's constructor does with delegates, which is too early where a batch is to be fixed."""
    interpreter._delegates = delegates  # keeps them alive
    for delegate in delegates:
        interpreter._interpreter.ModifyGraphWithDelegate(delegate._get_native_delegate_pointer())


def walk(interpreter: Any) -> tuple[NodeCover, ...]:
    """The nodes of the main graph in its order, each with the partition of the delegate that took it.

    The nodes that a delegate replaced stay in the interpreter's list: they are the ones that lie between the inputs
    and the outputs of a DELEGATE node, found by walking back from its outputs. So a node whose outputs nobody reads
    counts as left on the CPU whoever took it.

    Before the first allocation every DELEGATE node is of a delegate that was asked for; the interpreter's own
    (XNNPACK) takes what is left during it. Names are as in `3 CONV_2D features/0/relu`: position, operator, first
    output. Work counts one run with the shapes that the interpreter has now.
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
    """The shape of a tensor; None for an input that was left out (-1)."""
    return tuple(int(size) for size in tensors[tensor]["shape"]) if tensor in tensors else None
