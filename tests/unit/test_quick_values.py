"""What is quick to make behaves as the dataclass that it was."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest

from upwell.shared.quick_values import quick


@quick
@dataclass(frozen=True, slots=True)
class Slotted:
    """With each kind of default."""

    name: str
    facts: Mapping[str, int] = field(default_factory=dict)
    size: float = 1.0


@quick
@dataclass(frozen=True)
class Frozen:
    """The same without slots."""

    name: str
    facts: Mapping[str, int] = field(default_factory=dict)
    size: float = 1.0


@pytest.mark.parametrize("kind", [Slotted, Frozen])
def test_it_is_made_compared_shown_and_copied_as_before(kind: Any) -> None:
    one = kind("a", size=2.0)
    assert (one.name, one.facts, one.size) == ("a", {}, 2.0)
    assert one.facts is not kind("b").facts
    assert repr(one) == f"{kind.__name__}(name='a', facts={{}}, size=2.0)"
    assert one == kind("a", {}, 2.0) != kind("a")
    assert replace(one, name="b") == kind("b", {}, 2.0)
    assert copy.copy(one) == pickle.loads(pickle.dumps(one)) == one  # noqa: S301  made here
    assert [each.name for each in fields(kind)] == [*inspect.signature(kind).parameters] == ["name", "facts", "size"]


@pytest.mark.parametrize("kind", [Slotted, Frozen])
def test_what_does_not_fit_is_an_error(kind: Any) -> None:
    for values, named in (((), {}), (("a",), {"other": 1}), (("a", {}, 1.0, 2), {}), (("a",), {"name": "b"})):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_without_slots_it_stays_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Frozen("a").name = "b"  # type: ignore[misc]  # that is the point


def test_with_slots_nothing_can_be_added() -> None:
    with pytest.raises(AttributeError):
        Slotted("a").other = 1  # type: ignore[attr-defined]  # that is the point
