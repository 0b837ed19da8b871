"""Which waiting requests make the next batch."""

import math
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from upwell.cloud.batching.choosing import choose


@dataclass
class One:
    rows: int = 1
    deadline_s: float = math.inf
    group: object = None


def unknown(rows: int) -> float:
    return 0.0


def test_takes_all_that_wait_up_to_the_limit_when_nothing_is_known() -> None:
    waiting = [One() for _ in range(5)]
    assert choose(waiting, 4, 0.0, unknown) == waiting[:4]
    assert choose(waiting, 8, 0.0, unknown) == waiting


def test_without_batches_the_most_urgent_runs_alone() -> None:
    waiting = [One(rows=3), One()]
    assert choose(waiting, 1, 0.0, unknown) == waiting[:1]


def test_rows_are_counted_and_smaller_requests_fill_the_gap() -> None:
    waiting = [One(rows=2), One(rows=3), One(rows=2)]
    assert choose(waiting, 4, 0.0, unknown) == [waiting[0], waiting[2]]


def test_a_request_larger_than_a_batch_runs_alone() -> None:
    waiting = [One(rows=9), One()]
    assert choose(waiting, 4, 0.0, unknown) == waiting[:1]


def test_only_equal_shapes_share_a_batch() -> None:
    waiting = [One(group="a"), One(group="b"), One(group="a")]
    assert choose(waiting, 8, 0.0, unknown) == [waiting[0], waiting[2]]


def test_where_batches_pay_the_one_that_would_be_late_in_a_full_batch_is_passed_over() -> None:
    waiting = [One(deadline_s=0.005), *(One(deadline_s=1.0) for _ in range(31))]
    batch = choose(waiting, 32, 0.0, lambda rows: 0.004 + 0.00045 * rows)
    assert batch == waiting[1:]


def test_where_batches_do_not_pay_they_stay_small_enough_to_be_in_time() -> None:
    waiting = [One(deadline_s=0.1) for _ in range(32)]
    batch = choose(waiting, 32, 0.0, lambda rows: 0.01 * rows)
    assert 1 <= len(batch) <= 10


@given(
    st.lists(
        st.builds(One, rows=st.integers(1, 6), deadline_s=st.floats(0.1, 2.0), group=st.sampled_from("ab")), min_size=1
    ),
    st.integers(1, 16),
    st.floats(0.0, 0.1),
)
@settings(deadline=None, max_examples=100)
def test_a_batch_is_never_empty_too_large_mixed_or_out_of_order(
    waiting: list[One], max_rows: int, row_s: float
) -> None:
    batch = choose(waiting, max_rows, 0.0, lambda rows: row_s * rows)
    places = [next(place for place, one in enumerate(waiting) if one is member) for member in batch]
    assert batch
    assert places == sorted(set(places))
    assert len({member.group for member in batch}) == 1
    assert len(batch) == 1 or sum(member.rows for member in batch) <= max_rows
