"""Samples of a series, from JSON objects and CSV rows."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Any, TypeAlias

from upwell.pipelines.sources.base import SeriesShape
from upwell.shared.errors import InvalidRequest

Sample: TypeAlias = tuple[float, Sequence[float]]
"""The time in seconds by the clock that stamped it, and a finite number for each field."""

SERIES_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_SHOWN = 60
_LATEST_S = 1e11
"""The year 5138, in seconds: a larger time stamp has a smaller unit than configured."""


def samples_of(message: bytes, shape: SeriesShape) -> list[Sample]:
    """The samples of a message: one, or a list of them. Raises `InvalidRequest`; then none of them is taken."""
    try:
        parsed = json.loads(message)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"expected JSON, got {message[:_SHOWN]!r}") from None
    return [sample_of(one, shape) for one in (parsed if isinstance(parsed, list) else [parsed])]


def sample_of(record: object, shape: SeriesShape) -> Sample:
    """One sample. Raises `InvalidRequest`, which names what is missing or wrong."""
    if not isinstance(record, Mapping):
        raise InvalidRequest(f"expected an object with {shape.time} and {', '.join(shape.fields)}")
    stamp = _found(record, shape.time)
    return _seconds(stamp, shape), [_number(_found(record, name), name) for name in shape.fields]


def _found(record: Mapping[str, Any], name: str) -> object:
    """The value of a name, or of its dotted parts in nested objects."""
    if name in record:
        return record[name]
    value: object = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise InvalidRequest(f"{name!r} is missing; there is {', '.join(map(str, record))[:_SHOWN] or 'nothing'}")
        value = value[part]
    return value


def _number(value: object, name: str) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise InvalidRequest(f"{name!r}: expected a finite number, got {str(value)[:_SHOWN]!r}")


def _seconds(stamp: object, shape: SeriesShape) -> float:
    if isinstance(stamp, str):
        try:
            moment = datetime.fromisoformat(stamp.strip().replace("Z", "+00:00"))
        except ValueError:
            pass  # a number, as in CSV
        else:
            if moment.tzinfo is None:
                raise InvalidRequest(f"{shape.time!r}: {stamp[:_SHOWN]!r} has no time zone; expected one, such as Z")
            return moment.timestamp()
    time_s = _number(stamp, shape.time) * shape.unit_s
    if abs(time_s) > _LATEST_S:
        raise InvalidRequest(f"{shape.time!r}: {str(stamp)[:_SHOWN]} would be {time_s:.3g} s; expected another `unit`")
    return time_s


def rows_of(file: IO[str], is_csv: bool, max_line_bytes: int) -> Iterator[tuple[int, object]]:
    """The line number and record of each row; None for an invalid row. Raises `InvalidRequest` for an endless line."""

    def lines() -> Iterator[str]:
        while line := file.readline(max_line_bytes + 1):
            if len(line) > max_line_bytes:
                raise InvalidRequest(f"a line has more than {max_line_bytes} characters")
            yield line

    if is_csv:
        reader = csv.DictReader(lines(), skipinitialspace=True)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise InvalidRequest(f"line {reader.line_num}: {error}") from None
        return
    for number, line in enumerate(lines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, None
