"""What is quick to make behaves as a frozen dataclass does."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any, get_type_hints

import pytest

from upwell.shared.value_classes import quick, value_class


@value_class
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


@value_class
class Point:
    """With a field that is neither compared nor shown, and one that callers do not give."""

    x: float
    note: str = field(default="", compare=False, repr=False)
    double: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.x)


@value_class
class Scale:
    """With one field."""

    factor: float


@value_class
class Line:
    """Two plain fields, one with a default."""

    start: float
    end: float = 0.0


@value_class
class Pair:
    """As many, with other names."""

    first: str
    second: int


@value_class
class Nothing:
    """With no field."""


@pytest.mark.parametrize("kind", [Slotted, Frozen])
def test_it_is_made_compared_shown_and_copied_as_a_frozen_dataclass(kind: Any) -> None:
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


def test_a_value_is_hashed_by_what_it_is_compared_by() -> None:
    one = Point(1.0, note="one")
    assert one == Point(1.0, note="other") != Point(2.0)
    assert {one: "there"}[Point(1.0)] == "there"
    assert repr(one) == "Point(x=1.0, double=2.0)"
    with pytest.raises(TypeError):
        hash(Slotted("a"))


def test_a_value_of_one_field_or_none_is_compared_as_a_tuple_of_them_is() -> None:
    assert Scale(math.nan) == Scale(math.nan) != Scale(1.0)
    assert hash(Scale(1.0)) == hash(Scale(1.0))
    assert Nothing() == Nothing()
    assert repr(Nothing()) == "Nothing()"


@pytest.mark.parametrize("other", [Frozen("a"), ("a", {}, 1.0)])
def test_a_value_differs_from_one_of_another_class(other: object) -> None:
    assert Slotted("a") != other


def test_what_callers_are_given_stays_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Frozen("a").name = "b"  # type: ignore[misc]  # that is the point


def test_nothing_can_be_added_to_a_value() -> None:
    with pytest.raises(AttributeError):
        Slotted("a").other = 1  # type: ignore[attr-defined]  # that is the point


def test_classes_of_as_many_fields_share_one_compiled_constructor_under_their_own_names() -> None:
    assert Line.__init__.__code__.co_code == Pair.__init__.__code__.co_code
    assert (Line(1.0), Pair("a", second=2)) == (Line(1.0, 0.0), Pair("a", 2))
    assert get_type_hints(Line.__init__) == {"start": float, "end": float, "return": type(None)}
    with pytest.raises(TypeError, match=r"Pair.__init__\(\) missing 1 required positional argument: 'second'"):
        Pair("a")  # type: ignore[call-arg]  # that is the point
