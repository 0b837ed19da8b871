"""Which waiting requests make the next batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.cloud.simulated_time import pace_s
from upwell.cloud.batching.batch_choice import RunSizes, choose


@dataclass(eq=False)
class One:
    rows: int = 1
    deadline_s: float = math.inf
    group: object = None
    rank: tuple[bool, int] = (False, 1)


def unknown(rows: int) -> float:
    return 0.0


def test_takes_all_that_wait_up_to_the_limit_when_nothing_is_known() -> None:
    waiting = [One() for _ in range(5)]
    assert choose(waiting, RunSizes(4), 0.0, unknown) == waiting[:4]
    assert choose(waiting, RunSizes(8), 0.0, unknown) == waiting


def test_without_batches_the_most_urgent_runs_alone() -> None:
    waiting = [One(rows=3), One()]
    assert choose(waiting, RunSizes(1), 0.0, unknown) == waiting[:1]


def test_rows_are_counted_and_smaller_requests_fill_the_gap() -> None:
    waiting = [One(rows=2), One(rows=3), One(rows=2)]
    assert choose(waiting, RunSizes(4), 0.0, unknown) == [waiting[0], waiting[2]]


def test_a_request_larger_than_a_batch_runs_alone() -> None:
    waiting = [One(rows=9), One()]
    assert choose(waiting, RunSizes(4), 0.0, unknown) == waiting[:1]


def test_one_that_runs_in_pieces_takes_no_places_of_a_batch() -> None:
    small = [One(deadline_s=0.015) for _ in range(4)]
    in_pieces = One(rows=100, deadline_s=0.018)
    assert choose([*small, in_pieces], RunSizes(32), 0.0, lambda _: 0.01) == small


def test_only_equal_shapes_share_a_batch() -> None:
    waiting = [One(group="a"), One(group="b"), One(group="a")]
    assert choose(waiting, RunSizes(8), 0.0, unknown) == [waiting[0], waiting[2]]


def test_where_batches_pay_the_one_that_would_be_late_in_a_full_batch_is_passed_over() -> None:
    waiting = [One(deadline_s=0.005), *(One(deadline_s=1.0) for _ in range(31))]
    batch = choose(waiting, RunSizes(32), 0.0, pace_s)
    assert batch == waiting[1:]


def test_those_who_would_be_in_time_by_the_least_are_left_out_where_as_many_are_lost_anyway() -> None:
    run_s = pace_s(32)
    last_chance = [One(deadline_s=run_s * (1 + number / 40)) for number in range(40)]
    later = [One(deadline_s=9 * run_s) for _ in range(8)]
    assert choose([*last_chance, *later], RunSizes(32), 0.0, pace_s) == last_chance[8:]
    assert choose([*last_chance[:30], *later], RunSizes(32), 0.0, pace_s) == [*last_chance[:30], *later[:2]]


def test_nobody_is_left_out_for_one_of_a_lower_rank() -> None:
    run_s = pace_s(32)
    urgent = [One(deadline_s=run_s * (1 + number / 40), rank=(False, 1)) for number in range(20)]
    others = [One(deadline_s=run_s * (1 + number / 40), rank=(False, 2)) for number in range(40)]
    assert choose([*urgent, *others], RunSizes(32), 0.0, pace_s) == [*urgent, *others[:12]]


def test_where_batches_do_not_pay_they_stay_small_enough_to_be_in_time() -> None:
    waiting = [One(deadline_s=0.1) for _ in range(32)]
    batch = choose(waiting, RunSizes(32), 0.0, lambda rows: 0.01 * rows)
    assert 1 <= len(batch) <= 10


def test_a_bucket_that_would_hold_much_filling_loses_to_a_full_smaller_one() -> None:
    buckets = RunSizes(32, (1, 2, 4, 8, 16, 32))
    for count, taken in ((3, 3), (4, 4), (11, 8), (15, 15), (20, 16), (26, 16), (28, 28), (40, 32)):
        waiting = [One() for _ in range(count)]
        assert len(choose(waiting, buckets, 0.0, pace_s)) == taken, count


def test_a_size_is_rounded_up_to_its_bucket() -> None:
    buckets = RunSizes(16, (1, 4, 16))
    assert [buckets.of_run(rows) for rows in (1, 2, 4, 5, 16)] == [1, 4, 4, 16, 16]
    assert [list(buckets.worth_trying(rows)) for rows in (1, 3, 4, 99)] == [[1], [1, 4], [1, 4], [1, 4, 16]]
    assert [list(RunSizes(16).worth_trying(rows)) for rows in (1, 5, 99)] == [[1], [1, 2, 4, 5], [1, 2, 4, 8, 16]]


def test_who_ranks_higher_is_not_made_late_to_fill_a_batch_with_others() -> None:
    waiting = [One(deadline_s=0.006, rank=(False, 1)), *(One(deadline_s=1.0, rank=(False, 2)) for _ in range(31))]
    batch = choose(waiting, RunSizes(32), 0.0, pace_s)
    assert batch[0] is waiting[0]
    assert pace_s(len(batch)) <= 0.006 < pace_s(2 * len(batch))


def test_others_fill_what_those_of_higher_rank_leave() -> None:
    waiting = [One(rank=(False, 1)), One(rank=(True, 1)), One(rank=(True, 2))]
    assert choose(waiting, RunSizes(4), 0.0, pace_s) == waiting


BUCKETS = st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True).map(lambda sizes: tuple(sorted(sizes)))
RANKS = st.sampled_from([(False, 1), (False, 2), (True, 1)])
REQUESTS = st.builds(
    One,
    rows=st.integers(1, 6),
    deadline_s=st.floats(0.1, 2.0),
    group=st.sampled_from("ab"),
    rank=RANKS,
)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9), BUCKETS, st.floats(0.001, 0.3), st.floats(0.0, 0.1))
@settings(deadline=None, max_examples=examples(200))
def test_no_choice_of_single_rows_answers_more_in_time_per_second(
    lefts_s: list[float], buckets: tuple[int, ...], base_s: float, row_s: float
) -> None:
    """Against every subset there is, tried one by one. What could not even be in time alone has been dropped before."""
    sizes = RunSizes(buckets[-1], buckets)
    alone_s = base_s + row_s * sizes.of_run(1)

    def rate(batch: Sequence[One]) -> float:
        run_s = base_s + row_s * sizes.of_run(len(batch))
        return sum(one.deadline_s >= run_s for one in batch) / run_s

    waiting = [One(deadline_s=alone_s + left_s) for left_s in sorted(lefts_s)]
    batch = choose(waiting, sizes, 0.0, lambda rows: base_s + row_s * rows)
    counts = range(1, min(len(waiting), sizes.largest) + 1)
    best = max(rate(subset) for count in counts for subset in combinations(waiting, count))
    assert rate(batch) >= best - 1e-9


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.integers(1, 4))
@settings(deadline=None, max_examples=examples(200))
def test_with_what_comes_after_no_choice_of_single_rows_answers_more_in_time(halves: list[int], size: int) -> None:
    """Two runs of a second, against every subset of the first there is; and nobody is taken in place of a safer one."""
    waiting = [One(deadline_s=1.0 + half / 10) for half in sorted(halves)]

    def answered(batch: Sequence[One]) -> int:
        after = [one for one in waiting if one not in batch and one.deadline_s >= 2.0]
        return len(batch) + min(len(after), size)

    batch = choose(waiting, RunSizes(size, (size,)), 0.0, lambda _: 1.0)
    assert answered(batch) == max(answered(one) for one in combinations(waiting, min(size, len(waiting))))
    lost = [one.deadline_s for one in waiting if one not in batch and one.deadline_s < 2.0]
    taken = [one.deadline_s for one in batch if one.deadline_s < 2.0]
    assert not lost or max(lost) <= min(taken)


@given(st.lists(REQUESTS, min_size=1), BUCKETS, st.booleans(), st.floats(0.0, 0.1))
@settings(deadline=None, max_examples=examples(200))
def test_a_batch_is_never_empty_too_large_mixed_or_out_of_order(
    waiting: list[One], buckets: tuple[int, ...], has_buckets: bool, row_s: float
) -> None:
    sizes = RunSizes(buckets[-1], buckets if has_buckets else ())
    waiting = sorted(waiting, key=lambda one: (one.rank, one.deadline_s))
    batch = choose(waiting, sizes, 0.0, lambda rows: row_s * rows)
    places = [waiting.index(member) for member in batch]
    assert batch
    assert places == sorted(set(places))
    assert len({member.group for member in batch}) == 1
    assert batch[0].group == waiting[0].group
    assert len(batch) == 1 or sum(member.rows for member in batch) <= sizes.largest


@given(st.lists(REQUESTS, min_size=1), BUCKETS, st.floats(0.0, 0.1))
@settings(deadline=None, max_examples=examples(200))
def test_those_of_the_first_rank_are_served_as_if_they_were_alone(
    waiting: list[One], buckets: tuple[int, ...], row_s: float
) -> None:
    sizes = RunSizes(buckets[-1], buckets)
    waiting = sorted(waiting, key=lambda one: (one.rank, one.deadline_s))
    alone = choose([one for one in waiting if one.rank == waiting[0].rank], sizes, 0.0, lambda rows: row_s * rows)
    batch = choose(waiting, sizes, 0.0, lambda rows: row_s * rows)
    assert batch[: len(alone)] == alone
    run_s = row_s * sizes.of_run(min(sum(one.rows for one in batch), sizes.largest))
    assert len(batch) == len(alone) or all(one.deadline_s >= run_s for one in batch)
