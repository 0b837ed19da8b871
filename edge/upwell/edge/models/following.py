"""One model whose bundle is kept up to date: from what its source offers to what is served."""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import Literal

from upwell.edge.bundle.base import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.fetch.base import FetchFailed, Progress
from upwell.edge.fetch.sources import open_source
from upwell.edge.models.store import Look, Shelf
from upwell.shared.errors import ConfigError

Outcome = Literal["installed", "nothing_new", "refused", "failed"]
"""What a look at a source can come to. `failed`: it could not be reached, or the disk is full; it is tried again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Updates:
    """Where a model's new versions come from: `updates` in agent.yaml, as `open_source` takes it."""

    source: str
    every_s: float = 3600.0
    digest: str = ""
    ca: Path | None = None


@dataclass(frozen=True)
class UpdateStatus:
    """How one model's updates fare.

    `version` is the one that was last made current, 0 for the factory's. `refusal` and `message` are about the last
    offer that is not served; `failure` is why the last look came to nothing, empty if it did not. `looked_unix_s` is 0
    before the first look. Since the start, `looks` counts their outcomes and `fetched_bytes` what was fetched.
    """

    model: str
    version: int
    looked_unix_s: float
    refusal: Refusal | None
    message: str
    failure: str
    fetched_bytes: int
    looks: Mapping[Outcome, int]


class Follower:
    """Looks at one source for one model. `look` is called by one thread at a time.

    `activate` loads, tests and serves a bundle, and raises `BundleRefused` (`FAILED_SELF_TEST`) where it is no good and
    the one before goes on. Raises `ConfigError` for a source that cannot be one.
    """

    def __init__(self, shelf: Shelf, updates: Updates, activate: Callable[[Bundle], None]) -> None:
        self.shelf = shelf
        self.updates = updates
        self._activate = activate
        self._source = open_source(updates.source, digest=updates.digest, ca=updates.ca)
        self._circumstances = _circumstances(updates, shelf.trust)
        self._into = shelf.incoming / self._key("")[:16]
        for other in shelf.incoming.glob("*"):
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
        look = self._unnamed if self._unnamed.refusal else self.shelf.look
        with self._lock:
            return UpdateStatus(
                self.shelf.model,
                self.shelf.current,
                self._looked_unix_s,
                look.refusal,
                look.message,
                self._failure,
                self._fetched_bytes,
                dict(self._looks),
            )

    def look(self, progress: Progress | None = None) -> Outcome:
        """See what there is, and serve it if it is new and good; else the bundle before stays.

        What was refused is not fetched again until the source has something else. Raises `FetchFailed`.
        """
        key, self._unnamed = "", Look()
        try:
            offer = self._source.newest()
            if offer is None:
                return self._done("nothing_new")
            key = self._key(offer.token)
            if key == self.shelf.look.key:
                return self._done("nothing_new")
            bundle = self.shelf.install(self._source.fetch(offer, self._into, self._counting(progress)))
            self._check_open()
            with self.shelf.trying(key):
                self._activate(bundle)
            self._check_open()
            self.shelf.commit(bundle, key)
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
        _log.info("model %s: version %d is installed", self.shelf.model, bundle.version)
        return self._done("installed")

    @property
    def fetched_bytes(self) -> int:
        """What was fetched since the start."""
        return self._fetched_bytes

    def close(self) -> None:
        """End what is under way, from any thread; nothing is installed after this. Twice is harmless."""
        self._is_closed = True
        self._source.close()
        with contextlib.suppress(FetchFailed):  # no room on the disk: one try of few is lost
            self.shelf.stop_trying()

    def _refused(self, key: str, error: BundleRefused) -> Outcome:
        self._check_open()
        look = Look(key=key, refusal=error.refusal, message=str(error))
        _log.warning("model %s: an update is refused (%s): %s", self.shelf.model, error.refusal.value, error)
        if key:
            self.shelf.refuse(look)
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

    def _key(self, token: str) -> str:
        return hashlib.sha256(json.dumps([token, self._circumstances]).encode()).hexdigest()

    def _check_open(self) -> None:
        if self._is_closed:
            raise FetchFailed("updating was ended")


def _circumstances(updates: Updates, trust: Trust) -> str:
    """All but the offer that decides whether it is taken: with other keys or a later Upwell it is fetched again."""
    keys = []
    for path in trust.keys:
        try:
            keys.append(path.read_bytes().hex())
        except OSError:
            keys.append("")  # said when a signature is checked
    known = [updates.source, updates.digest, trust.require, keys, importlib.metadata.version("upwell")]
    return json.dumps(known)
