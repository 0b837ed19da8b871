"""A repository of releases as a source of updates."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from upwell.edge.bundle.base import BundleRefused, Refusal
from upwell.edge.release.choice import KeptChoice
from upwell.edge.release.document import ReleaseDocument
from upwell.edge.release.floor import LocalFloor
from upwell.edge.release.places import METADATA_NAME, RepositoryPlace, open_place
from upwell.edge.release.sections import ReleaseSection
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.version_store import VersionStore

NO_CLOCK = "the clock is not synchronised: expiry is not checked, only the sequence of releases"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Picked:
    document: ReleaseDocument
    data: bytes


class ReleaseSource:
    """A `Source` of signed releases: the chosen one, else the newest. Raises `ConfigError`.

    `newest` also raises `BundleRefused` for a release that is older than the installed one, was rolled back here, or
    names what the floor does not allow; nothing of it is fetched. Needs the extra `release`.
    """

    def __init__(
        self, section: ReleaseSection, folder: Path, store: VersionStore, choice: KeptChoice, floor: LocalFloor
    ) -> None:
        from upwell.edge.release.repository import ReleaseRepository, read_root

        self._section = section
        self._store = store
        self._choice = choice
        self._floor = floor
        self._place: RepositoryPlace = open_place(section.source, section.ca)
        self._repository = ReleaseRepository(self._place, read_root(section.root), folder / METADATA_NAME)
        self._picked: _Picked | None = None
        self.is_fetching = False
        self.notice = ""
        """What this device cannot check about the repository; empty if nothing."""

    def newest(self) -> AvailableBundle | None:
        """The release to install; None if the repository has none."""
        known = self._repository.refresh(has_clock=self._has_clock())
        if not known:
            return None
        chosen = self._choice.now.sequence
        sequence = max(known) if chosen is None else chosen
        if sequence not in known:
            raise FetchFailed(f"{self._section.place}: release {sequence} is not there yet")
        self._check_order(sequence)
        document, data = self._repository.document(sequence)
        self._floor.check_sources(document)
        self._picked = _Picked(document, data)
        return AvailableBundle(f"release {hashlib.sha256(data).hexdigest()}")

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:  # noqa: ARG002  as a `Source` has it
        """Fetch the release that `newest` picked into a folder."""
        from upwell.edge.release.payloads import fetched_unit

        picked = self._picked
        assert picked is not None  # noqa: S101  what is fetched was offered
        self.is_fetching = True
        try:
            current = self._store.state.current
            former = self._store.folder / str(current) if current else None
            release = (picked.document, picked.data)
            return fetched_unit(self._repository, self._place, release, into, progress, former)
        finally:
            self.is_fetching = False

    def bring(self, sequence: int, into: Path) -> Path:
        """Fetch that release into a folder under `into`, whichever one runs. Raises `FetchFailed` and
        `BundleRefused`."""
        from upwell.edge.release.payloads import fetched_unit

        if sequence not in self._repository.refresh(has_clock=self._has_clock()):
            raise FetchFailed(f"{self._section.place}: release {sequence} is not there yet")
        release = self._repository.document(sequence)
        self._floor.check_sources(release[0])
        current = self._store.state.current
        former = self._store.folder / str(current) if current else None
        return fetched_unit(self._repository, self._place, release, into, lambda *_: None, former)

    def close(self) -> None:
        """End what is under way."""
        self._place.close()

    def _has_clock(self) -> bool:
        has_clock = self._section.clock == "trusted" or is_synchronised()
        notice = "" if has_clock else NO_CLOCK
        if notice != self.notice:
            _log.warning("the release: %s", notice or "the clock is synchronised now: expired metadata is refused")
        self.notice = notice
        return has_clock

    def _check_order(self, sequence: int) -> None:
        state = self._store.state
        reason = state.blocklist.get(sequence)
        if reason is not None:
            problem = f"release {sequence} was rolled back on this device: {reason}"
            raise BundleRefused(Refusal.BLOCKLISTED, None, problem)
        if sequence < state.floor or sequence < state.current:
            problem = f"release {sequence} is older than release {max(state.floor, state.current)}, which is installed"
            expected = "to go back, sign it under a new sequence (`upwell release add --like`)"
            raise BundleRefused(Refusal.OLDER, None, f"{problem}; {expected}")


def home_of(source: str) -> str:
    """The host that releases come from, with its port if given."""
    return urlsplit(source).netloc


_SYNCHRONISED = Path("/run/systemd/timesync/synchronized")
"""Created by systemd-timesyncd at the first synchronisation after boot."""
_TIME_ERROR = 5


def is_synchronised() -> bool:
    """Whether the clock was synchronised since boot (NTP, PTP, GPS).

    On Linux the kernel knows (`adjtimex(2)` returns TIME_ERROR while the clock is not synchronised). Elsewhere the
    operating system sets the clock, and it counts as synchronised.
    """
    if not sys.platform.startswith("linux"):
        return True
    if _SYNCHRONISED.exists():
        return True
    try:
        state = int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(os.sysconf("SC_PAGESIZE"))))
    except (OSError, AttributeError, ValueError):
        return False
    return 0 <= state < _TIME_ERROR
