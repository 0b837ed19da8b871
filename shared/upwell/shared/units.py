"""Quantities with units as people write them in files: `80ms`, `256KiB`, `20%`.

A bare number is refused where it could be read in two ways: `deadline: 100` may be seconds or milliseconds to
whoever wrote it. Zero needs no unit. Inside the program a duration is seconds (float), a size bytes (int), a share
a fraction from 0 to 1 (float).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, WithJsonSchema

DURATION_UNITS: Mapping[str, Decimal] = MappingProxyType(
    {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
)
"""Unit -> seconds."""

SIZE_UNITS: Mapping[str, Decimal] = MappingProxyType(
    {
        "B": Decimal(1),
        "b": Decimal(1),
        "kB": Decimal(1000),
        "MB": Decimal(1000**2),
        "GB": Decimal(1000**3),
        "KiB": Decimal(1024),
        "MiB": Decimal(1024**2),
        "GiB": Decimal(1024**3),
    }
)
"""Unit -> bytes."""

_NUMBER = r"[0-9]{1,30}(?:\.[0-9]{1,30})?"
_QUANTITY = re.compile(rf"({_NUMBER})(\s*)([A-Za-zµ]+)", re.ASCII)
_PERCENT = re.compile(rf"({_NUMBER})%", re.ASCII)
_BARE = re.compile(_NUMBER, re.ASCII)


def parse_seconds(value: object) -> float:
    """`80ms`, `1.5s`, `2m`, `1h` or 0 -> seconds. Raises `ValueError` that says what would be right."""
    return float(_parse(value, DURATION_UNITS, "a duration such as 80ms, 1.5s, 2m or 1h"))


def parse_bytes(value: object) -> int:
    """`256KiB`, `64MiB`, `1kB`, `5GB`, `100B` or 0 -> bytes. Raises `ValueError`, also for a fraction of a byte."""
    size = _parse(value, SIZE_UNITS, "a size such as 256KiB, 64MiB or 5GB")
    if size != int(size):
        raise ValueError(f"expected a whole number of bytes, got {value!r}")
    return int(size)


def parse_share(value: object) -> float:
    """`20%` or 0.2 -> 0.2. Raises `ValueError` outside 0 to 1."""
    share = _share(value)
    if 0 <= share <= 1:
        return float(share)
    hint = f"; write {value}% if that is meant" if not isinstance(value, str) and 1 < share <= 100 else ""
    raise ValueError(f"expected a share from 0% to 100% (0 to 1), got {value}{hint}")


def _share(value: object) -> int | float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a share such as 20% or 0.2, got {value!r}")
    return float(Decimal(match[1]) / 100)


def _parse(value: object, units: Mapping[str, Decimal], expected: str) -> Decimal:
    """The quantity in the base unit, exact."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value == 0:
            return Decimal(0)
        raise ValueError(_bare_number(value, units, expected))
    if not isinstance(value, str):
        raise ValueError(f"expected {expected}, got {value!r}")
    text = value.strip()
    if text == "0":
        return Decimal(0)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(_unreadable(text, units, expected))
    number, space, unit = match.groups()
    if unit not in units:
        raise ValueError(_unknown_unit(number, unit, units))
    if space:
        raise ValueError(f"expected {expected}, got {text!r}; write it without the space: {number}{unit}")
    return Decimal(number) * units[unit]


def _bare_number(value: int | float | str, units: Mapping[str, Decimal], expected: str) -> str:
    if not isinstance(value, str) and not 0 <= value < math.inf:
        return f"expected {expected}, got {value}; it must be finite and not negative"
    first, second = ("ms", "s") if "ms" in units else ("KiB", "MiB")
    return f"expected {expected}, got {value} without a unit; write {value}{first} or {value}{second}"


def _unreadable(text: str, units: Mapping[str, Decimal], expected: str) -> str:
    if _BARE.fullmatch(text):
        return _bare_number(text, units, expected)
    hint = "; it must not be negative" if text.startswith("-") else ""
    return f"expected {expected}, got {text!r}{hint}"


def _unknown_unit(number: str, unit: str, units: Mapping[str, Decimal]) -> str:
    alike = next((known for known in units if known.lower() == unit.lower()), None)
    if alike is not None:
        return f"unknown unit {unit!r}; write {number}{alike} (case matters)"
    return f"unknown unit {unit!r} in {number + unit!r}; known units are {', '.join(units)}"


def _schema(pattern: str, *others: dict[str, object]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": pattern}, *others]})


Seconds: TypeAlias = Annotated[
    float, BeforeValidator(parse_seconds), _schema(rf"^{_NUMBER}({'|'.join(DURATION_UNITS)})$", {"const": 0})
]
"""A pydantic field written as a duration with its unit; seconds inside."""

Bytes: TypeAlias = Annotated[
    int, BeforeValidator(parse_bytes), _schema(rf"^{_NUMBER}({'|'.join(SIZE_UNITS)})$", {"const": 0})
]
"""A pydantic field written as a size with its unit; bytes inside."""

Share: TypeAlias = Annotated[
    float,
    BeforeValidator(parse_share),
    _schema(rf"^{_NUMBER}%$", {"type": "number", "minimum": 0, "maximum": 1}),
]
"""A pydantic field written as `20%` or 0.2; a fraction from 0 to 1 inside."""
