"""Value classes: frozen dataclasses that cost little to import and to make."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from functools import cache, wraps
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:
    from typing_extensions import dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(cls: type[T]) -> type[T]:
    """Make a dataclass with slots, compared, hashed and shown by its fields; only the type checker keeps it frozen.

    Python compiles six methods of a frozen dataclass from text, which took most of the time of our imports; here all
    classes with as many plain fields share one. And what is frozen at run time sets each field through
    `object.__setattr__`, which takes seven times as long as an assignment: dozens of microseconds for the values of one
    request.
    """
    is_plain = not hasattr(cls, "__post_init__") and not any(isinstance(one, Field) for one in vars(cls).values())
    made: Any = dataclass(slots=True, init=not is_plain, repr=False, eq=False)(cls)
    if is_plain:
        made.__init__ = _constructor(made)
    shown = [one.name for one in fields(made) if one.repr]
    compared = _values_of([one.name for one in fields(made) if one.compare])

    def show(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def equal(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def digest(self: Any) -> int:
        return hash(compared(self))

    made.__repr__, made.__eq__, made.__hash__ = show, equal, digest
    return cast(type[T], made)


def _constructor(made: Any) -> FunctionType:
    """`__init__` as a dataclass has it, for fields that are all given and have no default factories."""
    given = fields(made)
    names = tuple([one.name for one in given])
    code = _constructor_code(len(given)).replace(co_varnames=("self", *names), co_names=names)
    defaults = tuple([one.default for one in given if one.default is not MISSING])
    constructor = FunctionType(code, vars(sys.modules[made.__module__]), "__init__", defaults)
    constructor.__qualname__ = f"{made.__qualname__}.__init__"
    constructor.__annotations__ = {**{one.name: one.type for one in given}, "return": None}
    return constructor


@cache
def _constructor_code(count: int) -> CodeType:
    """The code of a constructor that assigns so many fields, whatever their names."""
    shape: Any = make_dataclass("Shape", [f"field_{number}" for number in range(count)], repr=False, eq=False)
    return cast(CodeType, shape.__init__.__code__)


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives these attributes as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple([getattr(one, name) for name in names])


def quick(cls: type[T]) -> type[T]:
    """Make a frozen dataclass without slots about as fast to construct as a mutable one; it stays frozen at run time.

    For what callers are given; a value class is faster still.
    """
    # With its own docstring and without the other methods, since compiling those takes long.
    own = [(one.name, one.type, one) for one in fields(cast(Any, cls))]
    plain = cast(Any, make_dataclass(cls.__name__, own, namespace={"__doc__": cls.__doc__}, repr=False, eq=False))

    @wraps(plain.__init__)
    def take_over(self: Any, *values: Any, **named: Any) -> None:
        object.__setattr__(self, "__dict__", vars(plain(*values, **named)))

    cast(Any, cls).__init__ = take_over
    return cls
