"""The flight recorder: takes traces from the request path and keeps the latest ones on disk.

They are a bounded log of lines: append-only files, of which the oldest is deleted whole.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from upwell.edge.observe.request_trace import LONGEST_ID, RequestTrace, to_line
from upwell.shared.errors import UpwellError
from upwell.shared.files import parse_json
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.units import LATEST_UNIX_S

SEGMENTS = 8
"""Number of full files of equal length, besides the one being written."""

_NAME = r"([0-9]{1,15})\.jsonl"


class Segments:
    """Writes the log. One writer at a time; readers do not need this object.

    At least the last `limit` lines are kept unless they exceed `limit_bytes`. There is no fsync: a power failure may
    lose the last seconds and leave a truncated line, which readers skip.
    """

    def __init__(self, folder: Path, limit: int, limit_bytes: int) -> None:
        """Touch no file yet."""
        self._folder = folder
        self._most_lines = max(1, -(-limit // SEGMENTS))
        self._most_bytes = max(1, limit_bytes // (SEGMENTS + 1))
        self._file = -1
        self._number = 0
        self._lines = self._bytes = 0

    def append(self, lines: list[bytes]) -> None:
        """Append lines, each with its line feed. Raises `OSError`; the next call continues the log."""
        try:
            if self._file < 0:
                self._resume()
            while lines:
                if self._lines >= self._most_lines or self._bytes >= self._most_bytes:
                    self._begin(self._number + 1)
                    self._prune()
                batch = _fitting(lines, self._most_lines - self._lines, self._most_bytes - self._bytes)
                _write_all(self._file, b"".join(batch))
                self._lines += len(batch)
                self._bytes += sum(map(len, batch))
                lines = lines[len(batch) :]
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _resume(self) -> None:
        """Continue the newest file; a truncated line there is ended, so that it spoils no other line."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        numbers = _numbers(self._folder)
        self._begin(numbers[-1] if numbers else 1)
        written = (self._folder / _name(self._number)).read_bytes() if self._bytes <= 2 * self._most_bytes else b""
        self._lines = written.count(b"\n")
        if written and not written.endswith(b"\n"):
            _write_all(self._file, b"\n")
        self._prune()

    def _begin(self, number: int) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(self._folder / _name(number), flags, 0o600)
        self._number, self._lines, self._bytes = number, 0, os.fstat(self._file).st_size

    def _prune(self) -> None:
        for number in _numbers(self._folder)[: -SEGMENTS - 1]:
            (self._folder / _name(number)).unlink(missing_ok=True)


def newest_lines(folder: Path) -> Iterator[bytes]:
    """The lines of the log, newest first, also while it is being written. A missing folder is an empty log.

    Raises `OSError` if an existing file cannot be read.
    """
    try:
        numbers = _numbers(folder)
    except FileNotFoundError:
        return
    for number in reversed(numbers):
        try:
            content = (folder / _name(number)).read_bytes()
        except FileNotFoundError:  # the writer has just deleted it
            continue
        complete, _, _ = content.rpartition(b"\n")
        yield from reversed(complete.split(b"\n"))


def _numbers(folder: Path) -> list[int]:
    """The numbers of the files, in order."""
    found = (re.fullmatch(_NAME, entry.name) for entry in os.scandir(folder))
    return sorted(int(match[1]) for match in found if match)


def _name(number: int) -> str:
    return f"{number:08}.jsonl"


def _fitting(lines: list[bytes], most_lines: int, most_bytes: int) -> list[bytes]:
    """The first lines that fit, at least one."""
    count, size = 1, len(lines[0])
    while count < min(len(lines), most_lines) and size + len(lines[count]) <= most_bytes:
        size += len(lines[count])
        count += 1
    return lines[:count]


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


FOLDER_NAME = "flights"
"""The recorder's folder in the agent's `state_dir`."""

FRAMES_NAME = "frames"
"""The folder of the pipelines' recorder, separate so that many frames do not displace requests."""

LIMIT = 50_000
"""An hour of more than ten requests a second: about 61 MB, 165 MB at most."""
ROOM_BYTES = 3300
"""Average bytes allowed per trace; most take about a third of that."""

MOST_PENDING = 4096
"""Maximum number of traces waiting to be written; more are dropped and counted."""

PAUSE_S = 0.05
"""How long traces are gathered: the request path wakes the recorder at most this often."""

AT_A_TIME, REST_S = 4, 1e-4
"""So many traces become JSON, then the requests have the interpreter, which for a thread that goes on and on they would
wait 5 ms for."""

RETRY_S = 1.0
"""Pause after a failed write."""

_log = logging.getLogger(__name__)


class UnknownRequest(UpwellError):
    """No trace has that id, or several ids begin with it, or none can be read."""


class FlightRecorder:
    """Keeps the last `limit` traces in `folder` as lines of JSON, where `upwell explain` finds them; none if it is 0.

    It keeps fewer if they exceed `limit_bytes`, by default `ROOM_BYTES` per trace. Pipelines record finished lines,
    each with its line feed. `note` costs the request path a few microseconds and never fails; one thread does the
    rest. `dropped` and `failed` count the traces lost because they came too fast, or could not be written.
    """

    def __init__(self, folder: Path, limit: int = LIMIT, limit_bytes: int | None = None) -> None:
        limit_bytes = limit * ROOM_BYTES if limit_bytes is None else limit_bytes
        self.dropped = 0
        self.failed = 0
        self._folder = folder
        self._segments = Segments(folder, limit, limit_bytes)
        self.limit = limit
        self._pending: deque[bytes | RequestTrace] = deque()
        self._retry_at_s = -math.inf
        self._wake, self._stop = threading.Event(), threading.Event()
        self._is_woken = self._is_closed = False
        self._lock = threading.Lock()  # guards the written traces against `find` and `last`
        self._counting = threading.Lock()
        self._thread = BackgroundThread("flight-recorder", self._run, self._stop.is_set)
        self._thread.start()

    def note(self, trace: bytes | RequestTrace) -> None:
        """Record a trace. Never blocks or fails."""
        if not self.limit:
            return
        if len(self._pending) >= MOST_PENDING or self._is_closed:
            with self._counting:
                self.dropped += 1
            return
        self._pending.append(trace)
        if not self._is_woken:
            self._is_woken = True
            self._wake.set()

    def find(self, id: str) -> dict[str, Any]:
        """The newest trace with that id, or the only one whose id begins with it. Raises `UnknownRequest`."""
        return find(self._lines(), id)

    def last(self, count: int) -> list[dict[str, Any]]:
        """The last traces, the newest first."""
        return last(self._lines(), count)

    def close(self) -> None:
        """Write pending traces and stop. Calling it twice is harmless."""
        self._is_closed = True
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _lines(self) -> Iterator[bytes]:
        self._write()  # so that all traces noted before are found
        return newest_lines(self._folder)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(PAUSE_S)
            self._wake.clear()
            self._is_woken = False
            self._write()
        self._write()
        self._segments.close()

    def _write(self) -> None:
        with self._lock:
            lines = [*self._as_lines(self._drained())]
            if not lines:
                return
            if time.monotonic() < self._retry_at_s:
                self.failed += len(lines)
                return
            try:
                self._segments.append(lines)
            except OSError as error:
                self._retry_at_s = time.monotonic() + RETRY_S
                if not self.failed:
                    _log.warning(
                        "cannot record decisions in %s: %s; requests are still answered", self._folder, error.strerror
                    )
                self.failed += len(lines)

    def _drained(self) -> Iterator[bytes | RequestTrace]:
        while self._pending:
            yield self._pending.popleft()

    def _as_lines(self, traces: Iterable[bytes | RequestTrace]) -> Iterator[bytes]:
        written = 0
        for request_trace in traces:
            if isinstance(request_trace, bytes):
                yield request_trace
                continue
            if written and written % AT_A_TIME == 0:
                time.sleep(REST_S)
            written += 1
            try:
                yield to_line(request_trace)
            except Exception:  # noqa: BLE001 (the boundary of a thread that must live on, whatever a trace holds)
                self.failed += 1
                _log.exception("request %r cannot be recorded", request_trace.id)


def last(lines: Iterable[bytes], count: int) -> list[dict[str, Any]]:
    """The first `count` traces of lines ordered newest first."""
    found: list[dict[str, Any]] = []
    for request_trace in _traces(lines):
        if len(found) >= count:
            break
        found.append(request_trace)
    return found


def find(lines: Iterable[bytes], id: str) -> dict[str, Any]:
    """The newest trace with that id in lines ordered newest first, else the only one whose id begins with it.

    A frame's trace also has the ids of its events. Raises `UnknownRequest`, which says how far back the lines go. Only
    lines that contain the id are parsed: parsing tens of thousands would take a small board seconds.
    """
    id = id[:LONGEST_ID]
    written = json.dumps(id)[1:-1].encode()
    alike: dict[str, dict[str, Any]] = {}
    held, oldest = Counter[str](), dict[str, bytes]()
    for line in lines:
        if line.startswith(b"{") and line.endswith((b"}", b"}\n")):
            kind = "frames" if b'"frame":' in line else "requests"
            held[kind] += 1
            oldest[kind] = line
        if written not in line:
            continue
        trace = next(_traces((line,)), None)
        if trace is None:
            continue
        names = _ids(trace)
        if id in names:
            return trace
        if id:
            for name in names:
                if name.startswith(id):
                    alike.setdefault(name, trace)
    if len(alike) == 1:
        return next(iter(alike.values()))
    if alike:
        some = ", ".join([*alike][:3])
        raise UnknownRequest(f"{len(alike)} recorded ids begin with {id!r}, such as {some}")
    back_to = {kind: local_time(one["time"]) for kind, line in oldest.items() for one in _traces((line,))}
    reach = ", and ".join(f"the last {held[kind]} {kind}, back to {when}" for kind, when in back_to.items())
    what = "request or event" if "frames" in back_to else "request"
    raise UnknownRequest(
        f"no {what} {id!r} is recorded: " + (f"the recorder has {reach}" if reach else "the recorder is empty")
    )


def is_frame(trace: Mapping[str, Any]) -> bool:
    """Whether the trace is of a pipeline's frame rather than a request."""
    return "frame" in trace


def _ids(trace: Mapping[str, Any]) -> list[str]:
    events = trace.get("events") if is_frame(trace) else None
    return [trace["id"], *(str(one.get("id", "")) for one in events or () if isinstance(one, dict))]


def local_time(wall_time_s: float) -> str:
    """A Unix time as readable local date, time and UTC offset."""
    return datetime.fromtimestamp(wall_time_s, timezone.utc).astimezone().isoformat(" ", "milliseconds")


def _traces(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The traces in the lines; truncated and damaged lines are skipped."""
    for line in lines:
        try:
            request_trace = parse_json(line)
        except ValueError:
            continue
        if (
            isinstance(request_trace, dict)
            and isinstance(request_trace.get("id"), str)
            and isinstance(request_trace.get("time"), (int, float))
            and 0 <= request_trace["time"] <= LATEST_UNIX_S
        ):
            yield request_trace
