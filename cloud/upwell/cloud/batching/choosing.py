"""Which of the waiting requests run next: pure functions over the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Estimate = Callable[[int], float]
"""Rows -> seconds of a run of so many rows."""

_SHORTEST_S = 1e-9


class Waiting(Protocol):
    """What is to be known of a waiting request."""

    rows: int
    group: object
    deadline_s: float


W = TypeVar("W", bound=Waiting)


def choose(waiting: Sequence[W], max_rows: int, now_s: float, estimate_s: Estimate) -> list[W]:
    """The batch to run now, most urgent first; `waiting` is in order of urgency and not empty.

    Only requests of the same group (equal dtypes and trailing shapes) share a batch, and the most urgent
    request decides which. Of the sizes 1, 2, 4, ... up to `max_rows` it takes the one that answers the most
    rows in time per second of the engine: with n_k the rows whose deadline outlasts a run of k rows,
    argmax n_k / t(k), the larger k where equal. So under load it fills batches and passes over what
    would be late in them, and where a large batch costs as much as its parts it stays small enough to
    be in time. Nobody waits for a batch to fill.
    """
    first = waiting[0]
    if max_rows == 1 or first.rows >= max_rows:
        return [first]
    mates = [one for one in waiting if one.group == first.group]
    available = min(max_rows, sum(one.rows for one in mates))
    best, best_rate = [first], 0.0
    for size in _sizes(available):
        run_s = estimate_s(size)
        batch = _take(mates, size, now_s + run_s)
        rate = sum(one.rows for one in batch) / max(run_s, _SHORTEST_S)
        if batch and rate >= best_rate:
            best, best_rate = batch, rate
    return best


def _sizes(largest: int) -> list[int]:
    """1, 2, 4, ... and `largest` itself."""
    return [1 << power for power in range((largest - 1).bit_length())] + [largest]


def _take(mates: Sequence[W], size: int, done_s: float) -> list[W]:
    """The most urgent that are still in time at `done_s`, up to `size` rows together."""
    batch = []
    left = size
    for one in mates:
        if one.rows <= left and one.deadline_s >= done_s:
            batch.append(one)
            left -= one.rows
    return batch
