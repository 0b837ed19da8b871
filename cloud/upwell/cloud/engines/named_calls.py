"""Names the model that ends its process: a frame with its name is in the traceback that faulthandler writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

_FRAME = re.compile(r'^  File ".*", line \d+ in model (\S+) version (\S+)$', re.MULTILINE)


class NamedCall(Protocol):
    """Calls a function."""

    def __call__(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of `function` with these arguments."""
        ...


def calls_of(model: str, version: str) -> NamedCall:
    """A function that calls others; tracebacks show it under the name of the model."""

    def call(function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    call.__code__ = call.__code__.replace(co_name=f"model {model} version {version}")
    return call


def model_in(traceback: str) -> tuple[str, str] | None:
    """The model and version in whose call a process crashed, by faulthandler's `traceback`; None if there was none.

    A thread of the engine's own has no traceback. If one crashed, it is the only model that any thread was calling, and
    None if there were several.
    """
    thread = traceback.partition("Current thread ")[2].partition("\n\n")[0]
    found: set[tuple[str, str]] = set(_FRAME.findall(thread or traceback))
    return found.pop() if len(found) == 1 else None
