"""Values that are made for every request."""

from __future__ import annotations

from dataclasses import MISSING, fields, make_dataclass
from functools import wraps
from operator import itemgetter
from typing import Any, TypeVar, cast

T = TypeVar("T")


def quick(cls: type[T]) -> type[T]:
    """Make a frozen dataclass about as quick to build as a plain one.

    A frozen dataclass sets each field through `object.__setattr__`, which takes seven times as long as an assignment:
    dozens of microseconds for the values of one request. With slots the type checker alone holds the value frozen from
    now on; without, it stays frozen at run time too, and takes a little longer.
    """
    frozen = cast(Any, cls)
    plain = cast(Any, make_dataclass(cls.__name__, [(one.name, one.type, one) for one in fields(frozen)]))
    if "__slots__" in vars(cls):
        frozen.__init__ = plain.__init__
        del frozen.__setattr__, frozen.__delattr__
        return cls

    names = [one.name for one in fields(frozen)]
    all_of = itemgetter(*names)
    defaults = {one.name: one.default for one in fields(frozen) if one.default is not MISSING}

    @wraps(plain.__init__)
    def take_over(self: Any, *values: Any, **named: Any) -> None:
        own = self.__dict__
        own.update(defaults)
        own.update(named)
        try:
            if not values and len(own) == len(names) and all_of(own):  # by name it is quickest
                return
        except KeyError:
            pass
        own.update(vars(plain(*values, **named)))  # raises where something does not fit

    frozen.__init__ = take_over
    return cls
