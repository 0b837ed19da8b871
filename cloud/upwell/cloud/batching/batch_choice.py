"""The next batch from the waiting requests of a model: which of them, and how many rows. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Estimate = Callable[[int], float]
"""Maps a number of rows to the seconds of such a run."""

_SHORTEST_S = 1e-9


@dataclass(frozen=True)
class RunSizes:
    """The permitted sizes of a run: any number of rows up to `largest`, or with `buckets` exactly one of those.

    `buckets` are in ascending order and end with `largest`. With 1 and no buckets each request runs whole, whatever its
    number of rows.
    """

    largest: int
    buckets: tuple[int, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Whether a request with more rows than `largest` runs in pieces."""
        return self.largest > 1 or bool(self.buckets)

    def of_run(self, rows: int) -> int:
        """The size of the run for `rows` rows, at most `largest`: the next larger bucket, which is padded."""
        return self.buckets[bisect_left(self.buckets, rows)] if self.buckets else rows

    def worth_trying(self, rows: int) -> Sequence[int]:
        """The candidate sizes when `rows` rows wait: buckets, or 1, 2, 4, ... and all rows."""
        rows = min(rows, self.largest)
        if self.buckets:
            return self.buckets[: bisect_left(self.buckets, rows) + 1]
        return [1 << power for power in range((rows - 1).bit_length())] + [rows]


class WaitingRequest(Protocol):
    """The facts about a waiting request. `rank` is its class of urgency."""

    rows: int
    group: object
    rank: tuple[bool, int]

    @property
    def deadline_s(self) -> float:
        """The time by which it must be answered."""
        ...


W = TypeVar("W", bound=WaitingRequest)


def choose(waiting: Sequence[W], sizes: RunSizes, now_s: float, estimate_s: Estimate) -> list[W]:
    """The batch to run now, most urgent first; `waiting` is in order of urgency and not empty.

    Requests that could not be in time even alone have already been dropped.

    Only requests of the same group (equal dtypes and trailing shapes) share a batch, and the most urgent
    request decides which. Of the sizes worth trying it takes the one that answers the most rows in time per second
    of the engine: with n_k the rows whose deadline outlasts a run of size k, argmax n_k / t(k), the larger k on ties.
    So under load it fills batches and skips requests that would be late in them; if a large batch costs as much as its
    parts it stays small enough to be in time; and a bucket that would need much padding loses to a smaller full one. No
    request waits for a batch to fill.

    If more rows than fit would be late in the next run, some of them are lost in any case. It leaves out those with the
    least time to spare: as many are answered, and a run that takes longer than estimated makes fewer late.

    Requests of the first one's rank are served first: the best batch of only these, and others with them only if none
    of these becomes late and more rows are answered per second.
    """
    first = waiting[0]
    if first.rows >= sizes.largest:
        if sizes.is_bound and first.rows > sizes.largest:  # in pieces
            return [first]
        run_s = estimate_s(first.rows)
        alike = [one for one in _mates(waiting) if one.rank == first.rank and one.rows == first.rows]
        return _take(alike, first.rows, now_s + run_s, run_s)[0] or [first]
    mates = [one for one in _mates(waiting) if one.rows <= sizes.largest]  # larger ones run in pieces, and alone
    rank = first.rank
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
    """The requests that may share a run with the first."""
    group = waiting[0].group
    return [one for one in waiting if one.group == group]


def _best(mates: list[W], must: int, sizes: RunSizes, now_s: float, estimate_s: Estimate) -> list[W]:
    """The batch with the most rows in time per second that contains the first `must`; empty if there is none."""
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
    """The most urgent requests still in time at `done_s`, up to `size` rows in total, and their number of rows.

    Of those that would be late `next_s` later, as many as do not fit anyway are left out, the most urgent first.
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
