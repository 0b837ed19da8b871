"""Downloads and verifies a release as a device does, in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from upwell.edge.bundle.bundle import BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import open_bundle
from upwell.edge.updates.releases.release_source import fetch_release
from upwell.edge.updates.releases.repository_transport import METADATA_NAME, open_transport
from upwell.edge.updates.releases.stored_release import StoredRelease, open_release
from upwell.edge.updates.releases.tuf_client import ReleaseRepository, read_root


def checked(
    source: str,
    root: Path,
    scratch: Path,
    wanted: int | None,
    trust: Trust,
    ca: Path | None,
    tell: Callable[[str], None],
) -> StoredRelease:
    """The release `wanted`, or the newest. Raises `BundleRefused`, `FetchFailed` and `ConfigError`."""
    transport = open_transport(source, ca)
    try:
        repository = ReleaseRepository(transport, read_root(root), scratch / METADATA_NAME)
        tell("checking signatures")
        known = repository.refresh(has_clock=True)
        sequence = max(known, default=0) if wanted is None else wanted
        if sequence not in known:
            there = ", ".join(map(str, sorted(known))) or "none"
            raise BundleRefused(Refusal.MISSING, None, f"there is no release {sequence or ''}; there are: {there}")
        document, data = repository.document(sequence)
        tell(f"fetching release {sequence}")
        folder = fetch_release(repository, transport, (document, data), scratch / "unit", lambda *_: None)
        open_bundle(folder)
        return open_release(folder, trust)
    finally:
        transport.close()
