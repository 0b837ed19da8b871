"""Files that may be replaced while the program runs: new contents take effect, broken ones are refused."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from upwell.shared.errors import ConfigError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Fingerprint(NamedTuple):
    """Values that change when a file is written, replaced or re-linked (links followed); zeros if it is gone."""

    mtime_ns: int
    size_bytes: int
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Fingerprint:
        """The fingerprint of the file now."""
        try:
            found = os.stat(path)
        except OSError:
            return cls(0, 0, 0, 0)
        return cls(found.st_mtime_ns, found.st_size, found.st_dev, found.st_ino)


class WatchedFiles(Generic[T]):
    """A value loaded from files, and loaded again when one of them has changed.

    `load` raises `ConfigError` if the files are wrong: the constructor passes that on; later it is logged once and the
    value stays. A file that is written in place must not have changed for `rest_s`, if half of it may be valid. There
    is no thread: `get` checks the files itself, for one or two microseconds each. Thread-safe.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T], rest_s: float = 0.0) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._rest_s = rest_s
        self._lock = threading.Lock()
        self._state = self._look()
        self._resting: tuple[list[Fingerprint], float] | None = None
        self._value = load()

    def get(self) -> T:
        """The value of the last valid state of the files."""
        state = self._look()
        if state != self._state:
            with self._lock:
                if state != self._state and not self._may_be_half(state):
                    self._renew(state)
        return self._value

    def _may_be_half(self, state: list[Fingerprint]) -> bool:
        """Whether a file was written in place just now. One that was moved into place is whole, as is one that neither
        this process nor the file's own time has seen change for long enough.
        """
        changed = zip(self._state, state, strict=True)
        in_place = [now for was, now in changed if now != was and now.inode and was.inode in (0, now.inode)]
        if not self._rest_s or not in_place:
            return False
        now_s = time.monotonic()
        if self._resting is None:
            _log.warning(
                "%s is being written in place: it takes effect once it has not changed for %.0f s",
                self._names, self._rest_s,
            )  # fmt: skip
        if self._resting is None or self._resting[0] != state:
            self._resting = state, now_s
        age_s = time.time() - max(one.mtime_ns for one in in_place) / 1e9
        return max(age_s, now_s - self._resting[1]) < self._rest_s

    def _renew(self, state: list[Fingerprint]) -> None:
        try:
            value = self._load()
        except ConfigError as error:
            problem = str(error)
        else:
            problem = ""
        if self._look() != state:
            return  # changed while it was read, so it is read again
        self._state, self._resting = state, None
        if problem:
            _log.error("kept the previous %s: %s", self._names, problem)
        else:
            self._value = value
            _log.info("loaded the new %s", self._names)

    @property
    def _names(self) -> str:
        return ", ".join(str(path) for path in self._paths)

    def _look(self) -> list[Fingerprint]:
        return [Fingerprint.of(path) for path in self._paths]


REST_IN_PLACE_S = 60.0
"""Time without changes after which a file written in place is read; nothing else shows that it is complete. Half a file
can be valid, such as a policy without its last rules."""


class SettledFile(Generic[T]):
    """A file that a person edits, checked on each `poll`; `take` gets new content, on the thread that calls `poll`.

    A file that replaces the former one (`mv new policy.yaml`) is complete at once: it is read when two checks in a row
    find the same. A file that is written in place must be unchanged for `REST_IN_PLACE_S` first; so must one that was
    seen to grow, or that was missing in between. If the file is wrong or missing, the former content stays in force,
    which is logged once. `take` returns why it refuses the content, or ""; it must not raise.

    `load` reads the file, in the constructor too; it raises `ConfigError` if the file is wrong. `name` is the name of
    the content in the log. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        path: Path,
        load: Callable[[], T],
        take: Callable[[T], str],
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._load = load
        self._take = take
        self._name = name
        self._clock = clock
        self._read_as = self._seen = Fingerprint.of(path)
        self._changed_s = clock()
        self._in_place = False
        self.value = load()
        self.problem = ""
        """Why the file's content is not in force; "" if it is."""

    def poll(self) -> None:
        """Check the file once. Not thread-safe."""
        now_s, found = self._clock(), Fingerprint.of(self._path)
        if found != self._seen:
            self._note_change(found, now_s)
            return
        if found == self._read_as or (self._in_place and now_s - self._changed_s < REST_IN_PLACE_S):
            return
        value, problem = None, ""
        try:
            value = self._load()
        except ConfigError as error:
            problem = str(error)
        if Fingerprint.of(self._path) != found:
            return  # changed while it was read, so it is read again once it has settled
        self._read_as, self._in_place = found, False
        if value is not None and value != self.value:
            problem = self._take(value)
            if not problem:
                self.value = value
        if problem:
            _log.error("kept the previous %s: %s", self._name, problem)
        self.problem = problem

    def _note_change(self, found: Fingerprint, now_s: float) -> None:
        """Start waiting for the file to settle: until the next check if it was replaced as a whole, else longer."""
        # If the inode changes while there was a file, the new one was moved into place; a later change would show
        # otherwise.
        was_there = self._seen.inode != 0
        in_place = (found.device, found.inode) == (self._seen.device, self._seen.inode) or not was_there
        if in_place and not self._in_place and found.inode:
            _log.warning(
                "%s is being written in place, so it takes effect once it has not changed for %.0f s. "
                "A new file that is moved into place (mv) takes effect at once and is never read half-written",
                self._path, REST_IN_PLACE_S,
            )  # fmt: skip
        self._seen, self._changed_s = found, now_s
        self._in_place = in_place if found.inode else self._in_place
