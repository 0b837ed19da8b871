"""The cuts of a model that are worth measuring, most promising first.

A prefix has `share` of the estimated work on the device and sends `bytes`. If the device is slower than the cloud by
about the same factor everywhere, its total is `a + b * share + bytes / bandwidth`. So only a prefix that sends less
than every shorter one can be the best, and each corner of the lower convex hull over (share, bytes) is the best for
some bandwidth. Those come first. The rest of the allowed number goes where the curve of times is coarsest.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from upwell.shared.partition.model_graph import Graph, known_bytes

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
