"""Looks at the model folders at intervals and has the service take over what has changed and come to rest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from upwell.cloud.repository.repository import Files
from upwell.cloud.service.control import ModelRepository

_ENDING_S = 5.0

log = logging.getLogger("upwell.cloud")


class RepositoryWatch:
    """A thread that looks every `interval_s` seconds, and loads in itself.

    A model is taken over once two looks in a row have found the same files, so that a copy under way is left
    alone. There is no other sign of its end, so a copy that halts for longer may be tried too early: it fails, what was
    in force stays, and the next change is tried again. A look costs a few system calls per file.
    """

    def __init__(self, repository: ModelRepository, interval_s: float) -> None:
        self._repository = repository
        self._interval_s = interval_s
        self._seen: Mapping[str, Mapping[str, Files] | None] = {}
        self._readable = True
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repository watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A load under way is waited for, but not for ever."""
        self._ending.set()
        self._thread.join(_ENDING_S)

    def look(self) -> None:
        """Look once, and load what has changed since the last load and not since the last look."""
        try:
            seen = self._repository.look()
        except OSError as error:
            if self._readable:
                log.error("the model repository cannot be read; what is served stays: %s", error.strerror)
            self._readable = False
            return
        self._readable = True
        before, self._seen = self._seen, seen
        for name, files in seen.items():
            if files is not None and files == before.get(name) and self._repository.is_new(name, files):
                self._repository.take_over(name, files)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            try:
                self.look()
            except Exception:  # the watch goes on, whatever one model did to it
                log.exception("looking at the model repository failed")
