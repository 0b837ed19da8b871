"""Which of the waiting requests run next, and with how many rows: pure functions over the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Estimate = Callable[[int], float]
"""Rows -> seconds of a run of so many rows."""

_SHORTEST_S = 1e-9


@dataclass(frozen=True)
class RunSizes:
    """How many rows a run may have: any number up to `largest`, or where there are `buckets` exactly one of those.

    `buckets` are in ascending order and end with `largest`. With 1 and no buckets each request runs whole, however
    many rows it has.
    """

    largest: int
    buckets: tuple[int, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Whether a request with more rows than `largest` runs in pieces."""
        return self.largest > 1 or bool(self.buckets)

    def of_run(self, rows: int) -> int:
        """The rows of a run for `rows` rows, at most `largest`: the next bucket, which is filled up."""
        return self.buckets[bisect_left(self.buckets, rows)] if self.buckets else rows

    def worth_trying(self, rows: int) -> Sequence[int]:
        """The sizes among which to choose where `rows` rows wait: buckets, or 1, 2, 4, ... and all of them."""
        rows = min(rows, self.largest)
        if self.buckets:
            return self.buckets[: bisect_left(self.buckets, rows) + 1]
        return [1 << power for power in range((rows - 1).bit_length())] + [rows]


class WaitingRequest(Protocol):
    """What is to be known of a waiting request. `rank` is the class of its urgency, equal for equals."""

    rows: int
    group: object
    rank: tuple[bool, int]

    @property
    def deadline_s(self) -> float:
        """The instant by which it has to be answered."""
        ...


W = TypeVar("W", bound=WaitingRequest)


def choose(waiting: Sequence[W], sizes: RunSizes, now_s: float, estimate_s: Estimate) -> list[W]:
    """The batch to run now, most urgent first; `waiting` is in order of urgency and not empty.

    What could not be in time even alone has been dropped before.

    Only requests of the same group (equal dtypes and trailing shapes) share a batch, and the most urgent
    request decides which. Of the sizes worth trying it takes the one that answers the most rows in time per second
    of the engine: with n_k the rows whose deadline outlasts a run of size k, argmax n_k / t(k), the larger k where
    equal. So under load it fills batches and passes over what would be late in them; where a large batch costs as
    much as its parts it stays small enough to be in time; and a bucket that would be filled up with much that nobody
    asked for loses to a smaller one that is full. Nobody waits for a batch to fill.

    Where more rows than fit would be late in the run after this one, some of them are lost whichever are taken. It
    leaves out those that would be in time by the least: as many are answered, and a run that takes longer than was
    thought makes fewer late.

    Those of the first one's rank are served first: the best batch of them alone, and then others with them only as
    far as none of them becomes late for it and more is answered per second.
    """
    first = waiting[0]
    if first.rows >= sizes.largest:
        if sizes.is_bound and first.rows > sizes.largest:  # in pieces
            return [first]
        run_s = estimate_s(first.rows)
        alike = [one for one in _mates(waiting) if one.rank == first.rank and one.rows == first.rows]
        return _take(alike, first.rows, now_s + run_s, run_s)[0] or [first]
    mates, rank = _mates(waiting), first.rank
    equals = mates if mates[-1].rank == rank else [one for one in mates if one.rank == rank]
    batch = _best(equals, 0, sizes, now_s, estimate_s) or [first]
    if len(equals) == len(mates):
        return batch
    chosen = set(map(id, batch))
    others = [one for one in mates if id(one) not in chosen]
    fuller = _best([*batch, *others], len(batch), sizes, now_s, estimate_s)
    taken = set(map(id, fuller))
    return [one for one in mates if id(one) in taken] or batch


def _mates(waiting: Sequence[W]) -> list[W]:
    """Those that may share a run with the first."""
    group = waiting[0].group
    return [one for one in waiting if one.group == group]


def _best(mates: list[W], must: int, sizes: RunSizes, now_s: float, estimate_s: Estimate) -> list[W]:
    """The batch with the most rows in time per second that holds the first `must`; empty where there is none."""
    best: list[W] = []
    best_rate = 0.0
    rows = sum([one.rows for one in mates])
    for size in reversed(sizes.worth_trying(rows)):
        run_s = max(estimate_s(size), _SHORTEST_S)
        if min(size, rows) / run_s <= best_rate:  # even if all of them were in time
            continue
        batch, taken = _take(mates, size, now_s + run_s, 0.0 if must else run_s)
        rate = taken / run_s
        if rate > best_rate and batch[:must] == mates[:must]:
            best, best_rate = batch, rate
    return best


def _take(mates: Sequence[W], size: int, done_s: float, next_s: float) -> tuple[list[W], int]:
    """The most urgent that are still in time at `done_s`, up to `size` rows together, and how many rows they are.

    Of those that would be late `next_s` later as many are left out, the most urgent first, as do not fit anyway.
    """
    in_time = [one for one in mates if one.deadline_s >= done_s]
    lost = sum([one.rows for one in in_time if one.deadline_s < done_s + next_s]) - size
    batch = []
    left = size
    for one in in_time:
        if one.rows <= lost and one.deadline_s < done_s + next_s:
            lost -= one.rows
        elif one.rows <= left:
            batch.append(one)
            left -= one.rows
            if not left:
                break
    return batch, size - left
