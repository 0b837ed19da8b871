"""A folder of pictures; each picture is a frame."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from upwell.pipelines.frame import Frame
from upwell.pipelines.sources.base import SourceEnded, SourceState, SourceStatus
from upwell.pipelines.sources.source_settings import FolderSettings
from upwell.shared.errors import InvalidRequest
from upwell.shared.signature import picture_codec

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})

_REFUSED = frozenset({errno.EACCES, errno.EPERM})
"""Errors of a file itself, which another try would not read either."""

_SCAN_S = 1.0
"""How often the folder is scanned without change notifications, as on a network file system."""

_WAIT_MS = 100
"""How soon a wait for changes notices that it must end."""

_UNFINISHED_S = 10.0
"""How long a file that cannot be decoded must stay unchanged before it counts as broken: until then its upload may only
have stalled."""

Signature: TypeAlias = tuple[int, int, int]
"""Size, modification time and inode; if these differ, the file was replaced or is still being written."""

_log = logging.getLogger(__name__)
logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs every change of a folder


@dataclass(frozen=True)
class _Sighting:
    """A file, when it was first seen with this signature, and whether it could not be decoded."""

    signature: Signature
    since_s: float
    is_unreadable: bool = False


class PictureFolder:
    """A `Source` of the pictures in a folder, in the order of the names that are there at a time.

    It has no thread: `next` scans the folder. A frame counts as captured when its file is read. A file that was given
    is not given again while it stays unchanged, whatever happens to its frame.
    """

    def __init__(self, settings: FolderSettings) -> None:
        self._settings = settings
        self._closed = threading.Event()
        self._status = SourceStatus(SourceState.CONNECTING, decoder="folder")
        self._ready: deque[tuple[Path, _Sighting]] = deque()
        self._sightings: dict[str, _Sighting] = {}
        self._given: dict[str, Signature] = {}
        self._doubtful: set[str] = set()
        self._is_settled = False
        self._scanned_s = float("-inf")
        self._period_s = 1 / settings.fps if settings.fps else 0.0
        self._due_s = float("-inf")
        self._changes: Generator[object, None, None] | None = None
        self._watched = 0

    def next(self, timeout_s: float) -> Frame | None:
        """The next picture; None if none came in that time. Raises `SourceEnded`."""
        until_s = time.monotonic() + timeout_s
        if (early_s := self._due_s - time.monotonic()) > 0:
            is_closed = self._closed.wait(min(early_s, timeout_s))
            if early_s > timeout_s and not is_closed:
                return None
        while not self._closed.is_set():
            if not self._ready:
                self._scan()
            while self._ready:
                if (frame := self._frame(*self._ready.popleft())) is not None:
                    self._due_s = time.monotonic() + self._period_s
                    return frame
            if not self._settings.watch and (self._is_settled or self._status.state is SourceState.LOST):
                break
            if (left_s := until_s - time.monotonic()) <= 0:
                return None
            self._wait(left_s)
        why = self._status.explained
        self._status = replace(self._status, state=SourceState.ENDED)
        raise SourceEnded(f"{self._settings.path} has ended" + (f": {why}" if why else ""))

    def done(self, frame: Frame) -> None:
        """Move or leave the file of the frame, as configured; leave one that has taken its name by now.

        If the folder cannot be changed, that is only logged.
        """
        if frame.path is None or self._settings.answered == "leave":
            return
        try:
            if _signature(frame.path.stat()) != self._given.get(frame.path.name):
                return  # a picture that is still to be read
            _move(frame.path, self._settings.path / "done")
        except OSError as error:
            _log.warning("%s was answered but cannot be moved: %s", frame.path, error.strerror)

    @property
    def status(self) -> SourceStatus:
        """The current state."""
        return self._status

    def close(self) -> None:
        """Stop watching. Harmless twice."""
        self._closed.set()
        changes, self._changes = self._changes, None
        if changes is not None:
            try:
                changes.close()
            except ValueError:
                return  # another thread is waiting and sees the event
        self._status = replace(self._status, state=SourceState.ENDED)

    def _scan(self) -> None:
        """Scan the folder: queue settled files, remember the others."""
        now_s, wall_s = time.monotonic(), time.time()
        self._scanned_s = now_s
        try:
            with os.scandir(self._settings.path) as entries:
                found = {entry.name: entry for entry in entries}
            stats, is_whole = _statuses(entry for name, entry in found.items() if _is_picture(name))
        except FileNotFoundError:
            self._lose("there is no such folder")
            return
        except OSError as error:
            self._lose(error.strerror or "it cannot be read")
            return
        if self._status.state is not SourceState.LIVE:
            self._status = replace(self._status, state=SourceState.LIVE, explained="")
        self._given = {name: one for name, one in self._given.items() if name in found}
        sightings: dict[str, _Sighting] = {}
        for name in sorted(stats):
            status = stats[name]
            signature = _signature(status)
            if not stat.S_ISREG(status.st_mode) or self._given.get(name) == signature:
                continue
            sighting = self._sightings.get(name)
            if sighting is None or sighting.signature != signature:
                sighting = _Sighting(signature, now_s)
            age_s = max(now_s - sighting.since_s, wall_s - status.st_mtime)
            if age_s >= (_UNFINISHED_S if sighting.is_unreadable else self._settings.settle_s):
                self._ready.append((self._settings.path / name, sighting))
            else:
                sightings[name] = sighting
        self._sightings = sightings
        self._is_settled = is_whole and not sightings
        while self._settings.keep == "latest" and len(self._ready) > 1:
            path, older = self._ready.popleft()
            self._given[path.name] = older.signature
            self._status = replace(self._status, superseded=self._status.superseded + 1)

    def _lose(self, why: str) -> None:
        if self._status.state is not SourceState.LOST:
            _log.warning("source %s is lost: %s", self._settings.path, why)
            lost = int(self._status.state is SourceState.LIVE)
            self._status = replace(
                self._status, state=SourceState.LOST, explained=why, reconnects=self._status.reconnects + lost
            )
        self._sightings = {}

    def _frame(self, path: Path, sighting: _Sighting) -> Frame | None:
        """The frame of a file; None if it is gone, changed or unfinished, or cannot be read and was moved away."""
        signature = sighting.signature
        data: bytes | None = None
        read: Signature | None = None
        why = f"the file has more than {self._settings.max_bytes} bytes"
        try:
            data, read = _contents(path, self._settings.max_bytes)
        except OSError as error:  # mostly gone: the next scan tells
            if error.errno in _REFUSED or (error.errno == errno.EIO and path.name in self._doubtful):
                read, why = signature, str(error.strerror)
            elif error.errno == errno.EIO:  # of the file, or of a share that is away: the next try tells
                _log.warning("%s cannot be read and is tried again: %s", path, error.strerror)
                self._doubtful.add(path.name)
        if read != signature:
            self._is_settled = False
            return None
        captured_s, unix_s = time.monotonic(), time.time()
        number = self._status.captured + 1
        self._given[path.name] = signature
        try:
            if data is None:
                raise InvalidRequest(why)
            pixels = picture_codec.decode(data, "rgb", self._settings.max_pixels)
        except InvalidRequest as error:
            if data is not None and not sighting.is_unreadable and unix_s - signature[1] / 1e9 < _UNFINISHED_S:
                del self._given[path.name]
                self._sightings[path.name] = replace(sighting, is_unreadable=True)
                self._is_settled = False
            else:
                self._fail(path, str(error))
            return None
        luma = picture_codec.recolored(pixels, "gray")[:, :, 0]
        height, width = luma.shape
        self._doubtful.discard(path.name)
        self._status = replace(self._status, given=self._status.given + 1, width=width, height=height)
        return Frame(number, captured_s, unix_s, pixels, luma, path)

    def _fail(self, path: Path, why: str) -> None:
        try:
            _move(path, self._settings.path / "failed")
        except OSError as error:
            if error.errno == errno.EIO:  # the share is away: read it once that is back
                del self._given[path.name]
                self._is_settled = False
                return
            _log.warning("%s cannot be moved: %s", path, error.strerror)
        self._doubtful.discard(path.name)
        self._status = replace(self._status, undecodable=self._status.undecodable + 1)
        _log.warning("%s cannot be read: %s", path, why)

    def _wait(self, left_s: float) -> None:
        """Wait until the folder may have changed, a file may have settled, or the time is up."""
        until_s = time.monotonic() + left_s
        if not self._is_settled:
            until_s = min(until_s, self._scanned_s + self._settings.settle_s)
        until_s = min(until_s, self._scanned_s + _SCAN_S)
        if self._begins_to_watch():
            return  # changes between the last scan and now were not notified
        while not self._closed.is_set() and (left_s := until_s - time.monotonic()) > 0:
            changes = self._changes
            if changes is None or left_s < _WAIT_MS / 1000:
                self._closed.wait(min(left_s, _WAIT_MS / 1000))
            elif (told := next(changes, None)) is None:
                self._changes = None  # it ended by itself
            elif told:
                return

    def _begins_to_watch(self) -> bool:
        """Start change notifications if the folder exists; whether they have just begun."""
        from watchfiles import watch  # needs an extra

        try:
            inode = self._settings.path.stat().st_ino
            if inode == self._watched and self._changes is not None:
                return False
            if self._changes is not None:  # another folder by that name
                self._changes.close()
            self._watched = inode
            self._changes = watch(
                self._settings.path, watch_filter=None, debounce=_WAIT_MS, step=20, stop_event=self._closed,
                rust_timeout=_WAIT_MS, yield_on_timeout=True, recursive=False,
            )  # fmt: skip
            next(self._changes, None)
        except (OSError, RuntimeError):  # gone, or out of watches, which is a RuntimeError: it is still scanned
            self._changes = None
            return False
        return True


def _is_picture(name: str) -> bool:
    """Judged by name. Hidden files are unfinished."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in _SUFFIXES


def _signature(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _statuses(entries: Iterable[os.DirEntry[str]]) -> tuple[dict[str, os.stat_result], bool]:
    """The status of each file by its name, without links to nothing, and whether no file is gone since the listing.

    Raises `OSError` for any other reason: such a file was not removed.
    """
    found: dict[str, os.stat_result] = {}
    is_whole = True
    for entry in entries:
        try:
            found[entry.name] = entry.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise OSError(error.errno, f"{entry.name}: {error.strerror}") from None
            is_whole = is_whole and entry.is_symlink()
    return found, is_whole


def _contents(path: Path, max_bytes: int) -> tuple[bytes | None, Signature]:
    """The bytes of a file, None if there are too many, and its signature after reading."""
    # Do not hang if the name now belongs to a pipe.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        data = file.read(max_bytes + 1)
        status = os.fstat(descriptor)
    return (data if len(data) <= max_bytes else None), _signature(status)


def _move(path: Path, folder: Path) -> None:
    """Move a file; keep another of its name if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    target, count = folder / path.name, 0
    while target.exists():
        count += 1
        target = folder / f"{path.stem}-{count}{path.suffix}"
    shutil.move(path, target)
