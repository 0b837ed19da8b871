"""The folder of a model's versions, and what a device remembers of them: `state.json`, and `floor.json`, which
outlives it.
"""

from __future__ import annotations

import hashlib
import logging
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import NO_TRUST, open_bundle
from upwell.edge.updates.sources.base import FetchFailed
from upwell.shared.files import open_plain, write_whole

FOLDER_NAME = "bundles"
STATE_NAME = "state.json"
FLOOR_NAME = "floor.json"
ROLLBACK_REQUEST_NAME = "rollback.json"
"""The request to go back to the previous version."""
ROLLBACK_ANSWER_NAME = "rollback-answer.json"
ROLLBACK_TAKEN_NAME = "rollback-taken.json"
"""The request being carried out."""

_LONGEST_NAME = 100
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "-_")
_MOST_KEPT = 2
_MOST_BYTES = 1 << 20
_File = TypeVar("_File", bound=BaseModel)
_log = logging.getLogger(__name__)


def versions_folder(state_dir: Path, model: str) -> Path:
    """The folder of a model's versions: valid on every file system, and different for every model.

    Lower-case letters, digits, `-` and `_` stand for themselves, all other characters for their bytes in UTF-8.
    """
    name = "".join(
        char if char in _PLAIN else "".join(f"%{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in model
    )
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return state_dir / FOLDER_NAME / name


def read_document(path: Path, kind: type[_File]) -> _File | None:
    """The content of a file in the folder; None if it is missing or unreadable. Raises `OSError`."""
    try:
        with open_plain(path) as file:
            return kind.model_validate_json(file.read(_MOST_BYTES))
    except (FileNotFoundError, ValidationError):
        return None


class Look(BaseModel):
    """The outcome of the last offer: installed, or refused for a reason.

    `key` identifies the offer and everything that its verification depended on. While it is unchanged there is
    nothing to do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = ""
    refusal: Refusal | None = None
    message: str = ""


class VersionState(BaseModel):
    """`state.json`. Version 0 is none of the installed ones: the factory's bundle, if there is one.

    `is_on_trial`: the current version is still on trial, with a previous one to go back to. `tries` counts how often
    the agent ended while it tried the offer `trying`, or, if that is empty, while the current version was on trial.
    `stayed_in` is the boot in which that version has been served for `STAYS_S` since its last start, empty if in none.
    `proven` is the greatest version that has ever passed its trial here and was not rolled back by hand since.
    `installed_unix_s` is when the current version was installed, 0 after going back to it.
    """

    # Fields added by a later Upwell must not cost the bundles when this version is installed again.
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    name: str = ""
    current: int = Field(0, ge=0)
    previous: int = Field(0, ge=0)
    installed_unix_s: float = 0.0
    is_on_trial: bool = False
    proven: int = Field(0, ge=0)
    blocklist: dict[int, str] = Field({}, alias="condemned")
    trying: str = ""
    tries: int = 0
    stayed_in: str = ""
    look: Look = Look()

    @property
    def floor(self) -> int:
        """No smaller version is accepted from a source."""
        return max(self.proven, self.previous if self.is_on_trial else self.current)


class Floor(BaseModel):
    """`floor.json`: the part of `state.json` that must survive the loss of that file. It is written right after it."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    current: int = Field(0, ge=0)
    floor: int = Field(0, ge=0)
    blocklist: dict[int, str] = Field({}, alias="condemned")

    @classmethod
    def of(cls, state: VersionState) -> Floor:
        """The part of this state that it holds."""
        return cls(current=state.current, floor=state.floor, blocklist=state.blocklist)

    def why_lost(self, state: VersionState | None) -> str:
        """Why `state` is not what was written last, as the end of a sentence; empty if it may be.

        A crash may leave the floor one step behind the state, never ahead of it.
        """
        if state is None:
            return "is gone or cannot be read"
        was_left = state.current in self.blocklist and state.current not in state.blocklist
        was_newer = self.current > state.current and self.current not in state.blocklist
        return "is an older copy" if was_left or was_newer else ""


class Record:
    """What a version store remembers, on disk. One thread at a time changes it.

    It is read from `state.json`, or rebuilt from the versions in `folder` if that is lost. Raises `OSError`, and
    `ConfigError` if a trusted key cannot be read.
    """

    def __init__(self, folder: Path, subject: str, trust: Trust, factory: Bundle | None) -> None:
        self._folder = folder
        self._subject = subject
        self.notice = ""
        """What was lost or damaged since the start, and the consequences; empty if nothing was."""
        self._floor = read_document(folder / FLOOR_NAME, Floor) or Floor()
        path = folder / STATE_NAME
        found = read_document(path, VersionState)
        self.state = found or VersionState()
        is_new = not (path.exists() or (folder / FLOOR_NAME).exists() or has_versions(folder))
        why = "" if is_new else self._floor.why_lost(found)
        if why:
            self.state = rebuilt_state(folder, trust, self._floor, factory)
            current = self.state.current
            going_on = f"the installed version {current}" if current else "nothing installed"
            self.note(f"{path} {why}; going on with {going_on}")
        if is_new or why or Floor.of(self.state) != self._floor:
            self.keep({})

    def note(self, text: str) -> None:
        """Report it in the log and in the agent's health."""
        _log.warning("%s: %s", self._subject, text)
        if text not in self.notice:
            self.notice = "; ".join(filter(None, (self.notice, text)))

    def keep(self, update: Mapping[str, Any]) -> None:
        """Like `save`; if the disk refuses, the state holds for this run of the agent."""
        try:
            self.save(update)
        except FetchFailed as error:
            self.state = self.state.model_copy(update=dict(update))
            _log.error("%s: %s", self._subject, error)

    def save(self, update: Mapping[str, Any]) -> None:
        """Change the state, on disk first. If that fails, raises `FetchFailed` and changes nothing."""
        state = self.state.model_copy(update=dict(update))
        try:
            write_whole(self._folder / STATE_NAME, state.model_dump_json(indent=2, by_alias=True).encode(), 0o600)
        except OSError as error:
            raise unwritable(self._folder, error) from None
        self.state = state
        self._save_floor()

    def _save_floor(self) -> None:
        """Write what must outlive the state, after it. If the disk refuses, the next save writes it."""
        floor = Floor.of(self.state)
        if floor == self._floor and (self._folder / FLOOR_NAME).exists():
            return
        try:
            write_whole(self._folder / FLOOR_NAME, floor.model_dump_json(indent=2, by_alias=True).encode(), 0o600)
            self._floor = floor
        except OSError as error:
            _log.error("%s: %s", self._subject, unwritable(self._folder, error))


def unwritable(folder: Path, error: OSError) -> FetchFailed:
    """The message about a folder that cannot be written."""
    return FetchFailed(f"{folder}: cannot be written: {error.strerror or error}")


def has_versions(folder: Path) -> bool:
    """Whether bundles were stored in this folder before. Raises `OSError`."""
    return folder.is_dir() and any(True for _ in _versions(folder))


def rebuilt_state(folder: Path, trust: Trust, floor: Floor, factory: Bundle | None) -> VersionState:
    """The state rebuilt for a version store that lost it: the newest two versions signed by a trusted key.

    Whether the newest has passed its trial is unknown, so it is on trial again if there is one to go back to. Without
    any version trusted now, those that are at least complete stay, for a start with other keys. Raises `OSError`, and
    `ConfigError` if a trusted key cannot be read.
    """
    trusted: list[Bundle] = []
    whole: list[Bundle] = []
    for version in sorted(_versions(folder), reverse=True):
        if version in floor.blocklist:
            continue
        for kept, keys in ((trusted, trust), (whole, NO_TRUST)):
            bundle = _opened(folder, version, keys)
            if bundle is not None:
                kept.append(bundle)
                break
        if len(trusted) == _MOST_KEPT:
            break
    kept = trusted or whole[:_MOST_KEPT]
    versions = [bundle.version for bundle in kept] + [0] * _MOST_KEPT
    return VersionState(
        name=kept[0].manifest.name if kept and kept[0].manifest else "",
        current=versions[0],
        previous=versions[1],
        is_on_trial=bool(versions[1] or (kept and factory is not None)),
        proven=floor.floor,
        blocklist=floor.blocklist,
    )


def _opened(folder: Path, version: int, trust: Trust) -> Bundle | None:
    try:
        bundle = open_bundle(folder / str(version), trust)
    except BundleRefused as error:
        _log.warning("%s", error)
        return None
    return bundle if 0 < bundle.version == version else None


def _versions(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        if path.name.isdecimal() and path.name == str(int(path.name)) and path.is_dir():
            yield int(path.name)
