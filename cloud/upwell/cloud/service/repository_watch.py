"""Checks the model folders at intervals, and loads what has changed and come to rest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from upwell.cloud.repository.model_folders import Files
from upwell.cloud.service.model_repository import ModelRepository

_ENDING_S = 5.0

log = logging.getLogger("upwell.cloud")


class RepositoryWatch:
    """A thread that checks every `interval_s` seconds and loads models itself.

    A model is loaded once two checks in a row have found the same files, so that a copy in progress is left alone. A
    copy has no other sign of its end, so one that pauses for longer may be tried too early: that load fails, the old
    version stays in force, and the next change is tried again. A check costs a few system calls per file.
    """

    def __init__(self, repository: ModelRepository, interval_s: float) -> None:
        self._repository = repository
        self._interval_s = interval_s
        self._seen: Mapping[str, Mapping[str, Files] | None] = {}
        self._readable = True
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repository watch", daemon=True)

    def start(self) -> None:
        """Start checking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking. Waits for a load in progress, for a limited time."""
        self._ending.set()
        self._thread.join(_ENDING_S)

    def look(self) -> None:
        """Check once, and load what has changed since the last load but not since the last check."""
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
            except Exception:  # the watch goes on, whatever one model did
                log.exception("checking the model repository failed")
