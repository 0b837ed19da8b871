"""The numbers of rows that an engine is prepared for."""

from __future__ import annotations

import pytest

from upwell.cloud.engines.batch_checks_and_buckets import buckets_for, only_rows_vary
from upwell.shared.tensors import TensorSpec


@pytest.mark.parametrize(
    ("buckets", "max_batch", "expected"),
    [
        ((16, 1, 4), 16, (1, 4, 16)),
        ((), 1, (1,)),
        ((), 4, (1, 4)),
        ((), 8, (1, 4, 8)),
        ((), 32, (1, 4, 16, 32)),
        ((), 64, (1, 4, 16, 64)),
    ],
)
def test_buckets_that_are_not_given_lie_four_times_apart(
    buckets: tuple[int, ...], max_batch: int, expected: tuple[int, ...]
) -> None:
    assert buckets_for(buckets, max_batch) == expected


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [([(-1, 3)], True), ([(-1, 3), (-1,)], True), ([(-1, -1)], False), ([(-1, 3), (1,)], False), ([()], False)],
)
def test_rows_are_all_that_may_vary(shapes: list[tuple[int, ...]], expected: bool) -> None:
    assert only_rows_vary([TensorSpec("x", "FP32", shape) for shape in shapes]) is expected
