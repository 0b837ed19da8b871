"""Turns pydantic's errors into problems of a file: key, line, column, and what is expected in plain words.

Pydantic puts the branch of a union into an error's location. `_Walk` follows a location through the annotations of the
model, so that these labels are recognized and only keys of the file remain.
"""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from upwell.shared.config.addresses import without_secrets
from upwell.shared.config.yaml_tree import Tree, dotted
from upwell.shared.errors import Problem
from upwell.shared.value_classes import value_class

_EXPECTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "enum": "{expected}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list",
    "literal_error": "{expected}",
    "mapping_type": "keys and values",
    "model_attributes_type": "keys and values",
    "model_type": "keys and values",
    "multiple_of": "a multiple of {multiple_of}",
    "none_required": "nothing",
    "set_type": "a list",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "{min_length} or more characters",
    "string_type": "text",
    "too_long": "at most {max_length} items",
    "too_short": "{min_length} or more items",
    "tuple_type": "a list",
    "union_tag_invalid": "one of {expected_tags}",
}
"""Maps Pydantic's error types to the expected value, with fields of the error's context."""


_VALIDATED = re.compile(r"function-\w+\[[^,]*, (.*)\]")
"""Matches Pydantic's label of a branch wrapped in a validator, and the label inside."""


@value_class
class _Found:
    """One error: its keys, how many of them lead to the first union on the way, and what is wrong.

    `at_key`: the last key is wrong, not its value.
    """

    keys: tuple[str | int, ...]
    union_at: int | None
    expected: str
    message: str
    at_key: bool = False


_LONGEST = 60
"""Characters of a value that a problem shows at most."""


MAX_ERRORS = 1000
"""How many of pydantic's errors are put into words; more than anybody reads, and a few tenths of a second of work."""


def problems_of(error: ValidationError, tree: Tree, model: type[BaseModel], path: Path | None) -> list[Problem]:
    """The problems behind the first `MAX_ERRORS` errors, in file order."""
    errors = error.errors(include_url=False)[:MAX_ERRORS]
    found = [_found(details, model) for details in errors if not _is_consequence(details, errors)]
    problems = {_problem(one, tree, path): None for one in _without_wrong_branches(found)}
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))


def _is_consequence(details: ErrorDetails, errors: Sequence[ErrorDetails]) -> bool:
    """Whether a tuple is too short only because pydantic does not count its wrong items."""
    place = details["loc"]
    return details["type"] == "too_short" and any(one["loc"][: len(place)] == place != one["loc"] for one in errors)


def _found(details: ErrorDetails, model: type[BaseModel]) -> _Found:
    kind, parts = details["type"], details["loc"]
    unknown = kind == "extra_forbidden"
    bad_key = parts[-1:] == ("[key]",) and not unknown  # pydantic's mark for the key of a mapping
    walk = _Walk(model)
    owners = walk.annotations
    for part in parts[:-1] if bad_key else parts:
        owners = walk.annotations
        walk.step(part)
    expected, message = _wording(details, owners)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        walk.keys.extend(re.findall(r"^'(\w+)'$", details["ctx"]["discriminator"]))
    return _Found(tuple(walk.keys), walk.union_at, expected, message, at_key=bool(walk.keys) and (unknown or bad_key))


def _wording(details: ErrorDetails, owners: Sequence[Any]) -> tuple[str, str]:
    """What was expected, in a form that "or" can join; else the whole message."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing" and isinstance(details["loc"][-1], int):
        return "", "this item is missing"
    if kind in ("missing", "union_tag_not_found"):
        return "", "this key is missing"
    if kind == "extra_forbidden":
        return "", _unknown_key(str(details["loc"][-1]), owners)
    if kind in ("value_error", "assertion_error"):
        return "", str(context["error"])
    if kind in _EXPECTED:
        return _EXPECTED[kind].format_map(context), ""
    message = details["msg"]
    return (message.removeprefix("Input should be "), "") if message.startswith("Input should be ") else ("", message)


def _unknown_key(key: str, owners: Iterable[Any]) -> str:
    branches = [branch for owner in owners for branch in _branches(owner)]
    known = sorted({name for branch in branches for name in _fields(branch)} - {key})
    lowered = {name.lower(): name for name in known}
    alike = difflib.get_close_matches(key.lower(), lowered, n=1)
    if alike:
        return f"unknown key; did you mean {lowered[alike[0]]!r}?"
    return f"unknown key; expected one of: {', '.join(known) or 'none'}"


def _without_wrong_branches(found: list[_Found]) -> list[_Found]:
    """The errors of a union, merged.

    If one branch got further into the value than its type ("expected text, got keys and values"), its errors stay: that
    branch was meant. If none did, the expectations of all branches are joined.
    """
    deeper = {one.keys[: one.union_at] for one in found if one.union_at is not None and len(one.keys) > one.union_at}
    kept: list[_Found] = []
    joined: dict[tuple[str | int, ...], list[_Found]] = {}
    for one in found:
        if one.union_at is None or len(one.keys) > one.union_at:
            kept.append(one)
        elif one.keys not in deeper:
            joined.setdefault(one.keys, []).append(one)
    return kept + [_joined(keys, ones) for keys, ones in joined.items()]


def _joined(keys: tuple[str | int, ...], ones: list[_Found]) -> _Found:
    expected = " or ".join(dict.fromkeys(one.expected for one in ones if one.expected))
    messages = list(dict.fromkeys(one.message for one in ones if one.message))
    if messages and expected:
        messages.append(f"expected {expected}")
    return _Found(keys, None, expected, "; or ".join(messages))


def _problem(found: _Found, tree: Tree, path: Path | None) -> Problem:
    place, _ = tree.find(found.keys)
    line, column, value = place.line, place.column, place.value
    if found.at_key:
        value = str(found.keys[-1])
        line, column = tree.find(found.keys[:-1])[0].keys.get(value, (line, column))
    message = found.message or f"expected {found.expected}, got {_shown(value)}{_quotes(found, value)}"
    if isinstance(value, str) and len(value) > _LONGEST:  # a validator tells the whole of it
        message = message.replace(repr(value)[1:-1], f"{repr(value)[1 : _LONGEST - 3]}...")
    return Problem(path, line, column, dotted(found.keys), message)


def _quotes(found: _Found, value: object) -> str:
    if found.expected == "text" and isinstance(value, (int, float)):
        return "; put it in quotes"
    return ""


def _shown(value: object) -> str:
    """A value as it might be written in the file, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = repr(without_secrets(value) if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


class _Walk:
    """Follows an error's location through annotations; `keys` are those of its parts that are keys of the file."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.keys: list[str | int] = []
        self.union_at: int | None = None
        self.annotations: list[Any] = [model]

    def step(self, part: str | int) -> None:
        """Follow one part of the location: a branch's label, or a key that leads into a value."""
        branches = [branch for annotation in self.annotations for branch in _branches(annotation)]
        labelled = len(branches) > 1 and isinstance(part, str)
        # Problems raised by the validator of the whole file are located by keys alone, without labels of branches.
        unlabelled = len(self.annotations) > 1 or not any(_has_label(branch, str(part)) for branch in branches)
        if labelled and not (unlabelled and any(part in _fields(branch) for branch in branches)):
            self.annotations = [branch for branch in branches if _has_label(branch, str(part))] or branches
            if self.union_at is None:
                self.union_at = len(self.keys)
        else:
            self.keys.append(part)
            self.annotations = [inner for branch in branches for inner in _inner(branch, part)]


def _branches(annotation: Any) -> list[Any]:
    """The types that a value may have; more than one if pydantic labels the branch."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _branches(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        some = [branch for branch in get_args(annotation) if branch is not type(None)]
        return _branches(some[0]) if len(some) == 1 else some
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        return _branches(annotation.model_fields["root"].annotation)
    return [annotation]


def _fields(annotation: Any) -> dict[str, Any]:
    """Key -> annotation if this is a model; else empty."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return {}
    return {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}


def _inner(annotation: Any, part: str | int) -> list[Any]:
    """The annotations of the value under `part`; empty if unknown."""
    fields = _fields(annotation)
    if fields:
        return [fields[part]] if isinstance(part, str) and part in fields else []
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple and isinstance(part, int) and Ellipsis not in arguments:
        return [arguments[part]] if part < len(arguments) else []
    if origin is not Literal and arguments:
        return [arguments[1 if isinstance(part, str) and len(arguments) > 1 else 0]]
    return []


def _has_label(branch: Any, label: str) -> bool:
    """Whether pydantic labels this branch of a union `label`: a discriminator's value or the class.

    A class with its own validator is called `function-after[its name(), the class]`.
    """
    while found := _VALIDATED.fullmatch(label):
        label = found[1]
    if getattr(branch, "__name__", None) == label:
        return True
    literals = (get_args(inner) for inner in _fields(branch).values() if get_origin(inner) is Literal)
    return any(label in values for values in literals)
