"""Files that may be replaced while the program runs: new contents take over, broken ones are refused."""

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
    """What changes when a file is written, replaced or pointed elsewhere (links followed); zeros where it is gone."""

    mtime_ns: int
    size_bytes: int
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Fingerprint:
        """As the file is now."""
        try:
            found = os.stat(path)
        except OSError:
            return cls(0, 0, 0, 0)
        return cls(found.st_mtime_ns, found.st_size, found.st_dev, found.st_ino)


class WatchedFiles(Generic[T]):
    """A value loaded from files, loaded anew when one of them has changed.

    `load` raises `ConfigError` where the files are wrong: at construction that error passes through, later
    it is logged once and the value stays as it was. There is no thread: `get` looks at the files, which
    costs a microsecond or two each, and it may be called from any thread.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._lock = threading.Lock()
        self._state = self._look()
        self._value = load()

    def get(self) -> T:
        """The value as of the last good state of the files."""
        state = self._look()
        if state != self._state:
            with self._lock:
                if state != self._state:
                    self._renew(state)
        return self._value

    def _renew(self, state: list[Fingerprint]) -> None:
        names = ", ".join(str(path) for path in self._paths)
        try:
            self._value = self._load()
            _log.info("loaded the new %s", names)
        except ConfigError as error:
            _log.error("kept the previous %s: %s", names, error)
        # Taken before loading, so that a change during the load is seen by the next look.
        self._state = state

    def _look(self) -> list[Fingerprint]:
        return [Fingerprint.of(path) for path in self._paths]


REST_IN_PLACE_S = 60.0
"""Time without changes after which a file written in place is read, since nothing else shows that it is complete.
Half a file can be valid: a policy without its last rules."""


class SettledFile(Generic[T]):
    """A file that a person edits, looked at again and again; `take` gets what is new, on the thread that calls `poll`.

    A file that takes the place of the former one (`mv new policy.yaml`) is whole when it comes: it is read once it has
    stayed the same from one look to the next. One that is written in place must rest for `REST_IN_PLACE_S` first, and
    so must one that was seen to grow, or that was gone in between. A file that is wrong or gone leaves what was read
    before in force, and says so once. `take` says why it will not have the new, or nothing; it must not raise.

    `load` reads the file, at construction at once; it raises `ConfigError` where that is wrong. `name` is what is read,
    for the log. `clock` gives seconds that only grow.
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
        """Why the file's content is not in force; empty if it is."""

    def poll(self) -> None:
        """Look once. Not to be called from two threads at a time."""
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
            return  # it changed while it was read, so it is read again once it has settled
        self._read_as, self._in_place = found, False
        if value is not None and value != self.value:
            problem = self._take(value)
            if not problem:
                self.value = value
        if problem:
            _log.error("kept the previous %s: %s", self._name, problem)
        self.problem = problem

    def _note_change(self, found: Fingerprint, now_s: float) -> None:
        """Begin to wait for it to settle: for a moment where another file has come whole, else for a while."""
        # Another file that came while the former one was there was moved into place; a change of it shows otherwise.
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
