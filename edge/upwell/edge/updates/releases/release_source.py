"""A repository of releases as a source of updates: picks the release and fetches its files once.

The fleet service may choose among signed releases, and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.bundle.source_address import Reference
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.edge.updates.releases.fleet_choice import KeptFleetChoice
from upwell.edge.updates.releases.release_config import ReleaseSection
from upwell.edge.updates.releases.release_document import Payload, ReleaseDocument
from upwell.edge.updates.releases.repository_transport import (
    METADATA_NAME,
    RepositoryTransport,
    open_transport,
    unless_slow,
)
from upwell.edge.updates.releases.stored_release import store_release
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.sources.source_opening import open_source
from upwell.edge.updates.version_store import GONE_BACK, VersionStore
from upwell.shared.platform.system_clock import is_synchronised

if TYPE_CHECKING:
    from upwell.edge.updates.releases.tuf_client import ReleaseRepository


_log = logging.getLogger(__name__)


UNIT_NAME = "unit"
NO_CLOCK = "the clock is not synchronised: expiry is not checked, only the sequence of releases"


class ReleaseSource:
    """A `Source` of signed releases: the chosen one, else the newest. Raises `ConfigError`.

    `newest` also raises `BundleRefused` for a release that is older than the installed one, was rolled back here, or
    names what the floor does not allow; nothing of it is fetched. Needs the extra `release`.
    """

    def __init__(
        self, section: ReleaseSection, folder: Path, store: VersionStore, choice: KeptFleetChoice, floor: DeviceFloor
    ) -> None:
        from upwell.edge.updates.releases.tuf_client import ReleaseRepository, read_root

        self._section = section
        self._store = store
        self._choice = choice
        self._floor = floor
        self._transport: RepositoryTransport = open_transport(section.source, section.ca)
        self._repository = ReleaseRepository(self._transport, read_root(section.root), folder / METADATA_NAME)
        self._picked: tuple[ReleaseDocument, bytes] | None = None
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
        self._check_order(sequence)
        if sequence not in known:
            raise FetchFailed(f"{self._section.place}: release {sequence} is not there yet")
        document, data = self._repository.document(sequence)
        self._floor.check_sources(document)
        self._picked = document, data
        return AvailableBundle(f"release {hashlib.sha256(data).hexdigest()}")

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:  # noqa: ARG002  as a `Source` has it
        """Fetch the release that `newest` picked into a folder."""
        picked = self._picked
        assert picked is not None  # noqa: S101  what is fetched was offered
        sequence = picked[0].sequence

        def watch(there_bytes: int, whole_bytes: int) -> None:
            self.check_choice(sequence)
            progress(there_bytes, whole_bytes)

        self.is_fetching = True
        try:
            return self._bring(picked, into, watch)
        finally:
            self.is_fetching = False

    def check_choice(self, sequence: int) -> None:
        """Raise `FetchFailed` if another release than this one was chosen meanwhile."""
        chosen = self._choice.now.sequence
        if chosen not in (None, sequence):
            raise FetchFailed(f"release {sequence} is not installed: {chosen} was chosen meanwhile")

    def bring(self, sequence: int, into: Path) -> Path:
        """Fetch that release into a folder under `into`, whichever one runs. Raises `FetchFailed`, also for metadata
        that is refused now, such as an expired timestamp, and `BundleRefused` for the release."""
        try:
            known = self._repository.refresh(has_clock=self._has_clock())
        except BundleRefused as error:
            raise FetchFailed(f"{self._section.place}: {error}") from None
        if sequence not in known:
            raise FetchFailed(f"{self._section.place}: release {sequence} is not there yet")
        release = self._repository.document(sequence)
        self._floor.check_sources(release[0])
        return self._bring(release, into, lambda *_: None)

    def close(self) -> None:
        """End what is under way."""
        self._transport.close()

    def _bring(self, release: tuple[ReleaseDocument, bytes], into: Path, progress: Progress) -> Path:
        current = self._store.state.current
        former = self._store.folder / str(current) if current else None
        return fetch_release(self._repository, self._transport, release, into, progress, former)

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
        if reason == GONE_BACK and sequence == self._choice.now.sequence:
            self._store.unblock(sequence)
        elif reason is not None:
            problem = f"release {sequence} was rolled back on this device: {reason}"
            raise BundleRefused(Refusal.BLOCKLISTED, None, problem)
        if sequence < state.floor or sequence < state.current:
            what = f"release {sequence}" if sequence else "what agent.yaml names"
            problem = f"{what} is older than release {max(state.floor, state.current)}, which is installed"
            expected = "to go back, sign it under a new sequence (`upwell release add --like`)"
            raise BundleRefused(Refusal.OLDER, None, f"{problem}; {expected}")


def home_of(source: str) -> str:
    """The host that releases come from, with its port if given."""
    return urlsplit(source).netloc


def fetch_release(
    repository: ReleaseRepository,
    transport: RepositoryTransport,
    release: tuple[ReleaseDocument, bytes],
    into: Path,
    progress: Progress,
    former: Path | None = None,
) -> Path:
    """Fetch a release with all its files into a folder under `into`; an earlier attempt is resumed.

    Bundles that are also in the release in the folder `former` are not fetched. Raises `FetchFailed` and
    `BundleRefused`.
    """
    document, data = release
    target = into / UNIT_NAME
    try:
        shutil.rmtree(target, ignore_errors=True)
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        bring = partial(_fetched, repository, transport, into, progress)
        store_release(data, document, target, bring, former)
    except OSError as error:
        raise FetchFailed(f"{into}: cannot be written: {error.strerror or error}") from None
    return target


def _fetched(
    repository: ReleaseRepository, transport: RepositoryTransport, into: Path, progress: Progress, payload: Payload
) -> Path:
    """A verified file. One that differs from the signed one is the sender's fault, and is tried again."""
    folder = into / payload.sha256[:16]
    try:
        if payload.source:
            return _from_registry(payload, folder, progress)
        offer = AvailableBundle(payload.sha256, payload.sha256, payload.size_bytes)
        return transport.fetch(repository.payload_path(payload.path), offer, folder, progress)
    except BundleRefused as error:
        raise FetchFailed(f"the file {payload.sha256[:16]}… of the release cannot be fetched: {error}") from None


def _from_registry(payload: Payload, folder: Path, progress: Progress) -> Path:
    source = open_source(payload.source, digest=f"sha256:{payload.sha256}")
    try:
        offer = source.newest()
        if offer is None:
            raise FetchFailed(f"{Reference.parse(payload.source)}: there is no such artifact")
        return source.fetch(offer, folder, unless_slow(progress))
    finally:
        source.close()
