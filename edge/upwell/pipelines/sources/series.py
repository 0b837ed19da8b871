"""A file of samples, cut into windows; each window is a frame."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace

from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import SeriesFileSettings, SourceEnded, SourceState, SourceStatus
from upwell.pipelines.sources.samples import SERIES_SUFFIXES, rows_of, sample_of
from upwell.pipelines.sources.windows import SampleWindow, Windows
from upwell.shared.errors import ConfigError, InvalidRequest

_log = logging.getLogger(__name__)


class SeriesFile:
    """A `Source` of the windows of a file, in order. The file is read as windows are taken, and none is left out.

    A window counts as captured when its last sample is read, like a frame of a video file. `captured_unix_s` is still
    the time of its last point. It has no thread: `next` reads. Raises `ConfigError`.
    """

    def __init__(self, settings: SeriesFileSettings) -> None:
        self._settings = settings
        self._windows = Windows(settings.shape.cut)
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
        return Frame.of_window(self._status.captured, captured, window.values, window.missing, window.end_s)

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
