"""The nodes of a TFLite interpreter: which of them a delegate took, and an estimate of what each costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from upwell.edge.runtimes.coverage import NodeCover

Shape: TypeAlias = "tuple[int, ...]"

_DELEGATE = "DELEGATE"


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
    inputs = [_shape(int(tensor), tensors) for tensor in node["inputs"]]
    outputs = [_shape(int(tensor), tensors) for tensor in node["outputs"]]
    multiplications = _MULTIPLICATIONS.get(node["op_name"])
    if multiplications is None:
        return float(sum(map(math.prod, outputs)))
    try:
        return float(multiplications(inputs, outputs[0]))
    except (IndexError, ZeroDivisionError):  # ranks that the operator does not have: shapes are not known yet
        return math.nan


def _shape(tensor: int, tensors: Mapping[int, Mapping[str, Any]]) -> Shape:
    """The shape of a tensor; that of a scalar for an input that was left out (-1)."""
    return tuple(int(size) for size in tensors[tensor]["shape"]) if tensor in tensors else ()


def _dense(inputs: Sequence[Shape], output: Shape) -> int:
    """CONV_2D and FULLY_CONNECTED: weights are [outputs, ...], and every output sums over the rest of them."""
    weights = inputs[1]
    return math.prod(output) * math.prod(weights) // weights[0]


def _depthwise(inputs: Sequence[Shape], output: Shape) -> int:
    """Weights are [1, height, width, channels]."""
    height, width = _four(inputs[1])[1:3]
    return math.prod(output) * height * width


def _transposed(inputs: Sequence[Shape], _: Shape) -> int:
    """Inputs are output shape, weights [outputs, height, width, inputs] and data; every element of the data meets
    the weights of its channel."""
    return math.prod(inputs[2]) * math.prod(_four(inputs[1])[:3])


def _matmul(inputs: Sequence[Shape], output: Shape) -> int:
    """[..., m, k] times [..., k, n]. Either may be stored transposed, so k is what m leaves of the first."""
    left = inputs[0]
    return math.prod(output) * (left[-2] * left[-1] // output[-2])


def _four(shape: Shape) -> Shape:
    if len(shape) != 4:
        raise IndexError
    return shape


_MULTIPLICATIONS: Mapping[str, Callable[[Sequence[Shape], Shape], int]] = {
    "CONV_2D": _dense,
    "FULLY_CONNECTED": _dense,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transposed,
    "BATCH_MATMUL": _matmul,
}
