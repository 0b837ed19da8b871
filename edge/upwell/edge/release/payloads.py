"""Fetching the files of a release: by digest, resumable, and each only once."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from upwell.edge.bundle.address import Reference
from upwell.edge.bundle.base import BundleRefused
from upwell.edge.release.document import Payload, ReleaseDocument
from upwell.edge.release.places import RepositoryPlace, unless_slow
from upwell.edge.release.repository import ReleaseRepository
from upwell.edge.release.unit import assemble_unit
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.sources.sources import open_source

UNIT_NAME = "unit"


def fetched_unit(
    repository: ReleaseRepository,
    place: RepositoryPlace,
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
        bring = partial(_fetched, repository, place, into, progress)
        assemble_unit(data, document, target, bring, former)
    except OSError as error:
        raise FetchFailed(f"{into}: cannot be written: {error.strerror or error}") from None
    return target


def _fetched(
    repository: ReleaseRepository, place: RepositoryPlace, into: Path, progress: Progress, payload: Payload
) -> Path:
    """A verified file. One that differs from the signed one is the sender's fault, and is tried again."""
    folder = into / payload.sha256[:16]
    try:
        if payload.source:
            return _from_registry(payload, folder, progress)
        offer = AvailableBundle(payload.sha256, payload.sha256, payload.size_bytes)
        return place.fetch(repository.payload_path(payload.path), offer, folder, progress)
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
