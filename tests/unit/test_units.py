"""Quantities with units: what is read, and what is refused with which words."""

import math
import re
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from upwell.shared.units import Bytes, Seconds, Share, parse_bytes, parse_seconds, parse_share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("80ms", 0.08), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), (0, 0.0), ("0", 0.0), (0.0, 0.0), ("0s", 0.0)],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("256KiB", 262_144),
        ("64MiB", 67_108_864),
        ("1kB", 1000),
        ("5GB", 5_000_000_000),
        ("1.5MiB", 1_572_864),
        ("2GiB", 2**31),
        ("3MB", 3_000_000),
        ("7b", 7),
        ("7B", 7),
        (0, 0),
    ],
)
def test_sizes(text: object, size_bytes: int) -> None:
    parsed = parse_bytes(text)
    assert parsed == size_bytes
    assert type(parsed) is int


@pytest.mark.parametrize(("text", "share"), [("20%", 0.2), (0.2, 0.2), ("0%", 0), ("100%", 1), (1, 1), ("0.5%", 0.005)])
def test_shares(text: object, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (100, "100 without a unit; write 100ms or 100s"),
        ("100", "100 without a unit; write 100ms or 100s"),
        ("80MS", "unknown unit 'MS'; write 80ms"),
        ("2H", "write 2h"),
        ("5min", "known units are ms, s, m, h"),
        ("80 ms", "without the space: 80ms"),
        ("-5ms", "must not be negative"),
        (-5, "finite and not negative"),
        (math.nan, "finite and not negative"),
        (math.inf, "finite and not negative"),
        ("1e3s", "a duration such as 80ms"),
        ("nans", "a duration such as 80ms"),
        ("", "a duration such as 80ms"),
        ("1/s", "a duration such as 80ms"),
        (True, "a duration such as 80ms"),
        (None, "a duration such as 80ms"),
        (["1s"], "a duration such as 80ms"),
        ("9" * 31 + "s", "a duration such as 80ms"),
        ("١s", "a duration such as 80ms"),
    ],
)
def test_durations_refused(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (100, "write 100KiB or 100MiB"),
        ("256kb", "write 256kB"),
        ("256KB", "write 256kB"),
        ("256kib", "write 256KiB"),
        ("1TB", "known units are B, b, kB, MB, GB, KiB, MiB, GiB"),
        ("1.5B", "a whole number of bytes"),
        ("0.3kB5", "a size such as 256KiB"),
        ("5GB/month", "a size such as 256KiB"),
        ("-1kB", "must not be negative"),
    ],
)
def test_sizes_refused(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (20, "write 20% if that is meant"),
        (101, "from 0% to 100%"),
        (-0.1, "from 0% to 100%"),
        (math.nan, "from 0% to 100%"),
        (math.inf, "from 0% to 100%"),
        (10**30, "from 0% to 100%"),
        ("150%", "from 0% to 100%"),
        ("0.2", "20% or 0.2"),
        ("%", "20% or 0.2"),
        (False, "20% or 0.2"),
    ],
)
def test_shares_refused(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_share(text)


class Quantities(BaseModel):
    deadline: Seconds = 1.0
    size: Bytes = 0
    share: Share = 0.0


def test_as_fields() -> None:
    read = Quantities.model_validate({"deadline": "80ms", "size": "1KiB", "share": "5%"})
    assert (read.deadline, read.size, read.share) == (0.08, 1024, 0.05)
    with pytest.raises(ValidationError):
        Quantities.model_validate({"deadline": 80})


@pytest.mark.parametrize(("kind", "good"), [(Seconds, "80ms"), (Bytes, "64MiB"), (Share, "20%")])
def test_json_schema_says_how_it_is_written(kind: Any, good: str) -> None:
    schema = TypeAdapter(kind).json_schema()
    text = next(branch for branch in schema["anyOf"] if branch.get("type") == "string")
    assert re.search(text["pattern"], good)
