"""Downloads and verifies a release as a device does, in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from upwell.edge.bundle.base import BundleRefused, Refusal, Trust
from upwell.edge.bundle.verify import open_bundle
from upwell.edge.release.payloads import fetched_unit
from upwell.edge.release.places import METADATA_NAME, open_place
from upwell.edge.release.repository import ReleaseRepository, read_root
from upwell.edge.release.unit import ReleaseUnit, open_unit


def checked(
    source: str,
    root: Path,
    scratch: Path,
    wanted: int | None,
    trust: Trust,
    ca: Path | None,
    tell: Callable[[str], None],
) -> ReleaseUnit:
    """The release `wanted`, or the newest. Raises `BundleRefused`, `FetchFailed` and `ConfigError`."""
    place = open_place(source, ca)
    try:
        repository = ReleaseRepository(place, read_root(root), scratch / METADATA_NAME)
        tell("checking signatures")
        known = repository.refresh(has_clock=True)
        sequence = max(known, default=0) if wanted is None else wanted
        if sequence not in known:
            there = ", ".join(map(str, sorted(known))) or "none"
            raise BundleRefused(Refusal.MISSING, None, f"there is no release {sequence or ''}; there are: {there}")
        document, data = repository.document(sequence)
        tell(f"fetching release {sequence}")
        folder = fetched_unit(repository, place, (document, data), scratch / "unit", lambda *_: None)
        open_bundle(folder)
        return open_unit(folder, trust)
    finally:
        place.close()
