"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings

QUICK = "quick"
"""The profile of `make test`; every other tries them all."""


def examples(count: int) -> int:
    """So many, but in `make test` a third of them: the first ones find nearly every mistake, and minutes are saved."""
    return max(count // 3, 25) if settings.get_current_profile_name() == QUICK else count
