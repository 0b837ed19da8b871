"""A topological order that depends on nothing but the graph."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


def in_order(sources: Sequence[Collection[int]]) -> list[int]:
    """Vertices by number, each behind its sources, and of those that may come next always the smallest.

    Numbers are in order already if that is one. Vertices on a circle, and what waits for them, are left out.
    """
    waits = [len(one) for one in sources]
    readers: list[list[int]] = [[] for _ in sources]
    for vertex, before in enumerate(sources):
        for source in before:
            readers[source].append(vertex)
    ready = [vertex for vertex, count in enumerate(waits) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return order
