"""`state.json`: what a device remembers of the bundles of one model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.base import Bundle, BundleRefused, Refusal
from upwell.edge.bundle.verify import open_bundle

_MOST_KEPT = 2
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


def read_state(path: Path) -> ShelfState | None:
    """The state in a file: of an empty shelf where there is none, None where it cannot be read. Raises `OSError`."""
    try:
        return ShelfState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return ShelfState()
    except ValidationError:
        return None


def rebuilt_state(folder: Path, *, has_factory: bool) -> ShelfState:
    """What can be told of a shelf whose state is lost: the newest two versions that are what their manifests say.

    Who signed them is checked when they are opened. Whether the newest has proven itself nobody knows, and it may even
    be one that was rolled back, so it is on trial again where there is one to go back to. Raises `OSError`.
    """
    kept: list[Bundle] = []
    for version in sorted(_versions(folder), reverse=True):
        try:
            bundle = open_bundle(folder / str(version))
        except BundleRefused as error:
            _log.warning("%s", error)
            continue
        if 0 < bundle.version == version:
            kept.append(bundle)
        if len(kept) == _MOST_KEPT:
            break
    versions = [bundle.version for bundle in kept] + [0] * _MOST_KEPT
    _log.warning(
        "%s cannot be read; going on with %s, and what was rolled back here may be offered again",
        folder / "state.json",
        f"the installed version {versions[0]}" if kept else "nothing installed",
    )
    return ShelfState(
        name=kept[0].manifest.name if kept and kept[0].manifest else "",
        current=versions[0],
        previous=versions[1],
        is_on_trial=bool(versions[1] or (kept and has_factory)),
    )


def _versions(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        if path.name.isdecimal() and path.name == str(int(path.name)) and path.is_dir():
            yield int(path.name)
