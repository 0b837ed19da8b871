"""Errors found in a whole file that point at the place deeper in it where they can be fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from upwell.shared.errors import ConfigError

Location: TypeAlias = tuple[str | int, ...]
"""The keys and indexes that lead to a value in a file."""


@contextmanager
def invalid_as(path: Path, what: str) -> Iterator[None]:
    """Raise `ConfigError` for a document that pydantic rejects in the block, at the key of its first problem.

    `what` says what the document is not.
    """
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError.at(path, f"{what}: {first['msg']}", ".".join(map(str, first["loc"]))) from None


def located(problems: Mapping[Location, str]) -> ValidationError:
    """An error for the validator of a whole file, from location -> message for places deeper in it."""
    kind = "located"
    details = [
        InitErrorDetails(type=PydanticCustomError(kind, "{text}", {"text": text}), loc=location, input=None)
        for location, text in problems.items()
    ]
    return ValidationError.from_exception_data(kind, details)
