"""How the trial of a version ended, noted on the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from upwell.edge.updates.version_store import VersionStore

_log = logging.getLogger(__name__)


class TrialVerdict:
    """A `Judge` that notes on the disk how the trial of a version ended."""

    def __init__(self, store: VersionStore, version: int) -> None:
        self._store, self._version = store, version

    def rejected(self, reason: str) -> None:
        """Never to be installed again."""
        _in_background("roll-back", partial(self._store.condemn, self._version, reason))

    def proven(self) -> None:
        """Nobody goes back from it any more."""
        _in_background("trial", partial(self._store.prove, self._version))


def _in_background(name: str, job: Callable[[], object]) -> None:
    """Do `job` on a thread of its own; what it raises is logged."""

    def run() -> None:
        try:
            job()
        except Exception:  # noqa: BLE001 (the boundary of a thread)
            _log.exception("%s failed", name)

    threading.Thread(target=run, name=name, daemon=True).start()
