"""The bundles of a device, version beside version, and which of them is served after the next start.

`state_dir/bundles/<model>/` holds

- `state.json`: the current and the previous version, those never to be installed again, and the last offer;
- `floor.json`: the part of it that must not be lost, above all the smallest version accepted;
- `<version>/`: a bundle, complete and verified before it got this name;
- `incoming/`: what is being fetched; `rollback.json`: a request to go back (`rollback_by_hand`).

`state.json` is replaced atomically and is the only authority. What it does not name is deleted at the next start, so
a crash between two steps costs only the step. If it is missing, unreadable or an older copy, which `floor.json`
reveals, it is rebuilt from the versions in the folder: a device does not go back to an older version because a file
was lost.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from upwell.edge.bundle.bundle import MANIFEST_NAME, SIGNATURE_NAME, Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import open_archive, open_bundle
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.version_state import (
    FLOOR_NAME,
    ROLLBACK_ANSWER_NAME,
    ROLLBACK_REQUEST_NAME,
    ROLLBACK_TAKEN_NAME,
    STATE_NAME,
    Look,
    Record,
    VersionState,
    unwritable,
    versions_folder,
)
from upwell.shared.errors import ConfigError
from upwell.shared.files import sync_folder, sync_tree, write_whole
from upwell.shared.platform.system_clock import boot_id

INCOMING_NAME = "incoming"

_DRAFT_NAME = ".new"
_MOST_BLOCKED = 100
_MOST_TRIES = 3
GONE_BACK = "the previous release was chosen"
"""The reason for not installing a release again after going back from it, unless it is chosen again. It stands in
state.json and is compared there, so it must not be reworded.
"""
STAYS_S = 60.0
"""A version that was served for so long did not fail if the device then lost its power."""
_LONGEST_REASON = 500
_BEING_WRITTEN = (f".{ROLLBACK_REQUEST_NAME}.", f".{ROLLBACK_ANSWER_NAME}.")
"""Another process or thread is writing its request or answer there."""
_BY_KEYS = frozenset({Refusal.UNSIGNED, Refusal.WRONG_SIGNATURE})
_log = logging.getLogger(__name__)


class AlreadyInstalled(Exception):
    """The fetched version is already installed, and the newest."""


class VersionStore:
    """The bundles of one model. Thread-safe, used by one process at a time (`StateDir` ensures that).

    `factory` is the verified bundle that agent.yaml names, if any: the one to fall back on, never replaced by an
    older one. One thread at a time installs. Raises `FetchFailed` if the folder cannot be used.
    """

    def __init__(
        self, state_dir: Path, model: str, trust: Trust, factory: Bundle | None = None, folder: Path | None = None
    ) -> None:
        """With `folder` the versions are there and are the releases of all models; `model` is their name in the log."""
        self.model = model
        self.subject = f"model {model}" if folder is None else model
        self.trust = trust
        self.factory = factory
        self.folder = folder or versions_folder(state_dir, model)
        self.downloads = self.folder / INCOMING_NAME
        """Where a source puts what it fetches."""
        self._lock = threading.Lock()
        self._served_from_s = time.monotonic()
        self.stands_in: int | None = None
        """The version that is served instead of the current one, which does not load here; None if that is served."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._record = Record(self.folder, self.subject, trust, factory)
            self._clear()
        except OSError as error:
            if self.folder.exists():
                raise unwritable(self.folder, error) from None
            # The disk cannot be written: nothing is installed, nor will be.
            _log.error("%s: %s", self.subject, unwritable(self.folder, error))
            self._record = Record(self.folder, self.subject, trust, factory)

    @property
    def state(self) -> VersionState:
        """The current state of the versions."""
        return self._record.state

    @property
    def served(self) -> int:
        """The version that is served: the current one, unless another stands in for it."""
        return self.state.current if self.stands_in is None else self.stands_in

    @property
    def notice(self) -> str:
        """What was lost or damaged on disk since the start, and the consequences; empty if nothing was."""
        return self._record.notice

    def open(self, before: int | None = None) -> Bundle | None:
        """The bundle to serve, verified again: the current one, or else the previous one, or the factory's; None
        without any.

        With `before`, only a smaller version is acceptable. A damaged one is forgotten, so that it can be fetched
        again. One that only the current trusted keys reject stays, for a start with other keys. Both are logged.
        """
        for version in (self.state.current, self.state.previous):
            is_wanted = version and (before is None or version < before)
            bundle = self._verified(version) if is_wanted else None
            if bundle is not None:
                return self._going_on_with(bundle, before)
        factory = self.factory
        return (
            self._going_on_with(factory, before) if factory and (before is None or factory.version < before) else None
        )

    def _going_on_with(self, bundle: Bundle, before: int | None) -> Bundle:
        """The bundle; if it is below the floor, and was not requested as a predecessor, this is reported."""
        if before is None and bundle.version < self.state.floor:
            self._record.note(
                f"version {bundle.version} is served, although version {self.state.floor} was in use before"
            )
        return bundle

    def begin(self) -> None:
        """Count a start of the agent with the current version. One on trial that keeps ending the agent is rejected.

        The end of a boot in which it had stayed is not its fault: the device was switched off. Nor are ends in
        `trying`, until what is tried there is given up.
        """
        state = self.state
        given_up = _MOST_TRIES if state.trying else 0
        if not state.is_on_trial or state.tries < given_up:
            return
        tries = max(0, state.tries - given_up - (state.stayed_in not in ("", boot_id())))
        if tries >= _MOST_TRIES:
            self.block(state.current, f"the agent exited {tries} times while it was on trial")
            return
        with self._lock:
            self._record.keep({"tries": given_up + tries + 1, "stayed_in": ""})

    def stay(self) -> None:
        """Note it once the version on trial has been served for `STAYS_S`. Called from time to time."""
        with self._lock:
            is_news = self.state.is_on_trial and not self.state.stayed_in
            if is_news and time.monotonic() - self._served_from_s >= STAYS_S and (boot := boot_id()):
                self._record.keep({"stayed_in": boot})

    def install(self, fetched: Path) -> Bundle:
        """Verify an archive or a folder in `incoming`, and store it beside the others. It is not current yet.

        Raises `AlreadyInstalled`, `BundleRefused` with the reason, and `FetchFailed` if the disk refuses.
        """
        draft = self.folder / _DRAFT_NAME
        try:
            shutil.rmtree(draft, ignore_errors=True)
            return self._install(fetched, draft)
        except BundleRefused:
            raise
        except ConfigError as error:
            raise FetchFailed(str(error)) from None
        except OSError as error:
            raise unwritable(self.folder, error) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    @contextmanager
    def trying(self, key: str) -> Iterator[None]:
        """Load and test a bundle within the block. If that keeps killing the process, it is not tried again.

        `key` is that of its offer. Raises `BundleRefused` (`FAILED_SELF_TEST`) if the agent ended in the block
        before.
        """
        with self._lock:
            starts = 0 if self.state.trying else self.state.tries  # of the current version on trial
            tries = self.state.tries if self.state.trying == key else 0
            if tries >= _MOST_TRIES:
                raise BundleRefused(
                    Refusal.FAILED_SELF_TEST, None, f"the agent exited {_MOST_TRIES} times while trying it"
                )
            self._record.save({"trying": key, "tries": tries + 1})
        try:
            yield
        finally:
            with self._lock:
                if self.state.trying:
                    self._record.keep({"trying": "", "tries": starts if self.state.is_on_trial else 0})

    def stop_trying(self) -> None:
        """The agent ends now for another reason than the offer it tries."""
        with self._lock:
            if self.state.trying or self.state.tries:
                self._record.keep({"trying": "", "tries": 0})

    def commit(self, bundle: Bundle, key: str) -> None:
        """Make an installed bundle current, and delete all but it and the previous one.

        `key` is that of its offer. It is on trial until `prove` or `block` is called, if there is a previous one.
        """
        with self._lock:
            state, name = self.state, bundle.manifest.name if bundle.manifest else ""
            previous = self.served if self.served < bundle.version else 0
            is_on_trial = bool(previous or self.factory)
            update: dict[str, Any] = {
                "current": bundle.version,
                "previous": previous,
                "name": name,
                "look": Look(key=key),
            }
            update["proven"] = state.floor
            update["installed_unix_s"] = time.time()
            self._record.save(update | {"is_on_trial": is_on_trial, "tries": int(is_on_trial), "stayed_in": ""})
            self.stands_in = None
            self._served_from_s = time.monotonic()
        self._clear()
        shutil.rmtree(self.downloads, ignore_errors=True)

    def step_aside(self) -> None:
        """Admit an older version than the current one, which is served until that is installed."""
        with self._lock:
            version = self.state.current
            former = {"current": 0, "previous": version, "is_on_trial": False, "tries": 0, "proven": 0, "look": Look()}
            self._record.keep(former)
            self.stands_in = version

    def settle(self, look: Look) -> None:
        """Remember the outcome of an offer that is not installed, and delete what was fetched of it."""
        with self._lock:
            self._record.keep({"look": look})
        self._clear()
        shutil.rmtree(self.downloads, ignore_errors=True)

    def prove(self, version: int) -> None:
        """This version is no longer on trial."""
        with self._lock:
            if version == self.state.current:
                self._record.keep({"is_on_trial": False, "proven": max(version, self.state.proven)})

    def block(self, version: int, reason: str, floor: int | None = None) -> None:
        """Never install this version again. If it is current, the previous one replaces it; this is a refusal of it,
        unless the reason is `GONE_BACK`.

        Only a rollback by hand may lower the `floor`.
        """
        _log.warning("%s: version %d will not be installed here again: %s", self.subject, version, reason)
        with self._lock:
            newest = sorted({*self.state.blocklist, version})[-_MOST_BLOCKED:]
            reasons = {**self.state.blocklist, version: reason[:_LONGEST_REASON]}
            update: dict[str, Any] = {"blocklist": {one: reasons[one] for one in newest}}
            if version == self.stands_in:
                self.stands_in = None
            if version == self.state.current:
                message = f"version {version} was rolled back: {reasons[version]}"
                look = self.state.look.model_copy(update={"refusal": Refusal.BLOCKLISTED, "message": message})
                update["look"] = Look() if reason == GONE_BACK else look
                self.stands_in = None
            update |= self._without(version)
            self._record.keep(update if floor is None else update | {"proven": floor})

    def unblock(self, version: int) -> None:
        """Admit this version again: it was given up without a fault, and is wanted now."""
        with self._lock:
            blocked = {one: reason for one, reason in self.state.blocklist.items() if one != version}
            look = Look() if self.state.look.refusal is Refusal.BLOCKLISTED else self.state.look
            self._record.keep({"blocklist": blocked, "look": look})

    def _install(self, fetched: Path, draft: Path) -> Bundle:
        if fetched.is_dir():
            fetched.rename(draft)
            bundle = open_bundle(draft, self.trust)
            sync_tree(draft)
        else:
            bundle = open_archive(fetched, draft, self.trust)
        self._check_blocklist(bundle.version, fetched)
        name, expected = bundle.manifest.name if bundle.manifest else "", self._name
        if expected and name != expected:
            raise BundleRefused(
                Refusal.OTHER_MODEL, fetched, f"it is a bundle of {name!r}; expected one of {expected!r}"
            )
        current = self.state.current
        if self.factory is not None and self.factory.version >= current:
            _check_newer(bundle, fetched, self.factory.version, self.factory.folder, renew=False)
        elif current:
            _check_newer(bundle, fetched, current, self.folder / str(current), renew=True)
        _check_floor(bundle, fetched, self.state.floor)
        target = self.folder / str(bundle.version)
        shutil.rmtree(target, ignore_errors=True)  # of an earlier attempt that was never committed
        draft.rename(target)
        sync_folder(self.folder)
        return Bundle(target, bundle.manifest, bundle.signed_by)

    @property
    def _name(self) -> str:
        """The name of this model's bundles in their manifests; empty if any is accepted."""
        manifest = self.factory.manifest if self.factory else None
        return manifest.name if manifest else self.state.name

    def _verified(self, version: int) -> Bundle | None:
        folder = self.folder / str(version)
        try:
            bundle = open_bundle(folder, self.trust)
            if bundle.version != version:
                raise BundleRefused(Refusal.TAMPERED, folder, f"holds version {bundle.version}")
        except BundleRefused as error:
            self._record.note(f"the installed version {version} is not used: {error}")
            if error.refusal not in _BY_KEYS:
                with self._lock:
                    self._record.keep({"look": Look()} | self._without(version))
            return None
        if self.factory is not None and version <= self.factory.version:
            return None
        name = bundle.manifest.name if bundle.manifest else ""
        if name != (self._name or name):
            why = f"it is of {name!r}, and the configured bundle of {self._name!r}"
            self._record.note(f"the installed version {version} is not used: {why}")
            return None
        return bundle

    def _without(self, version: int) -> dict[str, Any]:
        """The changes when a version is given up."""
        if version == self.state.current:
            former: dict[str, Any] = {"current": self.state.previous, "previous": 0, "is_on_trial": False, "tries": 0}
            former["installed_unix_s"] = 0.0  # what was before it is not known: from here nobody sends a device back
            return former | {"proven": self.state.floor}  # also if the rejected version had proven it
        return {"previous": 0, "proven": self.state.floor} if version == self.state.previous else {}

    def _check_blocklist(self, version: int, path: Path | None) -> None:
        reason = self.state.blocklist.get(version)
        if reason is not None:
            raise BundleRefused(
                Refusal.BLOCKLISTED, path, f"version {version} was rolled back on this device: {reason}"
            )

    def _clear(self) -> None:
        """Delete what `state.json` does not name. What cannot be deleted now is tried again next time."""
        kept = {
            STATE_NAME,
            FLOOR_NAME,
            INCOMING_NAME,
            ROLLBACK_REQUEST_NAME,
            ROLLBACK_ANSWER_NAME,
            ROLLBACK_TAKEN_NAME,
            str(self.state.current),
            str(self.state.previous),
        }
        for path in self.folder.iterdir():
            if path.name in kept or path.name.startswith(_BEING_WRITTEN):
                continue
            with suppress(OSError):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()


def _check_newer(offered: Bundle, fetched: Path, version: int, folder: Path, *, renew: bool) -> None:
    """Raise `AlreadyInstalled` if the verified bundle `offered` is `version` in `folder`.

    With `renew` its signature is then taken over, since it may be made with a newer key. Raises `BundleRefused`
    (`OLDER`) if it is older or a different bundle with that version, and `OSError` if the signature cannot be
    written.
    """
    if offered.version > version:
        return
    if offered.version < version:
        what = f"is older than the installed version {version}"
    elif _bytes(offered.folder / MANIFEST_NAME) != _bytes(folder / MANIFEST_NAME):
        what = "is installed, with other files"
    else:
        signature = _bytes(offered.folder / SIGNATURE_NAME)
        if renew and signature and signature != _bytes(folder / SIGNATURE_NAME):
            write_whole(folder / SIGNATURE_NAME, signature)
        raise AlreadyInstalled
    raise BundleRefused(Refusal.OLDER, fetched, f"version {offered.version} {what}; a new bundle needs a greater one")


def _check_floor(offered: Bundle, fetched: Path, floor: int) -> None:
    """Raise `BundleRefused` (`OLDER`) if it is older than a version that has passed its trial here."""
    if offered.version < floor:
        problem = f"version {offered.version} is older than version {floor}, which was in use on this device"
        raise BundleRefused(Refusal.OLDER, fetched, f"{problem}; a new bundle needs a greater one")


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
