"""Quantities with units as people write them in files: `80ms`, `256KiB`, `20%`, `20Mbps`, `2uJ`, `100/min`.

A bare number is refused if it is ambiguous: `deadline: 100` could mean seconds or milliseconds. Zero needs no unit.
Inside the program a duration is in seconds (float), a size in bytes (int), a share a fraction from 0 to 1 (float), an
energy in joules (float), and a link's rate in bits per second (float).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from upwell.shared.value_classes import value_class

DURATION_UNITS: Mapping[str, Decimal] = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
"""Unit -> seconds."""

SIZE_UNITS: Mapping[str, Decimal] = {
    "B": Decimal(1),
    "b": Decimal(1),
    "kB": Decimal(1000),
    "MB": Decimal(1000**2),
    "GB": Decimal(1000**3),
    "KiB": Decimal(1024),
    "MiB": Decimal(1024**2),
    "GiB": Decimal(1024**3),
}
"""Unit -> bytes."""

ENERGY_UNITS: Mapping[str, Decimal] = {
    "nJ": Decimal("1e-9"),
    "uJ": Decimal("1e-6"),
    "µJ": Decimal("1e-6"),
    "mJ": Decimal("1e-3"),
    "J": Decimal(1),
    "kJ": Decimal(1000),
}
"""Unit -> joules."""

BITRATE_UNITS: Mapping[str, Decimal] = {
    "bps": Decimal(1),
    "kbps": Decimal(1000),
    "Mbps": Decimal(1000**2),
    "Gbps": Decimal(1000**3),
}
"""Unit -> bits per second."""

LATEST_UNIX_S, LATEST_YEAR = 1e11, 5138
"""A larger number is no time in seconds since 1970, and no zone's date of it may leave the calendar."""

PERIODS = ("s", "min", "h", "day", "week", "month")
"""The periods of a rate."""


@value_class
class _Kind:
    """A kind of quantity: its units, an example for messages, and two units to suggest for a bare number."""

    units: Mapping[str, Decimal]
    expected: str
    offered: tuple[str, str]


_DURATION = _Kind(DURATION_UNITS, "a duration such as 80ms, 1.5s, 2m or 1h", ("ms", "s"))
_SIZE = _Kind(SIZE_UNITS, "a size such as 256KiB, 64MiB or 5GB", ("KiB", "MiB"))
_ENERGY = _Kind(ENERGY_UNITS, "an energy such as 20mJ or 2uJ", ("mJ", "J"))
_BITRATE = _Kind(BITRATE_UNITS, "a bit rate such as 500kbps or 20Mbps", ("kbps", "Mbps"))

_NUMBER = r"[0-9]{1,30}(?:\.[0-9]{1,30})?"
_QUANTITY = rf"({_NUMBER})(\s*)([A-Za-zµ]+)"
_PERCENT = rf"({_NUMBER})%"
PERCENT_PATTERN = rf"^{_NUMBER}%$"


def parse_seconds(value: object) -> float:
    """`80ms`, `1.5s`, `2m`, `1h` or 0 -> seconds. Raises `ValueError` that says what is expected."""
    return float(_parse(value, _DURATION))


def parse_bytes(value: object) -> int:
    """`256KiB`, `64MiB`, `1kB`, `5GB`, `100B` or 0 -> bytes. Raises `ValueError`, also for a fraction of a byte."""
    size = _parse(value, _SIZE)
    if size != int(size):
        raise ValueError(f"expected a whole number of bytes, got {value!r}")
    return int(size)


def parse_share(value: object) -> float:
    """`20%` or 0.2 -> 0.2. Raises `ValueError` outside 0 to 1."""
    share = _share(value)
    if 0 <= share <= 1:
        return float(share)
    hint = f"; write {value}% if that is intended" if not isinstance(value, str) and 1 < share <= 100 else ""
    raise ValueError(f"expected a share from 0% to 100% (0 to 1), got {value}{hint}")


def parse_joules(value: object) -> float:
    """`20mJ`, `2uJ`, `0.5J` or 0 -> joules. Raises `ValueError` that says what is expected."""
    return float(_parse(value, _ENERGY))


def parse_bits_per_second(value: object) -> float:
    """`500kbps`, `20Mbps` or 0 -> bits per second. Raises `ValueError` that says what is expected."""
    return float(_parse(value, _BITRATE))


N = TypeVar("N")


def parse_rate(value: object, amount: Callable[[str], N], example: str = "100/min") -> tuple[N, str]:
    """`100/min` -> the part before the slash as read by `amount`, and the period, one of `PERIODS`.

    Raises `ValueError`, also if `amount` does.
    """
    text = value.strip() if isinstance(value, str) else ""
    before, slash, period = text.rpartition("/")
    if not slash or not before:
        raise ValueError(f"expected an amount in each period, such as {example}, got {value!r}")
    if period not in PERIODS:
        raise ValueError(f"unknown period {period!r} in {text!r}; expected one of {', '.join(PERIODS)}")
    return amount(before), period


def parse_count(text: str) -> int:
    """Digits -> a whole number. Raises `ValueError`."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise ValueError(f"expected a whole number such as 100, got {text!r}")
    return int(text)


def parse_number(text: str) -> float:
    """A decimal number without a sign or an exponent. Raises `ValueError`."""
    if not re.fullmatch(_NUMBER, text):
        raise ValueError(f"expected a number such as 20 or 0.5, got {text!r}")
    return float(text)


def _share(value: object) -> int | float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    match = re.fullmatch(_PERCENT, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a share such as 20% or 0.2, got {value!r}")
    return float(Decimal(match[1]) / 100)


def _parse(value: object, kind: _Kind) -> Decimal:
    """The exact quantity in the base unit."""
    units, expected = kind.units, kind.expected
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value == 0:
            return Decimal(0)
        raise ValueError(_bare_number(value, kind))
    if not isinstance(value, str):
        raise ValueError(f"expected {expected}, got {value!r}")
    text = value.strip()
    if text == "0":
        return Decimal(0)
    match = re.fullmatch(_QUANTITY, text, re.ASCII)
    if match is None:
        raise ValueError(_unreadable(text, kind))
    number, space, unit = match.groups()
    if unit not in units:
        raise ValueError(_unknown_unit(number, unit, units))
    if space:
        raise ValueError(f"expected {expected}, got {text!r}; write it without the space: {number}{unit}")
    return Decimal(number) * units[unit]


def _bare_number(value: int | float | str, kind: _Kind) -> str:
    if not isinstance(value, str) and not 0 <= value < math.inf:
        return f"expected {kind.expected}, got {value}; it must be finite and not negative"
    first, second = kind.offered
    return f"expected {kind.expected}, got {value} without a unit; write {value}{first} or {value}{second}"


def _unreadable(text: str, kind: _Kind) -> str:
    if re.fullmatch(_NUMBER, text):
        return _bare_number(text, kind)
    hint = "; it must not be negative" if text.startswith("-") else ""
    return f"expected {kind.expected}, got {text!r}{hint}"


def _unknown_unit(number: str, unit: str, units: Mapping[str, Decimal]) -> str:
    alike = next((known for known in units if known.lower() == unit.lower()), None)
    if alike is not None:
        return f"unknown unit {unit!r}; write {number}{alike} (case matters)"
    return f"unknown unit {unit!r} in {number + unit!r}; expected one of {', '.join(units)}"


def _schema(pattern: str, *others: dict[str, object]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": pattern}, *others]})


def seconds_as_written(value: float) -> str:
    """0.08 -> `80ms`, 90.0 -> `90s`: text that `parse_seconds` reads as the same value."""
    exact = Decimal(repr(value))
    unit = "ms" if 0 < exact < 1 else "s"
    return f"{(exact / DURATION_UNITS[unit]).normalize():f}{unit}"


def bytes_as_written(value: int) -> str:
    """67108864 -> `64MiB`, 1000 -> `1000B`: text that `parse_bytes` reads as the same value."""
    unit = next((unit for unit in ("GiB", "MiB", "KiB") if value and value % int(SIZE_UNITS[unit]) == 0), "B")
    return f"{value // int(SIZE_UNITS[unit])}{unit}"


Seconds: TypeAlias = Annotated[
    float,
    BeforeValidator(parse_seconds),
    _schema(rf"^{_NUMBER}({'|'.join(DURATION_UNITS)})$", {"const": 0}),
    PlainSerializer(seconds_as_written, when_used="json"),
]
"""A pydantic field: a duration with a unit in files and JSON, seconds in the program."""

Bytes: TypeAlias = Annotated[
    int,
    BeforeValidator(parse_bytes),
    _schema(rf"^{_NUMBER}({'|'.join(SIZE_UNITS)})$", {"const": 0}),
    PlainSerializer(bytes_as_written, when_used="json"),
]
"""A pydantic field: a size with a unit in files and JSON, bytes in the program."""

Share: TypeAlias = Annotated[
    float,
    BeforeValidator(parse_share),
    _schema(PERCENT_PATTERN, {"type": "number", "minimum": 0, "maximum": 1}),
]
"""A pydantic field: `20%` or 0.2 in files and JSON, a fraction from 0 to 1 in the program."""

Joules: TypeAlias = Annotated[
    float, BeforeValidator(parse_joules), _schema(rf"^{_NUMBER}({'|'.join(ENERGY_UNITS)})$", {"const": 0})
]
"""A pydantic field: an energy with a unit in files and JSON, joules in the program."""


def count_of(number: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rate_schema(unit: str = "") -> WithJsonSchema:
    """The JSON Schema of a rate; `unit` is the pattern between the number and the slash."""
    return WithJsonSchema({"type": "string", "pattern": rf"^{_NUMBER}{unit}/({'|'.join(PERIODS)})$"})


SIZE_UNIT_PATTERN = f"({'|'.join(SIZE_UNITS)})"
"""The JSON schema of a byte rate."""
