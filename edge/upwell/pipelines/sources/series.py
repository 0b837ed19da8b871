"""A file of samples of a series, as JSON objects or CSV rows, cut into windows; each window is a frame."""

from __future__ import annotations

import csv
import json
import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import IO, Any, TypeAlias

from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import SourceEnded, SourceState, SourceStatus
from upwell.pipelines.sources.capture_time import MediaClock
from upwell.pipelines.sources.source_settings import SeriesFileSettings, SeriesShape
from upwell.pipelines.sources.windows import SampleWindow, Windows
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.units import LATEST_UNIX_S

Sample: TypeAlias = tuple[float, Sequence[float]]
"""The time in seconds by the clock that stamped it, and a finite number for each field."""

SERIES_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_SHOWN = 60


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
    if abs(time_s) > LATEST_UNIX_S:  # it has a smaller unit than configured
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


_log = logging.getLogger(__name__)


class SeriesFile:
    """A `Source` of the windows of a file, in order. The file is read as windows are taken, and none is left out.

    A window counts as captured when its last sample is read, like a frame of a video file. `captured_unix_s` is still
    the time of its last point. It has no thread: `next` reads. Raises `ConfigError`.
    """

    def __init__(self, settings: SeriesFileSettings) -> None:
        self._settings = settings
        self._windows = Windows(settings.shape.cut)
        self._clock = MediaClock()
        self._waiting: deque[SampleWindow] = deque()
        suffix = settings.path.suffix.lower()
        if suffix not in SERIES_SUFFIXES:
            raise ConfigError.at(settings.path, f"expected a file that ends in {', '.join(SERIES_SUFFIXES)}")
        self._status = SourceStatus(SourceState.CONNECTING, decoder=suffix[1:])
        self._is_closed = False
        self._reading = self._read(is_csv=suffix == ".csv")

    def next(self, timeout_s: float) -> Frame | None:
        """The next window; None if none was complete in that time. Raises `SourceEnded`."""
        until_s = time.monotonic() + timeout_s
        while not self._waiting or self._is_closed:
            if self._is_closed or not next(self._reading, False):
                self._reading.close()
                self._status = replace(self._status, state=SourceState.ENDED)
                why = self._status.explained
                raise SourceEnded(f"{self._settings.path} has ended" + (f": {why}" if why else ""))
            if not self._waiting and time.monotonic() >= until_s:
                return None
        window = self._waiting.popleft()
        self._status = replace(self._status, given=self._status.given + 1)
        captured = (time.monotonic(), window.end_s)
        media_s = self._clock.at_s(window.end_s)
        return Frame.of_window(self._status.captured, captured, window.values, window.missing, media_s)

    def done(self, frame: Frame) -> None:
        """Do nothing."""

    @property
    def status(self) -> SourceStatus:
        """The current state."""
        return self._status

    def close(self) -> None:
        """Stop reading. Harmless twice."""
        self._is_closed = True
        with suppress(ValueError):  # another thread is reading, and closes the file
            self._reading.close()
        self._status = replace(self._status, state=SourceState.ENDED)

    def _read(self, *, is_csv: bool) -> Generator[bool, None, None]:
        """Take one sample after the other until the file ends; yields True for each."""
        settings = self._settings
        try:
            with settings.path.open(encoding="utf-8-sig", newline="" if is_csv else None) as file:
                self._status = replace(self._status, state=SourceState.LIVE)
                for line, record in rows_of(file, is_csv, settings.max_line_bytes):
                    try:
                        sample = sample_of(record, settings.shape)
                    except InvalidRequest as error:
                        self._leave_out(line, str(error))
                    else:
                        self._take(self._windows.take(*sample))
                    yield True
        except (OSError, InvalidRequest) as error:
            self._break_off(getattr(error, "strerror", None) or str(error))
        except UnicodeDecodeError:
            self._break_off("it is not UTF-8 text")

    def _take(self, found: list[SampleWindow]) -> None:
        whole = [window for window in found if self._settings.shape.fills or not window.missing]
        self._status = replace(self._status, gap=self._status.gap + len(found) - len(whole))
        self._waiting += whole

    def _leave_out(self, line: int, why: str) -> None:
        if not self._status.undecodable:  # once: a file with other columns must not fill the log
            _log.warning("%s:%d: skipped a sample: %s", self._settings.path, line, why)
        self._status = replace(self._status, undecodable=self._status.undecodable + 1)

    def _break_off(self, why: str) -> None:
        self._status = replace(self._status, explained=why)
