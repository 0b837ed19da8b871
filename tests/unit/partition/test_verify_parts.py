"""Matching tensors of two models by name, datatype and shape, and comparing what they give."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from upwell.shared.tensors import Array, TensorSpec
from upwell.tools.partition.halves_check import Unfit, difference, fits, join, pair


def spec(name: str, *shape: int, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name, datatype, shape)


def test_names_tell_whatever_the_order() -> None:
    joint = join([spec("a", 1), spec("b", 1), spec("c", 2)], [spec("c", 2), spec("a", 1)], [])
    assert (joint.sent, joint.raw, joint.early, joint.by_order) == ({"c": "c", "a": "a"}, (), ("b",), False)


def test_the_same_name_with_another_shape_or_datatype_does_not_fit() -> None:
    for other in (spec("a", 2), spec("a", 1, datatype="INT8"), spec("a", 1, 1)):
        with pytest.raises(Unfit, match="the head gives 'a' FP32"):
            join([spec("a", 1)], [other], [])
    assert join([spec("a", -1, 4)], [spec("a", 8, 4)], []).sent == {"a": "a"}


def test_an_input_of_the_caller_goes_to_the_tail_beside_named_tensors() -> None:
    joint = join([spec("h", 4), spec("i", 4)], [spec("h", 4), spec("x", 4)], [spec("x", 4)])
    assert (joint.sent, joint.raw, joint.early) == ({"h": "h"}, ("x",), ("i",))


def test_an_input_that_neither_gives_is_an_error() -> None:
    with pytest.raises(Unfit, match="'missing' FP32"):
        join([spec("h", 4)], [spec("h", 4), spec("missing", 7)], [spec("x", 4)])


@pytest.mark.parametrize("seed", range(40))
def test_a_pairing_is_the_only_one_there_is(seed: int) -> None:
    """Against all ways of choosing as many tensors in order."""
    chance = random.Random(seed)
    there = [spec(f"t{at}", chance.choice((1, 2))) for at in range(chance.randint(0, 6))]
    wanted = [spec(f"w{at}", chance.choice((1, 2, -1))) for at in range(chance.randint(0, 4))]
    ways = [
        way
        for way in itertools.combinations(there, len(wanted))
        if all(fits(one, want) for one, want in zip(way, wanted, strict=True))
    ]
    if len(ways) == 1:
        expected = {want.name: one.name for want, one in zip(wanted, ways[0], strict=True)}
        assert pair(wanted, there, "a gives", "b takes") == expected
    else:
        with pytest.raises(Unfit, match="more than one way" if ways else "do not match"):
            pair(wanted, there, "a gives", "b takes")


def row(*values: float, dtype: type = np.float32) -> Array:
    return np.array([values], dtype)


def test_the_error_is_relative_to_the_largest_value() -> None:
    found = difference("y", [row(1, 2), row(0.5, 8)], [row(1, 2), row(0, 10)])
    assert not found.is_equal
    assert found.error == pytest.approx(0.2)
    assert found.holds(0.2)
    assert not found.holds(0.19)


@pytest.mark.parametrize(
    ("made", "whole", "equal", "error"),
    [
        (row(1, np.nan), row(1, np.nan), True, 0),
        (row(0.0), row(-0.0), False, 0),
        (row(np.inf, 3), row(np.inf, 4), False, 0.25),
        (row(np.inf), row(-np.inf), False, math.inf),
        (row(1), row(np.nan), False, math.inf),
        (row(np.nan), row(1), False, math.inf),
        (row(1), row(0), False, math.inf),
        (row(1, 2), row(1), False, math.inf),
        (row(1, dtype=np.float64), row(1), False, math.inf),
        (row(3, dtype=np.int64), row(4, dtype=np.int64), False, math.inf),
        (row(3, dtype=np.int8), row(-4, dtype=np.int8), False, 1.75),
        (row(1, dtype=np.bool_), row(0, dtype=np.bool_), False, math.inf),
        (np.array([b"a"], object), np.array([b"a"], object), True, 0),
        (np.array([b"a"], object), np.array([b"b"], object), False, math.inf),
        (np.empty((0, 3)), np.empty((0, 3)), True, 0),
    ],
)
def test_what_cannot_be_measured_is_infinitely_far(made: Array, whole: Array, equal: bool, error: float) -> None:
    found = difference("y", [made], [whole])
    assert (found.is_equal, found.error) == (equal, error)
