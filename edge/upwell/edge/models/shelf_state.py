"""`state.json`: what a device remembers of the bundles of one model."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.base import Refusal

_log = logging.getLogger(__name__)


class Look(BaseModel):
    """What became of the last offer that was dealt with: installed, or refused for a reason.

    `key` names the offer and all that its verification depended on. While it stays the same there is nothing to do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = ""
    refusal: Refusal | None = None
    message: str = ""


class ShelfState(BaseModel):
    """`state.json`. Version 0 is none of these: the factory's bundle, if there is one.

    `is_on_trial`: the current version has yet to prove itself, with another before it to go back to. `tries` counts how
    often the agent ended while it tried the offer `trying`, or where that is empty, while the current one was on trial.
    """

    # What a later Upwell adds must not cost the bundles after going back to this one.
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = ""
    current: int = Field(0, ge=0)
    previous: int = Field(0, ge=0)
    is_on_trial: bool = False
    condemned: dict[int, str] = {}
    trying: str = ""
    tries: int = 0
    look: Look = Look()


def read_state(path: Path) -> ShelfState:
    """The state in a file; that of an empty shelf where there is none, or none that can be read. Raises `OSError`."""
    try:
        return ShelfState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return ShelfState()
    except ValidationError:
        _log.warning("%s cannot be read; what was installed is fetched again", path)
        return ShelfState()
