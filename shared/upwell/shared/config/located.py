"""Errors of a whole file that point at the place deeper in it where they can be mended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

Location: TypeAlias = tuple[str | int, ...]
"""The keys and indexes of a value in a file."""


def located(problems: Mapping[Location, str]) -> ValidationError:
    """An error to raise in a validator of a whole file, for problems that lie deeper in it: location -> text."""
    kind = "located"
    details = [
        InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=location, input=None)
        for location, text in problems.items()
    ]
    return ValidationError.from_exception_data(kind, details)
