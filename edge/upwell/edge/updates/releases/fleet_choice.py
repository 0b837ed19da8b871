"""The release that the fleet service has chosen for this device, kept over restarts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from upwell.shared.files import StateFile


class FleetChoice(BaseModel):
    """`choice.json`: `sequence` None is the newest, 0 is what agent.yaml names; `shadow` is the shadow release, None
    for none."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sequence: int | None = Field(None, ge=0)
    not_before_unix_s: float | None = None
    shadow: int | None = Field(None, ge=1)


class KeptFleetChoice:
    """A choice that survives the process. Thread-safe. `is_first`: no other was heard before, ever.

    That survives, too, since a choice may hold only from tonight on.
    """

    def __init__(self, path: Path) -> None:
        self._is_awaited = not path.exists()
        self._file = StateFile(path, "the choice of a release", "the newest is taken")
        self._lock = threading.Lock()
        self._choice, self.is_first = self._file.read(_parsed, (FleetChoice(), False))

    @property
    def now(self) -> FleetChoice:
        """The present choice."""
        return self._choice

    def keep(self, choice: FleetChoice) -> bool:
        """Set the choice; returns whether it changed. A failing disk is logged."""
        with self._lock:
            is_news = choice != self._choice
            if is_news or self._is_awaited:
                self.is_first, self._is_awaited = self._is_awaited, False
                self._choice = choice
                self._file.write({**choice.model_dump(), "is_first": self.is_first})
            return is_news


def _parsed(kept: Any) -> tuple[FleetChoice, bool]:
    return FleetChoice.model_validate(kept), kept.get("is_first") is True
