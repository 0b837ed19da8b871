"""Keeping one model's bundle up to date, from its source's offer to serving it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.updates.sources.base import FetchFailed, Progress, Source
from upwell.edge.updates.version_state import Look
from upwell.edge.updates.version_store import AlreadyInstalled, VersionStore
from upwell.shared.errors import ConfigError, shortened

Outcome = Literal["installed", "nothing_new", "refused", "failed"]
"""The outcomes of checking a source. `failed`: it could not be reached, or the disk is full; it is tried again."""

Activate = Callable[[Bundle], Callable[[], None]]

_LONGEST_MESSAGE = 1000
"""What `state.json` holds of a refusal: it must stay readable, whatever a bundle makes the message quote."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateStatus:
    """The state of one model's updates.

    `installed` is the newest version that was installed and not rolled back, 0 if there is none. `refusal` and
    `message` describe the last refused offer; `failure` is why the last check failed, empty if it did not.
    `looked_unix_s` is 0 before the first check. Since the start, `looks` counts the outcomes of checks and
    `fetched_bytes` the bytes fetched. `floor` is the smallest version accepted, `on_trial` says whether `installed` has
    yet to prove itself, and `notice` describes losses and damage on the disk.
    """

    model: str
    installed: int
    looked_unix_s: float
    refusal: Refusal | None
    message: str
    failure: str
    fetched_bytes: int
    looks: Mapping[Outcome, int]
    floor: int = 0
    on_trial: bool = False
    notice: str = ""


class Followed(Protocol):
    """A source to follow, and how often to check it."""

    @property
    def source(self) -> str:
        """The source's address."""

    @property
    def digest(self) -> str:
        """The only digest to accept, empty for any."""

    @property
    def place(self) -> str:
        """The address without secrets."""

    @property
    def every(self) -> float:
        """Seconds between two checks."""


class UpdateFollower:
    """Checks one source for one model. `look` is called by one thread at a time.

    `activate` loads and tests a bundle and returns a function that serves it, to be called once it is current on disk;
    it raises `BundleRefused` (`FAILED_SELF_TEST`) if the bundle fails, and the previous one stays. `source` is closed
    with the follower.
    """

    def __init__(self, store: VersionStore, updates: Followed, activate: Activate, source: Source) -> None:
        self.store = store
        self.updates = updates
        self._activate = activate
        self._source = source
        self._circumstances = _circumstances(store.trust)
        self._into = store.downloads / self._key("")[:16]
        for other in store.downloads.glob("*"):
            if other != self._into:  # from a former source
                shutil.rmtree(other, ignore_errors=True)
        self._lock = threading.Lock()
        self._looks: Counter[Outcome] = Counter()
        self._looked_unix_s = 0.0
        self._unnamed = Look()  # the refusal of an offer without a token
        self._failure = ""
        self._fetched_bytes = 0
        self._is_closed = False

    @property
    def status(self) -> UpdateStatus:
        """The current state of its updates."""
        look = self._unnamed if self._unnamed.refusal else self.store.state.look
        with self._lock:
            return UpdateStatus(
                self.store.model,
                self.store.state.current,
                self._looked_unix_s,
                look.refusal,
                look.message,
                self._failure,
                self._fetched_bytes,
                dict(self._looks),
                self.store.state.floor,
                self.store.state.is_on_trial,
                self.store.notice,
            )

    def look(self, progress: Progress | None = None) -> Outcome:
        """Check the source, and serve a new valid bundle; otherwise the previous bundle stays.

        A refused offer is not fetched again until the source has another one. Raises `FetchFailed`.
        """
        key = installed_key = ""
        self._unnamed = Look()
        try:
            offer = self._source.newest()
            if offer is None:
                return self._nothing_there()
            key, installed_key = self._key(offer.token, self._circumstances), self._key(offer.token)
            if self.store.state.look.key in (key, installed_key):
                return self._done("nothing_new")
            bundle = self.store.install(self._source.fetch(offer, self._into, self._counting(progress)))
            self._check_open()
            with self.store.trying(key):
                serve = self._activate(bundle)
            self._check_open()
            self.store.commit(bundle, installed_key)
            serve()
        except AlreadyInstalled:
            self.store.settle(Look(key=installed_key))
            return self._done("nothing_new")
        except BundleRefused as error:
            return self._refused(key, error)
        except FetchFailed as error:
            self._done("failed", str(error))
            raise
        except ConfigError as error:  # a trusted key cannot be read, so nothing can be verified
            self._done("failed", str(error))
            raise FetchFailed(str(error)) from None
        except Exception:
            self._done("failed", "internal error")
            raise
        _log.info("%s: version %d is installed", self.store.subject, bundle.version)
        return self._done("installed")

    @property
    def has_bundle(self) -> bool:
        """Whether there is a bundle to serve until a newer one comes."""
        return self.store.state.current > 0 or self.store.factory is not None

    @property
    def fetched_bytes(self) -> int:
        """The bytes fetched since the start."""
        return self._fetched_bytes

    def close(self) -> None:
        """Stop transfers, from any thread; nothing is installed afterwards. Calling it twice is harmless."""
        self._is_closed = True
        self._source.close()
        self.store.stop_trying()

    def _nothing_there(self) -> Outcome:
        """Log once that the source is empty: that may be intended, but a misspelt address looks the same."""
        problem = f"there is no bundle at {self.updates.place}"
        if self._failure != problem:
            _log.warning("%s: %s", self.store.subject, problem)
        return self._done("nothing_new", problem)

    def _refused(self, key: str, error: BundleRefused) -> Outcome:
        self._check_open()
        message = shortened(f"{self.updates.place}: {error.problems[0].message}", _LONGEST_MESSAGE)
        look = Look(key=key, refusal=error.refusal, message=message)
        _log.warning("%s: an update was refused (%s): %s", self.store.subject, error.refusal.value, message)
        if key:
            self.store.settle(look)
        else:
            self._unnamed = look
        return self._done("refused")

    def _done(self, outcome: Outcome, failure: str = "") -> Outcome:
        with self._lock:
            self._looks[outcome] += 1
            self._looked_unix_s = time.time()
            self._failure = failure
        return outcome

    def _counting(self, progress: Progress | None) -> Progress:
        """Wrap `progress` to count new bytes, but not those of an earlier attempt."""
        before_bytes = -1

        def count(there_bytes: int, whole_bytes: int) -> None:
            nonlocal before_bytes
            if before_bytes >= 0:
                self._fetched_bytes += max(0, there_bytes - before_bytes)
            before_bytes = there_bytes
            if progress is not None:
                progress(there_bytes, whole_bytes)

        return count

    def _key(self, token: str, circumstances: str = "") -> str:
        """The key under which an offer is remembered; a refused one may be accepted under other circumstances."""
        about = [token, self.updates.source, self.updates.digest, circumstances]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FetchFailed("updating was stopped")


def _circumstances(trust: Trust) -> str:
    """Everything besides the offer that affects its acceptance: with other keys or a later Upwell it is fetched
    again."""
    keys = []
    for path in trust.keys:
        try:
            keys.append(path.read_bytes().hex())
        except OSError:
            keys.append("")  # reported when a signature is checked
    return json.dumps([trust.require, keys, importlib.metadata.version("upwell")])
