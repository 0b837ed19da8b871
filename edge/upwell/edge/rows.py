"""The rows of one request: which side answered which, and how the answer is put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from upwell.edge.uplink.uplink import CloudReply
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.reasons import Route
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array

Replies: TypeAlias = Sequence[tuple[tuple[int, ...], CloudReply]]
"""What the cloud answered, each with the rows of the request that it is about."""


_ONE = (0,)


class RowParts:
    """What the device answered so far, in parts of one or several rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.all = _ONE if rows == 1 else tuple(range(rows))
        self.edge: list[tuple[tuple[int, ...], Mapping[str, Array]]] = []

    def edge_covers(self, rows: Sequence[int]) -> bool:
        """Whether the device has answered all of these."""
        return {row for part, _ in self.edge for row in part}.issuperset(rows)

    def are_complete(self, replies: Replies) -> bool:
        """Whether every row has an answer of one side."""
        parts = [rows for rows, _ in (*self.edge, *replies)]
        return {row for rows in parts for row in rows}.issuperset(self.all)

    def routes(self, lifted: Mapping[int, Route], here: Route) -> tuple[Route, ...]:
        """Who answers each row: `here` says it of those that are not `lifted`."""
        return tuple(lifted.get(row, here) for row in self.all)

    def merged(self, replies: Replies, signature: Signature | None) -> Mapping[str, Array]:
        """The cloud's rows, and the edge's where the cloud has none. Without a `signature` the cloud has all."""
        lifted = {row for rows, _ in replies for row in rows}
        parts: list[tuple[Sequence[int], Mapping[str, Array]]] = [(rows, r.response.outputs) for rows, r in replies]
        if signature is None:
            return parts[0][1]
        for rows, outputs in self.edge:
            kept = [index for index, row in enumerate(rows) if row not in lifted]
            if len(kept) == self.rows:
                return outputs
            if kept:
                parts.append(([rows[index] for index in kept], {name: a[kept] for name, a in outputs.items()}))
        return signature.merge_rows(parts, self.rows)


def size_bytes(inputs: Mapping[str, Array]) -> int:
    """Bytes of a request to a model whose signature only the cloud knows. Raises `InvalidRequest`."""
    try:
        return sum(
            sum(len(item) + 4 for item in array.flat) if array.dtype == np.object_ else array.nbytes
            for array in inputs.values()
        )
    except TypeError:
        raise InvalidRequest("an array of objects holds something other than bytes") from None


def without(rows: tuple[int, ...], taken: tuple[int, ...]) -> tuple[int, ...]:
    """`rows` less those in `taken`, in order."""
    if not taken:
        return rows
    left_out = frozenset(taken)
    return tuple(row for row in rows if row not in left_out)
