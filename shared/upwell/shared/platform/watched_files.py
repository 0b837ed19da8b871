"""Files that may be replaced while the program runs: new contents take over, broken ones are refused."""

from __future__ import annotations

import logging
import os
import threading
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
