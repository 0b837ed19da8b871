"""Quantities with units: what is read, and what is refused with which words."""

import math
import re
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from upwell.shared.units import (
    Bytes,
    Joules,
    Seconds,
    Share,
    bytes_as_written,
    parse_bits_per_second,
    parse_bytes,
    parse_count,
    parse_joules,
    parse_number,
    parse_rate,
    parse_seconds,
    parse_share,
    seconds_as_written,
)


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
        ("5min", "expected one of ms, s, m, h"),
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
        ("1TB", "expected one of B, b, kB, MB, GB, KiB, MiB, GiB"),
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
        (20, "write 20% if that is intended"),
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


@pytest.mark.parametrize(("kind", "good"), [(Seconds, "80ms"), (Bytes, "64MiB"), (Share, "20%"), (Joules, "2uJ")])
def test_json_schema_says_how_it_is_written(kind: Any, good: str) -> None:
    schema = TypeAdapter(kind).json_schema()
    text = next(branch for branch in schema["anyOf"] if branch.get("type") == "string")
    assert re.search(text["pattern"], good)


@pytest.mark.parametrize(
    ("text", "joules"),
    [("20mJ", 0.02), ("2uJ", 2e-6), ("2µJ", 2e-6), ("3nJ", 3e-9), ("0.5J", 0.5), ("1kJ", 1000.0), (0, 0.0)],
)
def test_energies(text: object, joules: float) -> None:
    assert parse_joules(text) == joules


@pytest.mark.parametrize(
    ("text", "bits"), [("20Mbps", 2e7), ("500kbps", 5e5), ("1.5Gbps", 1.5e9), ("9bps", 9.0), ("0", 0.0)]
)
def test_bit_rates(text: object, bits: float) -> None:
    assert parse_bits_per_second(text) == bits


@pytest.mark.parametrize(
    ("text", "words"),
    [("20", "write 20mJ or 20J"), ("20mj", "write 20mJ"), ("1W", "unknown unit 'W'"), (math.nan, "finite")],
)
def test_energies_refused(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_joules(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [(20, "write 20kbps or 20Mbps"), ("20mbps", "write 20Mbps"), ("20MBps", "write 20Mbps"), ("-1Mbps", "negative")],
)
def test_bit_rates_refused(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_bits_per_second(text)


def test_rates() -> None:
    assert parse_rate("100/min", parse_count) == (100, "min")
    assert parse_rate(" 5GB/month ", parse_bytes) == (5_000_000_000, "month")
    assert parse_rate("20.5/day", parse_number) == (20.5, "day")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("100", "expected an amount in each period, such as 100/min, got '100'"),
        (100, "such as 100/min, got 100"),
        (None, "such as 100/min, got None"),
        ("/min", "such as 100/min"),
        ("100/", "unknown period ''"),
        ("100/year", "unknown period 'year' in '100/year'; expected one of s, min, h, day, week, month"),
        ("1.5/min", "expected a whole number such as 100, got '1.5'"),
        ("-1/min", "expected a whole number"),
        ("9" * 19 + "/s", "expected a whole number"),
        ("1/2/s", "expected a whole number such as 100, got '1/2'"),
    ],
)
def test_rates_refused(text: object, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_rate(text, parse_count)


@pytest.mark.parametrize("seconds", [0.0, 0.08, 0.0001, 1e-7, 0.1 + 0.2, 1.0, 1.5, 30.0, 90.0, 3600.0, 1e15])
def test_a_duration_is_read_back_as_it_was_written(seconds: float) -> None:
    assert parse_seconds(seconds_as_written(seconds)) == seconds


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 1024, 1536, 64 << 20, 5 << 30, (5 << 30) + 1])
def test_a_size_is_read_back_as_it_was_written(size_bytes: int) -> None:
    assert parse_bytes(bytes_as_written(size_bytes)) == size_bytes


def test_quantities_are_written_as_a_person_would() -> None:
    assert [seconds_as_written(value) for value in (0.08, 1.5, 90.0)] == ["80ms", "1.5s", "90s"]
    assert [bytes_as_written(value) for value in (0, 1000, 64 << 20)] == ["0B", "1000B", "64MiB"]


class Written(BaseModel):
    wait: Seconds
    size: Bytes


def test_json_has_the_units() -> None:
    written = Written.model_validate({"wait": "80ms", "size": "1KiB"})
    assert written.model_dump() == {"wait": 0.08, "size": 1024}
    assert written.model_dump(mode="json") == {"wait": "80ms", "size": "1KiB"}
