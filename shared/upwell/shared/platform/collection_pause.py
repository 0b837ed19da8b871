"""Keeps the garbage collector out of imports and measurements."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector, while much is imported or something is timed.

    None of what modules define is garbage, and looking for some takes a tenth of an import's time. Other threads run
    on; their garbage waits until the end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
