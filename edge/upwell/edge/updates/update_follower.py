"""Keeping an agent's bundles up to date, from a source's offer to serving it, in a thread of its own."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.updates.sources.base import FetchFailed, Progress, Source
from upwell.edge.updates.version_state import Look
from upwell.edge.updates.version_store import AlreadyInstalled, VersionStore
from upwell.shared.errors import ConfigError, shortened
from upwell.shared.platform.background_thread import BackgroundThread

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
    with the follower. Under other `circumstances` a refused offer is tried again.
    """

    def __init__(
        self, store: VersionStore, updates: Followed, activate: Activate, source: Source, circumstances: str = ""
    ) -> None:
        self.store = store
        self.updates = updates
        self._activate = activate
        self._source = source
        self._circumstances = circumstances_of(store.trust) + circumstances
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


def circumstances_of(trust: Trust) -> str:
    """Everything besides the offer that affects its acceptance: with other keys or a later Upwell it is fetched
    again."""
    keys = []
    for path in trust.keys:
        try:
            keys.append(path.read_bytes().hex())
        except OSError:
            keys.append("")  # reported when a signature is checked
    return json.dumps([trust.require, keys, importlib.metadata.version("upwell")])


FIRST_WITHIN_S = 300.0
"""Maximum delay of the first check after the start, drawn at random so that a fleet that starts at once does not
check at once. A model without a bundle does not wait.
"""

RETRY_S = 5.0
"""The pause after a failure; it doubles with each further one up to the usual pause, unless more bytes arrived."""

CLOSE_S = 5.0
"""How long `close` waits. What takes longer, such as compiling a model, ends by itself and installs nothing."""


class UpdatePoller:
    """One thread that checks the sources of all models in turn, each about every `every_s`.

    `draw` gives numbers in [0, 1) for the jitter. Close it; the followers are closed with it.
    """

    def __init__(
        self,
        followers: Sequence[UpdateFollower],
        *,
        retry_s: float = RETRY_S,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._followers = {follower.store.model: follower for follower in followers}
        self._retry_s = retry_s
        self._draw = draw
        self._closing = threading.Event()
        self._hurry = threading.Event()
        self._failures = dict.fromkeys(self._followers, 0)
        now_s = time.monotonic()
        self._due_s = {
            model: now_s + draw() * (min(FIRST_WITHIN_S, follower.updates.every) if follower.has_bundle else 0.0)
            for model, follower in self._followers.items()
        }
        self._thread = BackgroundThread("updates", self._run, self._closing.is_set)
        self._thread.start()

    def look_now(self) -> None:
        """Check every source as soon as possible."""
        self._hurry.set()

    def close(self) -> None:
        """End what is in progress. Calling it twice is harmless."""
        self._closing.set()
        self._hurry.set()
        for follower in self._followers.values():
            follower.close()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while self._followers:
            model = min(self._due_s, key=self._due_s.__getitem__)
            is_hurried = self._hurry.wait(max(0.0, self._due_s[model] - time.monotonic()))
            if self._closing.is_set():
                return
            if is_hurried:
                self._hurry.clear()
                self._due_s = dict.fromkeys(self._due_s, 0.0)
            self._due_s[model] = self._look(self._followers[model]) + time.monotonic()

    def _look(self, follower: UpdateFollower) -> float:
        """Check once; return the time until the next check."""
        model, every_s = follower.store.model, follower.updates.every
        before_bytes, asked_s = follower.fetched_bytes, 0.0
        try:
            follower.look()
        except FetchFailed as error:
            if self._closing.is_set():
                return every_s
            level = logging.DEBUG if self._failures[model] else logging.WARNING
            _log.log(level, "%s: its updates cannot be fetched now: %s", follower.store.subject, error)
            asked_s = error.retry_after_s
        except Exception:  # noqa: BLE001 (the boundary of a thread that must live on)
            _log.exception("%s: updating failed", follower.store.subject)
        else:
            self._failures[model] = 0
            return every_s * (0.9 + 0.2 * self._draw())
        came_on = follower.fetched_bytes > before_bytes
        self._failures[model] = 1 if came_on else self._failures[model] + 1
        pause_s = min(every_s, self._retry_s * 2.0 ** min(self._failures[model] - 1, 60))
        return max(asked_s, pause_s) * (1.0 + 0.5 * self._draw()) if asked_s else pause_s * (0.5 + 0.5 * self._draw())
