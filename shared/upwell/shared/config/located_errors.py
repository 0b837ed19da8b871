"""Errors found in a whole file that point at the place deeper in it where they can be fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

Location: TypeAlias = tuple[str | int, ...]
"""The keys and indexes that lead to a value in a file."""


def located(problems: Mapping[Location, str]) -> ValidationError:
    """An error for the validator of a whole file, from location -> message for places deeper in it."""
    kind = "located"
    details = [
        InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=location, input=None)
        for location, text in problems.items()
    ]
    return ValidationError.from_exception_data(kind, details)
