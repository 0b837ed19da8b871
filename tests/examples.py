"""How many examples a property is tried with, and how much of a grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import settings

QUICK = "quick"
"""The profile of `make test`; every other tries them all."""


def examples(count: int) -> int:
    """So many, but in `make test` a tenth of them: the first ones find nearly every mistake, and minutes are saved."""
    return max(count // 10, 15) if settings.get_current_profile_name() == QUICK else count


def grid(*axes: Iterable[Any]) -> list[Any]:
    """Every combination of the values of the axes, as parameters of a test; those of a mapping are named by its keys.

    `make test` tries each value of each axis at least once, beside other ones of the other axes; what is left of the
    combinations is `exhaustive`.
    """
    named = [list(axis.items() if isinstance(axis, Mapping) else ((str(one), one) for one in axis)) for axis in axes]
    kept = {tuple(number % len(axis) for axis in named) for number in range(max(map(len, named)))}
    return [
        pytest.param(
            *(axis[index][1] for axis, index in zip(named, indexes, strict=True)),
            id="-".join(axis[index][0] for axis, index in zip(named, indexes, strict=True)),
            marks=() if indexes in kept else pytest.mark.exhaustive,
        )
        for indexes in itertools.product(*(range(len(axis)) for axis in named))
    ]


def sampled(values: Iterable[Any], step: int) -> list[Any]:
    """The values as parameters of a test. `make test` tries the first, the last and every `step`-th between them; the
    others are `exhaustive`."""
    listed = list(values)
    return [
        pytest.param(one, marks=() if number % step == 0 or number == len(listed) - 1 else pytest.mark.exhaustive)
        for number, one in enumerate(listed)
    ]
