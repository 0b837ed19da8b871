"""A model as the planner sees it: operators, the tensors between them and across a cut, and cuts worth measuring.

Pure data, the same for ONNX, TFLite and programs of torch.export. Constants (weights) are not part of it: they stay
with the operators that use them, and so never cross a cut.

A prefix has `share` of the estimated work on the device and sends `bytes`. If the device is slower than the cloud by
about the same factor everywhere, its total is `a + b * share + bytes / bandwidth`. So only a prefix that sends less
than every shorter one can be the best, and each corner of the lower convex hull over (share, bytes) is the best for
some bandwidth. Those come first. The rest of the allowed number goes where the curve of times is coarsest.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
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

    `shape` is None if it is neither declared nor inferred: such a tensor cannot cross a cut.
    """

    name: str
    datatype: str
    shape: tuple[int | str, ...] | None

    @property
    def is_sized(self) -> bool:
        """Whether its size is known once the open dimensions are."""
        return self.shape is not None and bool(element_bytes(self.datatype))

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


_LEAST_WORK = 0.1
"""Minimum work of a node relative to the mean: a node without multiplications still moves memory."""


@dataclass(frozen=True)
class Cut:
    """The cut after the first `nodes` nodes of the graph's order, which have `share` of the work, from 0 to 1."""

    nodes: int
    tensors: tuple[str, ...]
    bytes: int
    share: float


def cuts_of(graph: Graph, sizes: Mapping[str, int]) -> tuple[Cut, ...]:
    """Both ends and every legal cut between them, in order; `sizes` gives open dimensions.

    A cut is legal if the bytes of all crossing tensors are known, and some of them were made before the cut.
    """
    found = []
    for nodes, share in enumerate(_shares(graph)):
        tensors = graph.crossing(range(nodes))
        known = [known_bytes(graph.tensors[name], sizes) for name in tensors]
        is_end = nodes in (0, len(graph.nodes))
        if is_end or (None not in known and any(name in graph.producer for name in tensors)):
            found.append(Cut(nodes, tensors, sum(size or 0 for size in known), share))
    return tuple(found)


def known_bytes(tensor: Tensor, sizes: Mapping[str, int]) -> int | None:
    """Bytes of a tensor; None if it has no size, or an open dimension that is not in `sizes`."""
    parts = [part for dim in tensor.shape or () if isinstance(dim, str) for part in dim.split("*")]
    if not tensor.is_sized or any(part not in sizes and not part.isdecimal() for part in parts):
        return None
    return tensor.size_bytes(sizes)


def ranked(cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    """The cuts between the two ends, most promising first.

    Corners of the hull, then other cuts that send less than every shorter one, then those that send no more than their
    neighbours, then the rest; within each group first the one farthest from all before it.
    """
    inner = cuts[1:-1]
    beside = zip(cuts, inner, cuts[2:], strict=False)
    bottlenecks = [cut for before, cut, after in beside if cut.bytes <= min(before.bytes, after.bytes)]
    chosen: dict[int, Cut] = {}
    distance = {cut.nodes: min(cut.share - cuts[0].share, cuts[-1].share - cut.share) for cut in inner}
    for group in (_hull(cuts), _records(cuts), bottlenecks, inner):
        left = [cut for cut in group if cut.nodes not in chosen and cut.nodes in distance]
        while left:
            best = max(left, key=lambda cut: (distance[cut.nodes], -cut.bytes, -cut.nodes))
            left.remove(best)
            chosen[best.nodes] = best
            for cut in inner:
                distance[cut.nodes] = min(distance[cut.nodes], abs(cut.share - best.share))
    return tuple(chosen.values())


def refined(measured: Mapping[int, float], cuts: Sequence[Cut], more: int) -> tuple[Cut, ...]:
    """Up to `more` further cuts, where neighbours among `measured` (seconds by number of nodes) differ most.

    Each is taken from the widest step of the curve with unmeasured cuts: the one there that sends least, of equal ones
    the nearest to the middle. Its own time is estimated by its share of the work until it is measured.
    """
    times, by_nodes = dict(measured), {cut.nodes: cut for cut in cuts}
    found: list[Cut] = []
    while len(found) < more:
        steps = _steps(times, cuts)
        if not steps:
            break
        low, high = max(steps, key=lambda step: (abs(times[step[1]] - times[step[0]]), -step[0]))
        first, last = by_nodes[low], by_nodes[high]
        middle = (first.share + last.share) / 2
        best = min(steps[low, high], key=lambda cut: (cut.bytes, abs(cut.share - middle), cut.nodes))
        part = (best.share - first.share) / (last.share - first.share)
        times[best.nodes] = times[low] + (times[high] - times[low]) * part
        found.append(best)
    return tuple(found)


def _shares(graph: Graph) -> list[float]:
    """The share of the work in the first 0, 1, ... nodes."""
    least = _LEAST_WORK * sum(node.work for node in graph.nodes) / max(1, len(graph.nodes)) or 1.0
    sums = list(accumulate((node.work + least for node in graph.nodes), initial=0.0))
    return [part / (sums[-1] or 1.0) for part in sums]


def _records(cuts: Iterable[Cut]) -> list[Cut]:
    found: list[Cut] = []
    for cut in cuts:
        if not found or cut.bytes < found[-1].bytes:
            found.append(cut)
    return found


def _hull(cuts: Iterable[Cut]) -> list[Cut]:
    """The lower convex hull over (share, bytes), from left to right (Andrew's monotone chain)."""
    found: list[Cut] = []
    for cut in cuts:
        while len(found) > 1 and _is_above(found[-2], found[-1], cut):
            found.pop()
        found.append(cut)
    return found


def _is_above(first: Cut, middle: Cut, last: Cut) -> bool:
    """Whether `middle` lies on or above the line between the others."""
    rise = (last.bytes - first.bytes) * (middle.share - first.share)
    return (middle.bytes - first.bytes) * (last.share - first.share) >= rise


def _steps(times: Collection[int], cuts: Sequence[Cut]) -> dict[tuple[int, int], list[Cut]]:
    """The unmeasured cuts between each two neighbours among the measured ones; pairs without any are left out."""
    known = sorted(times)
    found: dict[tuple[int, int], list[Cut]] = {}
    for cut in cuts:
        place = bisect.bisect_left(known, cut.nodes)
        if 0 < place < len(known) and known[place] != cut.nodes:
            found.setdefault((known[place - 1], known[place]), []).append(cut)
    return found
