"""The choice among signed releases for this device, and its start time, made by a party that may only choose."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from upwell.edge.updates.version_state import read_document
from upwell.shared.files import write_whole

_log = logging.getLogger(__name__)


class FleetChoice(BaseModel):
    """`choice.json`: `sequence` None is the newest, 0 is what agent.yaml names; `shadow` is the shadow release, None
    for none."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sequence: int | None = Field(None, ge=0)
    not_before_unix_s: float | None = None
    shadow: int | None = Field(None, ge=1)


class KeptFleetChoice:
    """A choice that survives the process. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._choice = read_document(path, FleetChoice) or FleetChoice()
        except OSError:
            self._choice = FleetChoice()

    @property
    def now(self) -> FleetChoice:
        """The present choice."""
        return self._choice

    def keep(self, choice: FleetChoice) -> bool:
        """Set the choice; returns whether it changed. A failing disk is logged."""
        with self._lock:
            if choice == self._choice:
                return False
            self._choice = choice
            try:
                write_whole(self._path, choice.model_dump_json().encode(), 0o600)
            except OSError as error:
                _log.error(
                    "%s: the choice of a release cannot be saved and is lost on a restart: %s",
                    self._path,
                    error.strerror,
                )
        return True
