"""Any number of rows through runs of a few sizes gives what one run of all of them would give."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.cloud.engines.buckets import buckets_for, only_rows_vary, run_in_buckets
from upwell.shared.errors import InvalidRequest
from upwell.shared.tensors import Array, TensorSpec


@given(st.integers(0, 50), st.sets(st.integers(1, 20), min_size=1).map(sorted))
def test_runs_are_of_the_buckets_alone_and_the_rows_come_back_in_order(rows: int, buckets: list[int]) -> None:
    sizes: list[int] = []

    def run(batch: Mapping[str, Array]) -> dict[str, Array]:
        assert len(batch["x"]) == len(batch["n"])
        sizes.append(len(batch["x"]))
        return {"y": batch["x"] * 2 + batch["n"][:, None]}

    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    n = np.arange(rows, dtype=np.int64)
    answer = run_in_buckets({"x": x, "n": n}, buckets, run)
    np.testing.assert_array_equal(answer["y"], x * 2 + n[:, None])
    assert set(sizes) <= set(buckets)
    assert len(sizes) == max(1, -(-rows // buckets[-1]))
    smallest = min(size for size in buckets if size >= (rows - 1) % buckets[-1] + 1) if rows else buckets[0]
    assert sizes[-1] == smallest


def test_inputs_of_different_rows_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="different numbers of rows"):
        run_in_buckets({"x": np.zeros((2, 1)), "n": np.zeros(3)}, [4], dict)


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
