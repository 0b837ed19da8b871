"""One model whose bundle is kept up to date: from what its source offers to what is served."""

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

from upwell.edge.bundle.base import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.updates.sources.base import FetchFailed, Progress, Source
from upwell.edge.updates.version_state import Look
from upwell.edge.updates.version_store import AlreadyInstalled, VersionStore
from upwell.shared.errors import ConfigError

Outcome = Literal["installed", "nothing_new", "refused", "failed"]
"""What a look at a source can come to. `failed`: it could not be reached, or the disk is full; it is tried again."""

Activate = Callable[[Bundle], Callable[[], None]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateStatus:
    """How one model's updates fare.

    `installed` is the newest version that was installed and not rolled back, 0 where there is none. `refusal` and
    `message` are about the last offer that is not served; `failure` is why the last look came to nothing, empty if it
    did not. `looked_unix_s` is 0 before the first look. Since the start, `looks` counts their outcomes and
    `fetched_bytes` what was fetched. `floor` is the version below which nothing is taken, `on_trial` says whether
    `installed` has yet to prove itself, and `notice` what was lost or damaged on the disk and what became of it.
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
    """What is looked at, and how often."""

    @property
    def source(self) -> str:
        """Its address."""

    @property
    def digest(self) -> str:
        """The one thing to take, empty for whatever is new."""

    @property
    def place(self) -> str:
        """The address as it may be shown."""

    @property
    def every(self) -> float:
        """Seconds between two looks."""


class UpdateFollower:
    """Looks at one source for one model. `look` is called by one thread at a time.

    `activate` loads and tests a bundle and returns what serves it, to be called once it is the current one on disk; it
    raises `BundleRefused` (`FAILED_SELF_TEST`) where it is no good and the one before goes on. `source` is closed with
    the follower.
    """

    def __init__(self, store: VersionStore, updates: Followed, activate: Activate, source: Source) -> None:
        self.store = store
        self.updates = updates
        self._activate = activate
        self._source = source
        self._circumstances = _circumstances(store.trust)
        self._into = store.downloads / self._key("")[:16]
        for other in store.downloads.glob("*"):
            if other != self._into:  # of a source that is no longer asked
                shutil.rmtree(other, ignore_errors=True)
        self._lock = threading.Lock()
        self._looks: Counter[Outcome] = Counter()
        self._looked_unix_s = 0.0
        self._unnamed = Look()  # a refusal of something that has no name to remember it by
        self._failure = ""
        self._fetched_bytes = 0
        self._is_closed = False

    @property
    def status(self) -> UpdateStatus:
        """How its updates fare now."""
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
        """See what there is, and serve it if it is new and good; else the bundle before stays.

        What was refused is not fetched again until the source has something else. Raises `FetchFailed`.
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
        except ConfigError as error:  # a trusted key that cannot be read: nothing can be verified
            self._done("failed", str(error))
            raise FetchFailed(str(error)) from None
        except Exception:
            self._done("failed", "internal error")
            raise
        _log.info("%s: version %d is installed", self.store.subject, bundle.version)
        return self._done("installed")

    @property
    def has_bundle(self) -> bool:
        """Whether there is anything to serve until something newer comes."""
        return self.store.state.current > 0 or self.store.factory is not None

    @property
    def fetched_bytes(self) -> int:
        """What was fetched since the start."""
        return self._fetched_bytes

    def close(self) -> None:
        """End what is under way, from any thread; nothing is installed after this. Twice is harmless."""
        self._is_closed = True
        self._source.close()
        self.store.stop_trying()

    def _nothing_there(self) -> Outcome:
        """An empty folder may be meant; a misspelt address is not, and looks the same. So it is said, once."""
        problem = f"there is no bundle at {self.updates.place}"
        if self._failure != problem:
            _log.warning("%s: %s", self.store.subject, problem)
        return self._done("nothing_new", problem)

    def _refused(self, key: str, error: BundleRefused) -> Outcome:
        self._check_open()
        message = f"{self.updates.place}: {error.problems[0].message}"
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
        """`progress` that counts what comes, but not what was there before."""
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
        """What an offer is remembered by; one that was refused may be taken under other circumstances."""
        about = [token, self.updates.source, self.updates.digest, circumstances]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FetchFailed("updating was stopped")


def _circumstances(trust: Trust) -> str:
    """All but the offer that decides whether it is taken: with other keys or a later Upwell it is fetched again."""
    keys = []
    for path in trust.keys:
        try:
            keys.append(path.read_bytes().hex())
        except OSError:
            keys.append("")  # said when a signature is checked
    return json.dumps([trust.require, keys, importlib.metadata.version("upwell")])
