"""A model as the planner sees it: operators, and the tensors between them and across a cut.

Pure data, the same for ONNX, TFLite and programs of torch.export. Constants (weights) are not part of it: they stay
with the operators that use them, and so never cross a cut.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeAlias

from upwell.shared.tensors import DTYPES

GraphFormat: TypeAlias = Literal["onnx", "tflite", "torch"]
"""The format of the file from which a graph was read."""


def element_bytes(datatype: str) -> int:
    """Bytes of one element of an OIP datatype; 0 for one without a fixed size."""
    dtype = DTYPES.get(datatype)
    return 0 if dtype is None or dtype.hasobject else dtype.itemsize


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """A dimension as a number. An open one is a name or a product (`49*rows`); names missing in `sizes` count as 1."""
    if isinstance(dim, int):
        return dim
    return math.prod(int(part) if part.isdecimal() else sizes.get(part, 1) for part in dim.split("*"))


def in_order(sources: Sequence[Collection[int]]) -> list[int]:
    """Vertices by number in topological order; of those that may come next always the smallest.

    If the numbers are in topological order already, it is kept. Vertices in a cycle, and those after them, are left
    out.
    """
    sorter = TopologicalSorter(dict(enumerate(sources)))
    with suppress(CycleError):
        sorter.prepare()
    ready, order = list(sorter.get_ready()), list[int]()
    heapq.heapify(ready)
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for vertex in sorter.get_ready():
            heapq.heappush(ready, vertex)
    return order


@dataclass(frozen=True)
class Tensor:
    """One tensor. `datatype` is an OIP name (`FP32`, `UINT8`); a dimension is a number, or as for `size_of`.

    `shape` is None if it is neither declared nor inferred, and a dimension "" if its size depends on more than the
    model's inputs, as far as is known: such a tensor cannot cross a cut.
    """

    name: str
    datatype: str
    shape: tuple[int | str, ...] | None

    @property
    def is_sized(self) -> bool:
        """Whether its size is known once the open dimensions are."""
        return self.shape is not None and "" not in self.shape and bool(element_bytes(self.datatype))

    def size_bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """Bytes on the wire, with open dimensions from `sizes`, 1 if missing (one row).

        Raises `ValueError` for a tensor of unknown size.
        """
        if self.shape is None or not self.is_sized:
            raise ValueError(f"tensor {self.name!r} has no known size")
        return element_bytes(self.datatype) * math.prod(size_of(dim, sizes or {}) for dim in self.shape)


@dataclass(frozen=True)
class Node:
    """One operator, or after contraction a group of operators that stays together.

    `inputs` are the non-constant tensors that it reads, each once: including those captured by the bodies of an If or
    Loop, without omitted optional ones. `members` are its operators by position in the file's main graph (itself alone
    before contraction). `is_free`: it costs nothing and may be on both sides of a cut, with a copy in each half
    (DequantizeLinear of an activation; operators on constants alone). `work` estimates its multiply-adds for one row,
    to choose what to measure; it is never a cost. Nodes with the same non-empty `bond` share state (a variable, a
    table) and must stay together.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    members: tuple[int, ...]
    work: float = 0.0
    is_free: bool = False
    bond: str = ""


@dataclass(frozen=True)
class Graph:
    """Operators in a topological order (the file's order if that is one), tensors by name.

    `inputs` and `outputs` are those of the model; every tensor that a node names, and every input and output of the
    model, is in `tensors`. `format` is `onnx`, `tflite` or `torch`.
    """

    format: GraphFormat
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """By tensor: the index of the node that makes it; inputs of the model and constants are left out."""
        return {tensor: index for index, node in enumerate(self.nodes) for tensor in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """By tensor: the indices of the nodes that read it."""
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for tensor in node.inputs:
                found.setdefault(tensor, []).append(index)
        return {tensor: tuple(indices) for tensor, indices in found.items()}

    def is_downset(self, edge: Collection[int]) -> bool:
        """Whether no node of `edge` (by index) reads a tensor made by the others."""
        inside = set(edge)
        return all(
            self.producer.get(tensor, index) in inside for index in inside for tensor in self.nodes[index].inputs
        )

    def crossing(self, edge: Collection[int]) -> tuple[str, ...]:
        """The tensors that the other side reads and does not make itself, in the order of first use.

        This includes inputs of the model that the tail takes from the caller. Outputs of the model made on the edge
        side do not cross. Empty if everything is on the edge side.
        """
        inside = set(edge)
        found: dict[str, None] = {}
        for index, node in enumerate(self.nodes):
            if index in inside:
                continue
            for tensor in node.inputs:
                if self.producer.get(tensor) in inside or tensor not in self.producer:
                    found[tensor] = None
        return tuple(found)

    def sent(self, edge: Collection[int]) -> tuple[str, ...]:
        """The crossing tensors that `edge` makes."""
        return tuple(name for name in self.crossing(edge) if name not in self.inputs)


def known_bytes(tensor: Tensor, sizes: Mapping[str, int]) -> int | None:
    """Bytes of a tensor; None if it has no size, or an open dimension that is not in `sizes`."""
    parts = [part for dim in tensor.shape or () if isinstance(dim, str) for part in dim.split("*")]
    if not tensor.is_sized or any(part not in sizes and not part.isdecimal() for part in parts):
        return None
    return tensor.size_bytes(sizes)
